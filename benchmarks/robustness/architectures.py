"""Networks of many architectures, each sampled by `fit` with several kernels.

    python -m benchmarks.robustness.architectures --quick

A network runs with SGLD, SGHMC and NOGIN, with one chain and with two, compiled by XLA and not. It
takes six of these twelve combinations, in which every pair of settings occurs, and some networks
take all twelve. A run works if

  its samples are finite, and those of every weight move;
  `predict` gives the shapes of `model.predict`, and `evaluate` finite numbers;
  the samples that are saved and loaded for a new model predict the same, bit for bit;
  the model trains with its optimizer afterwards.

Before, the gradient of the log posterior is compared with the gradient of Keras' own loss, and the
scores with the gradients of single examples. A network that cannot be sampled must be refused in
words that name the reason. The table fails for anything else.
"""

from __future__ import annotations

import itertools
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.robustness.networks import NETWORKS, REFUSED, Network
from benchmarks.robustness.networks.network import N
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb

BATCH, EPOCHS = 8, 2
KERNELS: dict[str, Callable[[Any], Any]] = {
    "SGLD": lambda target: sgmcmc.SGLD(target, 1e-4),
    "SGHMC": lambda target: sgmcmc.SGHMC(target, 1e-3, friction=10.0, covariance="diag"),
    "NOGIN": lambda target: sgmcmc.NOGIN(
        target, 1e-3, friction=10.0, covariance="diag", num_estimation_steps=1
    ),
}
#: Networks that some kernels refuse, with words of the refusal.
REFUSALS = {("ResNet, BatchNormalization", k): "examples of a batch" for k in ("SGHMC", "NOGIN")}
THOROUGH = ("dense", "convolutions", "bag of words", "several outputs", "subclassed")
QUICK = ("several inputs", "low-rank adaptation", "own train_step")


class Setting(NamedTuple):
    """How a network is sampled."""

    kernel: str
    num_chains: int | None
    jit_compile: bool


class Row(NamedTuple):
    """The outcome for a network in a setting: "works", "refused", or what is wrong.

    `seconds` are those of the processor, and `words` the warnings of the library.
    """

    network: str
    setting: str
    outcome: str
    seconds: float
    words: str


def settings(network: str) -> list[Setting]:
    """Returns four settings, with all pairs of chains and compiler and with each kernel.

    The kernels change places from a network to the next, so that three networks have all pairs.
    Some networks have all twelve settings.
    """
    if network in THOROUGH:
        return [Setting(*s) for s in itertools.product(KERNELS, (None, 2), (True, False))]
    turn = [*NETWORKS].index(network) % 3
    first, second, third = [*KERNELS, *KERNELS][turn : turn + 3]
    return [
        Setting(first, None, True),
        Setting(second, 2, False),
        Setting(third, None, False),
        Setting(third, 2, True),
    ]


