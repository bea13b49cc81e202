"""Steps a second of `fit` on resident data, beside a bare `sample_chain` on the same posterior.

Logistic regression on MNIST 7 v 9 (N = 12214, D = 129), SGLD, all samples kept. The sides take
turns with equally many steps on independent minibatches, and are compiled before. `fit` computes
its metrics at every step.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled
from benchmarks.common.logistic import as_batch, log_likelihood
from benchmarks.common.tables import Table
from benchmarks.common.timing import in_turn, seconds

STEP_SIZE = 1e-5
PRIOR = tfp.distributions.Normal(0.0, 10.0)


def fit(x: np.ndarray, y: np.ndarray, batch_size: int, per_call: int, steps: int) -> Callable:
    """Returns a function that takes `steps` steps in one epoch of `fit`."""
    model = keras.Sequential([keras.Input([x.shape[1]]), keras.layers.Dense(1, use_bias=False)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"], jit_compile=True)
    callback = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGLD(target, STEP_SIZE),
        prior=PRIOR,
        collect=sgmcmc.keras.Collect(0, 0),
        seed=0,
        num_examples=len(x),
    )
    data = callback.resident(
        *(x, y), batch_size=batch_size, steps_per_call=per_call, steps_per_epoch=steps
    )
    return lambda: model.fit(data, verbose=0, callbacks=[callback])


def sample_chain(x: np.ndarray, y: np.ndarray, batch_size: int, steps: int) -> Callable:
    """Returns a function that takes `steps` steps of `tfp.mcmc.sample_chain`."""
    target = sgmcmc.MinibatchLogProb(
        lambda w: tf.reduce_sum(PRIOR.log_prob(w), axis=-1),
        log_likelihood,
        as_batch(x, y),
        batch_size,
    )

    run = compiled(sgmcmc.SGLD(target, STEP_SIZE), steps)
    start = tf.zeros([x.shape[1]])
    return lambda: run(start, None, tf.constant([0, 1])).all_states.numpy()


def compare(
    batch_sizes: tuple[int, ...] = (100, 500),
    steps_per_call: tuple[int, ...] = (100, 1000),
    steps: int = 10_000,
    repeats: int = 5,
) -> list[tuple[float, ...]]:
    """Returns batch size, steps a call, microseconds a step of both sides, and their ratio."""
    x, y, *_ = datasets.mnist_7v9("pca", 128)
    rows = []
    for n in batch_sizes:
        sides: dict[Any, Callable] = {k: fit(x, y, n, k, steps) for k in steps_per_call}
        sides["sample_chain"] = sample_chain(x, y, n, steps)
        times = in_turn(
            {name: lambda run=run: 1e6 * seconds(run) / steps for name, run in sides.items()},
            repeats,
            # Frozen, as Python would otherwise search all traced objects in each fit.
            after_first=lambda: (gc.collect(), gc.freeze()),
        )
        medians = {name: statistics.median(values) for name, values in times.items()}
        bare = medians["sample_chain"]
        rows += [(n, k, medians[k], bare, bare / medians[k]) for k in steps_per_call]
    return rows


def show(rows: list[tuple[float, ...]]) -> Table:
    columns = {"n": "d", "steps a call": "d", "fit, us": ".1f", "sample_chain": ".1f"}
    return command_line.print_table({**columns, "rate": ".2f"}, rows)


if __name__ == "__main__":
    command_line.main(__doc__, compare, show, table="cost.resident")
