"""Calls of everything in `tfp_sgmcmc.keras`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.derive import entry
from benchmarks.robustness.kinds import TARGET, example_weights, labels, models, paths, priors
from benchmarks.robustness.values import (
    DATA,
    NAN,
    Named,
    array,
    choice,
    function,
    instance,
    integer,
    kernel,
    number,
    path,
)

tfd, K = tfp.distributions, sgmcmc.keras
LABELS = (DATA[:, :1] > 0).astype(np.float32)
SAMPLES = np.random.default_rng(2).normal(size=[3, 2, 1]).astype(np.float32)
EVERY: dict[str, Any] = dict(num_burnin_steps=0, num_steps_between_results=0)


def network() -> keras.Model:
    """Returns a logistic regression of two weights, which runs without being compiled."""
    dense = keras.layers.Dense(1, use_bias=False, name="dense")
    model = keras.Sequential([keras.Input([2]), dense], name="net")
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True), run_eagerly=True)
    return model


def sgld(target: Any) -> Any:
    return sgmcmc.SGLD(target, 0.01)


def sampler(**arguments: Any) -> Any:
    given: dict[str, Any] = dict(kernel=sgld, prior=None, collect=K.Collect(**EVERY), seed=0)
    return K.SamplerCallback(**{**given, **arguments})


def fitted(callback: Any, data: Any = None) -> Any:
    """Returns the samples of an epoch of two steps."""
    if data is None:
        network().fit(DATA, LABELS, batch_size=4, shuffle=False, verbose=0, callbacks=[callback])
    else:
        network().fit(data, epochs=1, verbose=0, callbacks=[callback])
    return [np.asarray(x) for x in callback.result.samples]


def callbacks() -> list[Entry]:
    made = [None, "x", 1, [], {}, object(), sgmcmc.SGLD, TARGET, tfd.Normal(0.0, 1.0)]
    kept = [None, "x", [], {}, 1j, np.ones([3]), object(), tf.constant("x")]
    arrays = [[np.zeros([3, 1])], [np.zeros([2, 3, 1])], [np.full([2, 2, 1], NAN)], [], ["x"]]
    starts = [*choice("model"), *arrays, [np.zeros([2, 2, 1]), np.zeros([1])]]
    rows = [DATA[:7], np.zeros([0, 2], np.float32), DATA * NAN, DATA.astype(str)]
    data = dict(
        x=[*array(), *rows],
        y=[*array(optional=True), LABELS[:7], LABELS * NAN],
        sample_weight=[*array(optional=True), np.ones([7]), np.full([8], NAN)],
        growth=number(0.0, 0.9),
    )
    batch = dict(x=DATA, y=LABELS, batch_size=4)
    start = sampler()

    def in_fit(**options: Any) -> Any:
        return lambda made: fitted(sampler(**{name: made for name in options}))

    def resident(**arguments: Any) -> Any:
        callback = sampler()
        return fitted(callback, callback.resident(**arguments))

    given = dict(kernel=sgld, prior=None, collect=K.Collect(**EVERY), seed=0, num_examples=8)
    groups = dict(
        kernel=[*function(1, *made), sgmcmc.SGLD, *kernel()],
        collect=instance(K.Collect, 5, (1, 2), optional=True),
        chains=[v for v in instance(K.Chains, optional=True) if v is not True],
        output=paths(),
    )
    return [
        entry("fit", K.SamplerCallback, given, groups, use=fitted, without={"step_size"},
              also={"output": "directory|path", "chains": "num_chains"}),
        entry("fit", K.Collect, EVERY, {"keep": function(1, *kept, optional=True)},
              use=in_fit(collect=None)),
        entry("fit", K.Chains, {"num_chains": 2}, {"initial_states": starts},
              use=in_fit(chains=None), also={"initial_states": "initial states"}),
        entry("fit", start.resident, {**batch, "steps_per_call": 1, "steps_per_epoch": 2}, data,
              call=resident, without={"seed"}),
        entry("fit", K.IndependentBatches, {**batch, "seed": 0, "steps_per_epoch": 2}, data,
              use=lambda made: fitted(sampler(), made)),
        entry("fit", K.WorkerBatches, {"data": K.IndependentBatches(DATA, LABELS, batch_size=4)},
              {"data": instance(DATA, (DATA, LABELS), K.IndependentBatches)},
              use=lambda made: made.num_batches),
        entry("fit", start.plan, dict(model=network(), x=DATA, y=LABELS, epochs=2, batch_size=4),
              {"batch_size": integer(1)}, use=lambda plan: plan.num_samples,
              only={"model", "epochs", "batch_size", "steps_per_epoch"}),
        entry("fit", K.find_step_size,
              dict(model=network(), x=DATA, y=LABELS, prior=tfd.Normal(0.0, 1.0), batch_size=4,
                   kernel="SGLD", verbose=0),
              dict(kernel=choice("SGLD"), prior=[v for v in priors() if v is not None]),
              use=lambda found: found.step_size, without={"verbose"}),
        entry("fit", K.Traces, dict(sampler=start, log_dir=_OWN_FOLDER),
              dict(sampler=instance(K.SamplerCallback, sampler()), log_dir=path(),
                   weights=[*integer(1), [("other", (0, 0))], [("dense/kernel", (7, 0))]]),
              call=traced, without={"probe"}, also={"log_dir": "path"}),
    ]  # fmt: skip


_OWN_FOLDER = Path("a folder of the call")


def traced(sampler: Any, log_dir: Any, **arguments: Any) -> Any:
    """Returns the samples of a `fit` with `Traces`, by default of that fit's sampler."""
    callback = K.SamplerCallback(sgld, prior=None, collect=K.Collect(**EVERY), seed=0)
    is_usual = isinstance(sampler, K.SamplerCallback) and log_dir is _OWN_FOLDER
    folder = tempfile.mkdtemp() if is_usual else log_dir
    traces = K.Traces(callback if is_usual else sampler, folder, **arguments)
    network().fit(DATA, LABELS, verbose=0, callbacks=[callback, traces])
    return [np.asarray(x) for x in callback.result.samples]