def made(name: str, jit_compile: bool) -> Network:
    """Returns a compiled and built network, whose weights and names are always the same."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # saves minutes
    network = NETWORKS[name]() if name in NETWORKS else REFUSED[name][0]()
    network.model.compile("adam", network.loss, jit_compile=jit_compile)
    return network


def batch(data: Any) -> Any:
    """Returns a nest of arrays as tensors."""
    return keras.tree.map_structure(tf.convert_to_tensor, data)


def compared(name: str, num_chains: int | None, jit_compile: bool) -> str:
    """Compares gradient and scores with those of Keras' loss; returns what is wrong.

    The gradient with respect to each variable may differ by the square root of the precision, times
    its largest entry.
    """
    network = made(name, jit_compile)
    model, x, y = network.model, batch(network.x), batch(network.y)
    internals.build(model, x, y, None)
    variables = list(model.trainable_variables)
    before = [tf.identity(v.value) for v in variables]
    places = [before]
    if num_chains is not None:
        places = [[v * (1 + 0.1 * c) for v in before] for c in range(num_chains)]
    state = before if num_chains is None else [tf.stack(v) for v in zip(*places, strict=True)]
    others = list(model.non_trainable_variables)
    start = [tf.identity(v.value) for v in others]

    jit_compile = model.jit_compile  # Keras declines it for some layers

    def flat(values: list[tf.Tensor]) -> tf.Tensor:
        return tf.zeros([], values[0].dtype)

    has_scores = (name, "NOGIN") not in REFUSALS

    @tf.function(autograph=False, jit_compile=jit_compile)
    def estimate() -> Any:
        target = ModelLogProb(model, N, flat, (x, y, None), num_chains)
        found = target.estimate(state, tf.constant([0, 0]), with_scores=has_scores)
        scores = [_rows(s) for s in found.scores]
        return found.gradient, scores

    gradient, scores = estimate()
    compares_gradient = network.entries > 0 and not (jit_compile and network.draws)
    compares_scores = network.entries > 0 and not network.draws and has_scores
    for c, place in enumerate(places):

        def chain(value: Any, c: int = c) -> np.ndarray:
            return np.asarray(value if num_chains is None else value[c])

        _assign(variables, place)
        _assign(others, start)
        whole = reference(network, x, y)
        each = [reference(network, _row(x, i), _row(y, i), 1) for i in range(3)]
        largest = max(float(np.abs(right).max()) for right in whole)
        for k, v in enumerate(variables):
            error = _error(chain(gradient[k]), whole[k], model, largest)
            if compares_gradient and error > 1:
                return f"gradient of {v.path}: {error:.1e} times what rounding allows"
            if not compares_scores:
                continue
            # The scores of weights with a regulariser may lack the same gradient of it each.
            value, right = chain(scores[k])[:3], np.stack([row[k] for row in each])
            error = _error(value - value.mean(0), right - right.mean(0), model, largest)
            if error > 1:
                return f"scores of {v.path}: {error:.1e} times what rounding allows"
    return ""


def _row(data: Any, i: int) -> Any:
    return keras.tree.map_structure(lambda a: a[i : i + 1], data)


def _rows(scores: Any) -> tf.Tensor:
    """Returns scores as `[n, ...]`, or `[chains, n, ...]`."""
    return scores.rows() if hasattr(scores, "rows") else scores


def _assign(variables: list[keras.Variable], values: list[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _error(value: Any, right: Any, model: keras.Model, largest: float) -> float:
    """Returns the error relative to what rounding allows; `largest` is that of all gradients."""
    value, right = np.asarray(value, np.float64), np.asarray(right, np.float64)
    dtypes = {tf.as_dtype(layer.compute_dtype or "float32") for layer in internals.layers(model)}
    unit = max(float(np.spacing(d.as_numpy_dtype(1))) for d in dtypes if d.is_floating)
    size = max(np.abs(right).max(), 1e-2 * largest)
    return float(np.abs(value - right).max() / size / unit**0.5)


def reference(network: Network, x: Any, y: Any, scale: int = N) -> list[np.ndarray]:
    """Returns the gradient of minus Keras' loss, times the number of examples."""
    model = network.model
    variables = [v.value for v in model.trainable_variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variables)
        arguments = {"training": True} if model._call_has_training_arg else {}
        outputs = model(x, **arguments)
        penalty = sum(tf.cast(loss, "float32") for loss in model.losses)
        loss = tf.cast(model.compute_loss(x, y, outputs), "float32") - penalty
        value = -scale * (network.entries * loss + penalty)
    gradient = tape.gradient(value, variables, unconnected_gradients="zero")
    return [np.asarray(tf.convert_to_tensor(g)) for g in gradient]


def fitted(name: str, setting: Setting, folder: str) -> str:
    """Samples a network and uses the posterior; returns what is wrong, or an empty string."""
    network = made(name, setting.jit_compile)
    model, x, y = network.model, network.x, network.y
    has_strings = any(a.dtype.kind == "U" for a in keras.tree.flatten(x))
    x_fit = batch(x) if has_strings else x  # what fit takes of strings
    sampler = sgmcmc.keras.SamplerCallback(
        KERNELS[setting.kernel],
        prior=_prior,
        collect=sgmcmc.keras.Collect(1, 0),
        chains=setting.num_chains,
        seed=0,
        independent_batches=False if has_strings else None,
        num_examples=N,
    )
    if setting.kernel == "SGLD" or has_strings:
        model.fit(x_fit, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[sampler])
    else:
        data = sgmcmc.keras.IndependentBatches(x, y, batch_size=BATCH)
        model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[sampler])
    kept = EPOCHS * N // BATCH - 1
    for v, samples in zip(model.trainable_variables, sampler.samples, strict=True):
        values = np.asarray(samples, np.float64).reshape(kept, setting.num_chains or 1, -1)
        if not np.isfinite(values).all():
            return f"samples of {v.path} are not finite"
        if (np.abs(np.diff(values, axis=0)).max(axis=-1) == 0).any():
            return f"samples of {v.path} do not move"
        last = values[-1, 0].reshape(v.shape)
        if not np.array_equal(last, np.asarray(v, np.float64)):
            return f"{v.path} of the model is not that of the first chain's last sample"
    posterior = sampler.posterior
    found = posterior.predict(x_fit, batch_size=BATCH, verbose=0)
    plain = model(batch(x))
    for mean, sd, like in zip(
        *map(keras.tree.flatten, (found.mean, found.standard_deviation, plain)), strict=True
    ):
        if mean.shape != like.shape or sd.shape != like.shape:
            return f"predictions of shape {mean.shape} instead of {like.shape}"
        if not np.isfinite(mean).all() or not (sd.max() > 0):
            return "predictions are not finite, or all samples predict the same"
    if setting.jit_compile and name not in THOROUGH:
        return ""
    scores = posterior.evaluate(x_fit, y, batch_size=BATCH, verbose=0)
    for value in keras.tree.flatten(scores._asdict() if hasattr(scores, "_asdict") else scores):
        if value is not None and not np.isfinite(value).all():
            return f"evaluate gives {scores}"
    path = Path(folder) / "samples.npz"
    posterior.save(path)
    other = made(name, setting.jit_compile)
    internals.build(other.model, batch(x), batch(y), None)
    _assign(other.model.non_trainable_variables, [v.value for v in model.non_trainable_variables])
    again = sgmcmc.keras.Posterior.load(path, other.model).predict(x_fit, BATCH, verbose=0)
    pairs = zip(keras.tree.flatten(found[:2]), keras.tree.flatten(again[:2]), strict=True)
    if not all(np.array_equal(a, b) for a, b in pairs):
        return "the loaded posterior predicts something else"
    weights = [np.array(v) for v in model.trainable_variables]
    history = model.fit(x_fit, y, batch_size=BATCH, verbose=0).history
    if not np.isfinite(history["loss"]).all():
        return "the model does not train afterwards: its loss is not finite"
    if any(np.array_equal(w, v) for w, v in zip(weights, model.trainable_variables, strict=True)):
        return "the model does not train afterwards: a weight stays"
    return ""


