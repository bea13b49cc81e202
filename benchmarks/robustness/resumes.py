"""Changed problems on resume: `sample` and `fit` refuse each by the name of what changed.

A run is left in a directory, and each row of the table tries to go on with it after one change.

`python -m benchmarks.robustness.resumes` exits with an error if a change is accepted, or refused
without its name, or if the unchanged problem is refused.
"""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line


class Row(NamedTuple):
    """The outcome of resuming a run of a function after a change."""

    function: str
    change: str
    outcome: str


tfd = tfp.distributions
N = 24
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)
W = RNG.uniform(0.5, 1.5, size=[N]).astype(np.float32)


def changed(array: np.ndarray) -> np.ndarray:
    """Returns an array with another last row."""
    return np.concatenate([array[:-1], 1 - array[-1:]])


# What changes, what is given in its place, and the words that must name it.
FIT_CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("nothing", {}, ""),
    ("batch size", {"batch_size": 8}, "batch_size: 6, but here 8"),
    ("one entry of the inputs", {"x": changed(X)}, "any fit, x"),
    ("one label", {"y": changed(Y)}, "any fit, y"),
    ("all labels", {"y": 1 - Y}, "any fit, y"),
    ("order of the rows", {"x": X[::-1], "y": Y[::-1]}, "any fit, x"),
    ("sample weights", {"sample_weight": W}, "any fit, sample_weight"),
    ("class weights", {"class_weight": {0: 0.8, 1: 1.2}}, "any fit, sample_weight"),
    ("number of examples", {"x": X[:-1], "y": Y[:-1], "num_examples": N - 1}, "num_examples"),
    ("prior", {"prior": tfd.Normal(0.0, 2.0)}, "log prior"),
    ("loss", {"loss": lambda y, f: 0.5 * (y - f) ** 2}, "log posterior"),
    ("weight of the loss", {"loss_weights": [2.0]}, "log posterior"),
    ("activation", {"activation": "relu"}, "log posterior"),
    ("a layer without weights", {"extra": [keras.layers.Dropout(0.5)]}, "log posterior"),
    ("regulariser", {"regularizer": keras.regularizers.L2(0.01)}, "log posterior"),
    ("units", {"units": 5}, "posterior/"),
    ("keep", {"keep": lambda step: step % 3 == 0}, "keep"),
    ("shuffle", {"shuffle": True}, "shuffle: False, but here True"),
    ("burn-in", {"num_burnin_steps": 2}, "num_burnin_steps"),
    ("thinning", {"num_steps_between_results": 1}, "num_steps_between_results"),
    ("seed", {"seed": 1}, "seed"),
    ("number of chains", {"num_chains": 2}, "num_chains"),
    ("kernel", {"kernel": lambda t: sgmcmc.SGNHT(t, 1e-3)}, "kernel: SGLD, but here SGNHT"),
    ("step size", {"kernel": lambda t: sgmcmc.SGLD(t, 2e-3)}, "kernel.step_size"),
    ("temperature", {"kernel": lambda t: sgmcmc.SGLD(t, 1e-3, 0.5)}, "kernel.temperature"),
    ("resident data", {"resident": "step"}, "data: arrays, but here resident data"),
    ("tf.data", {"tf_data": True}, "data: arrays, but here a tf.data.Dataset"),
]
RESIDENT_CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("nothing", {}, ""),
    ("resident data: inputs", {"x": changed(X)}, "any fit, x"),
    ("resident data: labels", {"y": changed(Y)}, "any fit, y"),
    ("resident data: batch size", {"batch_size": 8}, "batch_size: 6, but here 8"),
    ("resident data: reshuffle", {"resident": "epoch"}, "reshuffle: step, but here epoch"),
    ("resident data: arrays in their place", {"resident": ""}, "but here arrays"),
]


def fit(directory: Path, epochs: int, **changes: Any) -> None:
    """Samples a small classifier in a directory."""
    given: dict[str, Any] = {
        **{"x": X, "y": Y, "batch_size": 6, "shuffle": False, "num_examples": N},
        **{"prior": tfd.Normal(0.0, 1.0), "activation": "tanh", "units": 4, "extra": []},
        **{"loss": keras.losses.BinaryCrossentropy(from_logits=True), "regularizer": None},
        **{"kernel": lambda t: sgmcmc.SGLD(t, 1e-3), "num_burnin_steps": 0, "seed": 0},
        **{"resident": "", "tf_data": False, "loss_weights": None},
        **changes,
    }
    keras.utils.set_random_seed(1)
    hidden = keras.layers.Dense(
        given["units"], given["activation"], kernel_regularizer=given["regularizer"]
    )
    model = keras.Sequential([keras.Input([3]), hidden, *given["extra"], keras.layers.Dense(1)])
    model.compile(loss=given["loss"], loss_weights=given["loss_weights"], run_eagerly=True)
    callback = sgmcmc.keras.SamplerCallback(
        given["kernel"],
        prior=given["prior"],
        collect=sgmcmc.keras.Collect(
            given["num_burnin_steps"],
            given.get("num_steps_between_results", 0),
            keep=given.get("keep"),
        ),
        chains=given.get("num_chains"),
        output=directory and sgmcmc.Directory(directory, seconds_between_commits=0.0),
        seed=given["seed"],
        num_examples=given["num_examples"],
    )
    x, y, size = given["x"], given["y"], given["batch_size"]
    data: dict[str, Any] = {"x": x, "y": y, "batch_size": size, "shuffle": given["shuffle"]}
    if reshuffle := given["resident"]:
        data = {"x": callback.resident(x, y, batch_size=size, reshuffle=reshuffle)}
    if given["tf_data"]:
        data = {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(size)}
    data |= {n: given[n] for n in ("sample_weight", "class_weight") if n in given}
    model.fit(**data, epochs=epochs, verbose=0, callbacks=[callback])


