"""Counts the files of the package that a call passes, and the switches between files.

The calls are an eager step of SGLD and a `fit` of two epochs with NOGIN. A profiler's hook sees
each call of a Python function of the package, and a switch is a call of a function in another file
than the one called before.
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line

PACKAGE = str(Path(sgmcmc.__file__).parent)
FORMATS = {"call": "24s", "files": "d", "switches": "d"}


class Trip(NamedTuple):
    """A call, the files of the package that it passed, and the number of switches."""

    call: str
    files: tuple[str, ...]
    switches: int


def trip(name: str, call: Callable[[], Any]) -> Trip:
    """Returns the files of the package that a call passes when it is made a second time."""
    call()  # imports what is loaded on first use
    files: list[str] = []

    def see(frame: types.FrameType, event: str, argument: Any) -> None:
        del argument
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            files.append(path)

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    switches = sum(a != b for a, b in zip(files, files[1:], strict=False))
    return Trip(name, tuple(sorted({str(Path(f).relative_to(PACKAGE)) for f in files})), switches)


def eager_step() -> Callable[[], Any]:
    """Returns a function that takes one eager step of SGLD."""
    data = np.random.default_rng(0).normal(size=[100, 2]).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        lambda w, batch: -0.5 * tf.reduce_sum((batch - w[..., tf.newaxis, :]) ** 2, axis=-1),
        data,
        batch_size=10,
    )
    kernel = sgmcmc.SGLD(target, step_size=1e-3)
    state = tf.zeros([2])
    results = kernel.bootstrap_results(state)
    return lambda: kernel.one_step(state, results, seed=tf.constant([0, 1]))


def fit() -> Callable[[], Any]:
    """Returns a function that samples by NOGIN in a `fit` of two epochs."""
    x = np.random.default_rng(0).normal(size=[64, 2]).astype(np.float32)
    y = (x[:, :1] > x[:, 1:]).astype(np.float32)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))

    def call() -> None:
        from tensorflow_probability import distributions as tfd

        sampler = sgmcmc.keras.SamplerCallback(
            lambda target: sgmcmc.NOGIN(target, step_size=0.01, friction=1.0),
            prior=tfd.Normal(0.0, 1.0),
            collect=sgmcmc.keras.Collect(num_burnin_steps=2, num_steps_between_results=0),
            seed=0,
        )
        batches = sgmcmc.keras.IndependentBatches(x, y, batch_size=16, seed=0)
        model.fit(batches, epochs=2, verbose=0, callbacks=[sampler])

    return call


def run(*, files: bool = False) -> tuple[list[Trip], bool]:
    """Makes the calls.

    Args:
      files: lists the files.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [trip("eager step of SGLD", eager_step()), trip("fit with NOGIN", fit())], files


def show(result: tuple[list[Trip], bool]) -> None:
    """Prints the table, and the files if asked."""
    trips, listed = result
    command_line.print_table(FORMATS, [(t.call, len(t.files), t.switches) for t in trips])
    for each in trips if listed else []:
        print(f"\n{each.call}\n  " + "\n  ".join(each.files))


if __name__ == "__main__":
    command_line.main(__doc__, run, show)