def _prior(values: list[tf.Tensor]) -> tf.Tensor:
    """Returns the log density of standard normals, for weights of any dtype."""
    return tf.add_n([tf.cast(-0.5 * tf.reduce_sum(x**2), tf.float32) for x in values])


def judged(name: str, setting: str, run: Callable[[], str], expected: str = "") -> Row:
    """Returns what came of a run. `expected` are words of a refusal, if there must be one."""
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            wrong = run()
            outcome = "accepted" if expected and not wrong else wrong or "works"
        except Exception as error:  # of any kind: the table shows it
            outcome = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            place = traceback.extract_tb(error.__traceback__)[-1].filename
            is_told = isinstance(error, ValueError | TypeError) and "tfp_sgmcmc" in place
            if expected and is_told and re.search(expected, str(error)):
                outcome = "refused"
    said = {str(w.message).split(". ")[0][:140] for w in caught if "tfp_sgmcmc" in w.filename}
    return Row(name, setting, outcome, time.process_time() - start, "; ".join(sorted(said)))


def rows(networks: tuple[str, ...] = (*NETWORKS, *REFUSED)) -> Iterator[Row]:
    """Yields a row for each comparison and each run."""
    for name in networks:
        if name in REFUSED:
            for kernel in ("SGLD", "NOGIN"):
                setting = Setting(kernel, None, False)
                yield row(name, setting)
            continue
        for num_chains, jit_compile in ((None, True), (2, False)):
            label = f"gradient and scores, {describe(num_chains, jit_compile)}"

            def compare(
                name: str = name, chains: int | None = num_chains, jit: bool = jit_compile
            ) -> str:
                return compared(name, chains, jit)

            yield judged(name, label, compare)
        for setting in settings(name):
            yield row(name, setting)


def row(name: str, setting: Setting) -> Row:
    """Returns what came of a network in a setting."""
    expected = REFUSED[name][1] if name in REFUSED else REFUSALS.get((name, setting.kernel), "")
    label = f"{setting.kernel}, {describe(*setting[1:])}"
    with tempfile.TemporaryDirectory() as folder:
        return judged(name, label, lambda: fitted(name, setting, folder), expected)


def describe(num_chains: int | None, jit_compile: bool) -> str:
    return f"{num_chains or 1} chain{'s' if num_chains else ''}{', XLA' if jit_compile else ''}"


def is_right(found: Row) -> bool:
    return found.outcome in ("works", "refused")


def run(*, quick: bool = False, only: str = "") -> list[Row]:
    """Prints the table as it is made, and returns its rows.

    Args:
      quick: a network of each kind: plain, partly frozen, and refused.
      only: part of the names of the networks.
    """
    tf.get_logger().setLevel("ERROR")  # it tells of many functions that are traced
    chosen = QUICK if quick else (*NETWORKS, *REFUSED)
    found = list[Row]()

    def shown() -> Iterator[Row]:
        for each in rows(tuple(name for name in chosen if only in name)):
            found.append(each)
            yield each

    columns = {"network": "<36", "setting": "<34", "outcome": "<8", "CPU s": ".1f", "": "<1"}
    command_line.print_table(columns, shown())
    return found


def show(found: list[Row]) -> None:
    """Prints the counts; exits with an error unless each run works or is refused in words."""
    counts = {o: sum(r.outcome == o for r in found) for o in ("works", "refused")}
    print(f"{len({r.network for r in found})} networks: {counts}")
    wrong = [f"{r.network} ({r.setting}): {r.outcome}" for r in found if not is_right(r)]
    if wrong:
        raise SystemExit("\n".join([f"{len(wrong)} of {len(found)} rows are wrong:", *wrong]))


def main() -> None:
    command_line.main(__doc__, run, show)


if __name__ == "__main__":
    main()