def losses() -> list[Entry]:
    """Calls of the losses and likelihoods."""
    found, y = [], tf.ones([4, 1])
    shapes = [np.ones([3, 1]), np.ones([4, 2]), np.ones([1, 4]), np.ones([8, 1])]
    numbers: Mapping[str, tuple[str, ...]] = {
        "GaussianNLL": ("scale",), "StudentTNLL": ("df", "scale"), "PoissonNLL": (),
        "NegativeBinomialNLL": ("concentration",),
    }  # fmt: skip
    reduction = {"reduction": choice("sum", optional=True)}
    for name, known in numbers.items():
        kind = getattr(K.losses, name)
        give = {**dict.fromkeys(known, 1.0), "reduction": "sum_over_batch_size"}
        wrong = {k: number(0.0, -1.0, optional=k != "df") for k in known} | reduction
        made = kind(**dict.fromkeys(known, 1.0))
        found += [
            entry("model", kind, give, wrong, use=lambda loss: loss(y, y), name=f"losses.{name}",
                  without={"name", "dtype"}),
            Entry("model", f"losses.{name} on y", lambda labels, made=made: made(labels, y),
                  {"labels": np.ones([4, 1], np.float32)}, {"labels": shapes},
                  {"labels": "y|y_true|observations"}),
        ]  # fmt: skip
    results = [None, "x", 1.0, [], {}, tfd.Normal, tfd.Normal(0.0, 1.0), object()]
    seven = Named("of 7 rows", lambda out: tfd.Normal(np.zeros([7, 1], np.float32), 1.0))
    likelihoods = [*function(1, *results), seven, tfd.Normal(0.0, 1.0)]
    model = network()
    model.evaluate(DATA, LABELS, verbose=0)  # builds the compiled loss

    def estimate(target: Any) -> Any:
        state = [tf.convert_to_tensor(v) for v in model.trainable_variables]
        return target.estimate(state, tf.constant([0, 1]))[:2]

    confidence, hits = np.full([8], 0.7), np.ones([8], bool)
    return [
        *found,
        entry("model", K.NegativeLogLikelihood,
              dict(make_distribution_fn=lambda out: tfd.Normal(out, 1.0)),
              {"make_distribution_fn": likelihoods, **reduction},
              use=lambda loss: loss(LABELS, tf.constant(LABELS)), without={"name"}),
        entry("model", K.ModelLogProb,
              dict(model=model, num_examples=8, log_prior_fn=lambda s: 0.0,
                   batch=(DATA, LABELS, None)),
              dict(log_prior_fn=function(1, None, "x", [], {}, object()), num_examples=integer(1)),
              use=estimate, only={"model", "num_examples", "log_prior_fn", "num_chains"},
              also={"log_prior_fn": "prior"}),
        entry("model", K.by_variable, dict(model=model, values={"dense": 1.0}),
              {"values": instance({}, {"other": 1.0}, {1: 1.0}, {None: 1.0}, ["dense"])},
              only={"model", "values"}),
        entry("model", K.expected_calibration_error, dict(confidence=confidence, is_correct=hits),
              dict(confidence=array(confidence[:7], confidence + 1, -confidence, confidence * NAN),
                   is_correct=array(hits[:7], np.full([8], NAN), np.full([8], 7.0)),
                   weights=array(np.ones([7]), -np.ones([8]), np.zeros([8]), optional=True))),
    ]  # fmt: skip