def _log_likelihood(sigma: float, theta: tf.Tensor, batch: Any) -> tf.Tensor:
    return tfd.Normal(theta[..., :1], sigma).log_prob(batch[..., 0])


def _decay(offset: float, step: tf.Tensor) -> tf.Tensor:
    return 1e-3 / (tf.cast(step, tf.float32) + offset)


SAMPLE_CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("nothing", {}, ""),
    ("data", {"data": changed(X)}, "data"),
    ("likelihood", {"sigma": 2.0}, "log posterior"),
    ("prior", {"prior": tfd.Normal(0.0, 2.0)}, "log prior"),
    ("start", {"start": tf.ones([3])}, "initial_state"),
    ("shape of the start", {"start": tf.zeros([2, 3])}, "posterior/"),
    ("schedule", {"step_size": functools.partial(_decay, 2.0)}, "step_size at steps"),
    ("batch size", {"batch_size": 8}, "batch_size"),
    ("replacement", {"replacement": True}, "replacement"),
    ("temperature", {"temperature": 0.5}, "temperature"),
    ("seed", {"seed": 1}, "seed"),
    ("burn-in", {"num_burnin_steps": 2}, "num_burnin_steps"),
    ("thinning", {"num_steps_between_results": 1}, "num_steps_between_results"),
    ("trace", {"trace_fn": lambda _, results: results.step}, "trace_fn|sample_stats"),
]
STREAM_CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("nothing", {}, ""),
    ("stream: data", {"data": changed(X)}, "other batches"),
    ("stream: likelihood", {"sigma": 2.0}, "log posterior"),
    ("stream: prior", {"prior": tfd.Normal(0.0, 2.0)}, "log prior"),
]


def sample(directory: Path, num_results: int, **changes: Any) -> None:
    """Samples a mean in a directory."""
    given: dict[str, Any] = {
        **{"data": X, "sigma": 1.0, "prior": tfd.Normal(0.0, 1.0), "start": tf.zeros([3])},
        **{"step_size": functools.partial(_decay, 1.0), "batch_size": 6, "replacement": False},
        **{"temperature": 1.0, "seed": 0, "stream": False},
        **changes,
    }
    data, size, prior = given["data"], given["batch_size"], given["prior"]
    fns = (
        lambda theta: tf.reduce_sum(prior.log_prob(theta), axis=-1),
        functools.partial(_log_likelihood, given["sigma"]),
    )
    target: Any = sgmcmc.MinibatchLogProb(*fns, data, size, replacement=given["replacement"])
    if given["stream"]:
        batches = tf.data.Dataset.from_tensor_slices(data).batch(size, drop_remainder=True)
        target = sgmcmc.StreamedLogProb(*fns, batches, num_examples=N)
    names = ("num_burnin_steps", "num_steps_between_results", "trace_fn")
    sgmcmc.sample_chain(
        sgmcmc.SGLD(target, given["step_size"], given["temperature"]),
        given["start"],
        num_results,
        seed=given["seed"],
        directory=directory,
        progress_bar=False,
        **{name: given[name] for name in names if name in given},
    )


def outcome(run: Any, directory: Path, length: int, changes: dict[str, Any], words: str) -> str:
    """Returns what came of going on with a copy of the run in a directory after a change."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "run"
        shutil.copytree(directory, copy)
        try:
            run(copy, length, **changes)
        except ValueError as error:
            named = re.search(words, str(error)) if words else None
            return "refused by name" if named else f"refused as: {error}"
    return "accepted"


def rows(quick: bool = False) -> list[Row]:
    """Returns the outcome of each change.

    Args:
      quick: every fourth change.
    """
    found = []
    for name, run, before, after, start, changes in (
        ("sample", sample, 4, 8, {}, SAMPLE_CHANGES),
        ("sample", sample, 5, 8, {"stream": True}, STREAM_CHANGES),
        ("fit", fit, 1, 2, {}, FIT_CHANGES),
        ("fit", fit, 1, 2, {"resident": "step"}, RESIDENT_CHANGES),
    ):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            directory = Path(folder) / "run"
            run(directory, before, **start)
            for what, change, words in changes[:: 4 if quick else 1]:
                result = outcome(run, directory, after, {**start, **change}, words)
                found.append(Row(name, what, result))
    return found


def is_right(row: Row) -> bool:
    """Returns whether a change was refused by name, and no change accepted."""
    return row.outcome == ("accepted" if row.change == "nothing" else "refused by name")


def show(found: list[Row]) -> None:
    """Prints the table; exits with an error unless every change is refused by name."""
    command_line.print_table({"function": "8s", "change": "40s", "outcome": "s"}, found)
    wrong = [row.change for row in found if not is_right(row)]
    if wrong:
        raise SystemExit(f"{len(wrong)} of {len(found)} rows are wrong: {', '.join(wrong)}.")


def main() -> None:
    command_line.main(__doc__, rows, show)


if __name__ == "__main__":
    main()