def posteriors() -> list[Entry]:
    """Calls of `Posterior` and of its methods."""
    model = network()
    variables = model.trainable_variables
    posterior = K.Posterior(model, variables, [SAMPLES])
    regression = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, use_bias=False)])
    regression.compile(loss=K.losses.GaussianNLL(scale=1.0), run_eagerly=True)
    kernels = np.random.default_rng(3).normal(size=[4, 2, 2, 1]).astype(np.float32)
    chains = K.Posterior(regression, regression.trainable_variables, [kernels], num_chains=2)
    one = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    one.compile(loss=K.losses.GaussianNLL(scale=1.0), run_eagerly=True)
    line = K.Posterior(one, one.trainable_variables, [np.ones([4, 1, 1], np.float32)])
    with tempfile.TemporaryDirectory() as folder:
        posterior.save(f"{folder}/p.npz")
        stored = Path(f"{folder}/p.npz").read_bytes()
    samples = array([SAMPLES[0]], [SAMPLES, SAMPLES], [SAMPLES[:0]], [SAMPLES * NAN], [["a"]])
    shares = ["x", {}, [1.0], [NAN] * len(SAMPLES), [-1.0] * len(SAMPLES), np.zeros([3, 3])]
    weights = dict(samples=samples, weights=shares)
    data = dict(x=DATA, y=LABELS, batch_size=4)
    activation = [*choice("auto", optional=True),
                  *function(1, None, "x", [], {}, object(), optional=True)]  # fmt: skip
    batches = dict(batch_size=integer(1, optional=True), steps=integer(1, optional=True))
    labelled = dict(**batches, y=labels(), sample_weight=example_weights())
    kinds = [K.Posterior, posterior.samples, posterior.model]
    pairs = [[chains, kind] for kind in [*kinds, None, posterior, chains.thin(2)]]
    quantiles = array([0.0, 0.5], [0.5, 1.0], [[0.1, 0.9]], [-1.0], optional=True)

    def kept(made: Any) -> Any:
        return made.samples

    def saved(path: Any) -> Any:
        if isinstance(path, str) and path in ("", "a\0b"):
            return posterior.save(path)
        with tempfile.TemporaryDirectory() as folder:
            is_folder = isinstance(path, str) and path == "a directory"
            return posterior.save(folder if is_folder else path)

    def loaded(path: Any, model: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "p.npz"
            file.write_bytes(stored)
            places = {"good": file, "a directory": folder, "no file": f"{folder}/other"}
            place = places.get(path, path) if isinstance(path, str) else path
            return K.Posterior.load(place, model).samples

    def method(
        name: str,
        give: Mapping[str, Any],
        wrong: Mapping[str, Any] | None = None,
        of: Any = posterior,
        **options: Any,
    ) -> Entry:
        return entry("model", getattr(of, name), give, wrong, name=f"Posterior.{name}", **options)

    x = dict(x=DATA, batch_size=4, verbose=0)
    return [
        entry("model", K.Posterior, dict(model=model, variables=variables, samples=[SAMPLES]),
              dict(variables=instance([], [SAMPLES], [None]), **weights),
              use=lambda made: made.predict(DATA).mean,
              only={"model", "variables", "samples", "num_chains", "weights"}),
        method("with_samples", {"samples": [SAMPLES]}, weights, use=kept, only={*weights}),
        *(method(name, x, {**batches, "activation": activation}, without={"quantiles"})
          for name in ("predict", "outputs")),
        method("evaluate", {**data, "verbose": 0}, labelled, only={*labelled, "x", "verbose"}),
        method("log_likelihood", data, dict(y=labels(), batch_size=integer(1, optional=True)),
               only={"x", "y", "batch_size"}),
        method("to_inference_data", {"log_likelihood": np.zeros([3, 8])},
               {"log_likelihood": array(np.zeros([2, 8]), optional=True)}, use=str),
        method("load", dict(path="good", model=model),
               dict(path=[*path(), "a directory", "no file"]), call=loaded,
               also={"path": "file|directory|p.npz|other"}),
        method("save", {"path": f"{tempfile.gettempdir()}/robustness.npz"},
               {"path": [*[v for v in path() if not isinstance(v, int)], "a directory"]},
               call=saved, also={"path": "file|directory"}),
        method("thin", {"k": 2}, of=chains, use=kept),
        method("to_dtype", {"dtype": "float16"},
               {"dtype": [*choice("float16"), "float32", "int8", int, tf.int32]}, of=chains,
               use=kept),
        method("concatenate", {"posteriors": [chains, chains]},
               {"posteriors": [*instance(*kinds), *pairs]}, of=K.Posterior, use=kept,
               also={"posteriors": "posterior|samples|variables"}),
        method("summary", {}, of=chains),
        method("plot", {"num_entries": 1, "most_entries": 10}, of=chains),
        method("to_keras_model", {},
               {"name": [v for v in choice("x", optional=True) if not isinstance(v, str)]},
               of=chains, use=lambda made: made(DATA)["mean"], only={"name"}),
        method("plot_calibration", data, dict(batch_size=integer(1, optional=True), y=labels()),
               only={"x", "y", "batch_size"}),
        method("plot_predictions", dict(x=DATA[:, :1], batch_size=4), of=line,
               only={"x", "y", "batch_size"}),
        method("distil",
               dict(x=DATA, validation_data=(DATA, LABELS), epochs=1, batch_size=4, seed=0),
               dict(validation_data=instance((DATA,), (DATA, LABELS[:3]), (DATA, LABELS, 1))),
               use=lambda made: made.model(DATA), also={"validation_data": "y|x"},
               only={"x", "validation_data", "epochs", "batch_size"}),
        method("sample_predictive", {**x, "num_draws": 4, "seed": 0}, batches, of=chains),
        entry("model", chains.predict, x | {"quantiles": [0.1, 0.9]}, {"quantiles": quantiles},
              use=lambda made: made.predictive.quantiles, only={"quantiles"},
              name="Posterior.predict of a regression"),
        method("calibrate", {**data, "verbose": 0}, labelled,
               use=lambda scaling: scaling(np.array([0.5]))),
        entry("model", K.TemperatureScaling, {"temperature": 2.0, "axis": -1},
              dict(temperature=number(0.0, -1.0), axis=[*integer(-8, optional=True), 2]),
              use=lambda scaling: scaling(np.array([[0.8, 0.2]]))),
    ]  # fmt: skip


def baselines() -> list[Entry]:
    """Calls of SWAG and of Laplace's approximation."""

    def swag(made: Any) -> Any:
        network().fit(DATA, LABELS, batch_size=4, epochs=4, verbose=0, callbacks=[made])
        return made

    collected = swag(K.SWAG(burn_in=1))
    return [
        entry("model", K.SWAG, {"burn_in": 1, "rank": 2},
              dict(unit=choice("steps"), rank=[*integer(0), 1]), use=lambda made: swag(made).mean),
        entry("model", collected.posterior, dict(num_samples=2, seed=0),
              {"scale": number(-1.0)}, use=lambda made: made.samples,
              only={"num_samples", "seed", "scale"}, name="SWAG.posterior"),
        entry("model", K.last_layer_laplace,
              dict(model=network(), x=DATA, y=LABELS, prior=tfd.Normal(0.0, 1.0), num_samples=2,
                   seed=0, batch_size=4),
              dict(model=models(), prior=[v for v in priors() if v is not None],
                   y=array(LABELS[:7], LABELS * NAN), batch_size=integer(1)),
              use=lambda made: made.samples),
    ]  # fmt: skip


def entries() -> list[Entry]:
    return [*callbacks(), *losses(), *posteriors(), *baselines()]
