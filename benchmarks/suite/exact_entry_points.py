"""The functions that users call, on normal posteriors with a closed form of the draws' variance.

`exact_laws` has the kernels and targets. Here are `sample_chain` on a stream, `fit`, whose chains
share the minibatches, and `sample`. SGLD's draws have the temperature of
`linear_theory.overdamped_law` at the gradient noise s = 1 and the variance 1. Those of `sample`,
from an eighth of the rows, have the posterior's variance, 8.

RMSprop and the natural gradient have no row: their metric follows the chain, so that no linear
theory gives the variance at a finite step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import scipy.linalg
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.suite.exact_laws import SGLD_STEP, Found, log_prior, seed_of
from tfp_sgmcmc.kernels.linear_theory import overdamped_law

EXAMPLES, DIMENSIONS, BATCH = 16_000, 15, 8
CHAINS, KEPT, BETWEEN = 300, 500, 10
BURN_IN = 300  # steps


def rows() -> np.ndarray:
    """Returns the data, `[N, D]`, of mean zero, whose minibatches have a mean of variance 1."""
    x = scipy.linalg.hadamard(16)[:, 1:] * np.sqrt(BATCH * EXAMPLES / (EXAMPLES - BATCH))
    return np.tile(x, [EXAMPLES // 16, 1]).astype(np.float32)


def log_likelihood(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    squares = tf.reduce_sum((theta[..., tf.newaxis, :] - x) ** 2, axis=-1)
    return -0.5 / EXAMPLES * squares


def streamed(seed: int) -> np.ndarray:
    """Returns draws of SGLD on batches of a stream, shuffled anew in each epoch."""
    x = rows()

    def epoch(number: int) -> tf.data.Dataset:
        order = np.random.default_rng([seed, number]).permutation(EXAMPLES)
        return tf.data.Dataset.from_tensor_slices(x[order]).batch(BATCH * 50)

    target = sgmcmc.StreamedLogProb(log_prior, log_likelihood, epoch, EXAMPLES, batch_size=BATCH)
    result = sgmcmc.sample_chain(
        sgmcmc.SGLD(target, SGLD_STEP),
        tf.zeros([CHAINS, DIMENSIONS]),
        KEPT,
        num_burnin_steps=BURN_IN,
        num_steps_between_results=BETWEEN - 1,
        seed=seed,
        progress_bar=False,
    )
    return np.asarray(result.states)


def fitted(seed: int) -> np.ndarray:
    """Returns draws of SGLD in `fit`: the weights of a layer without bias on an input of one."""
    x = rows()
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(DIMENSIONS, use_bias=False)])
    model.compile(loss=_half_square)
    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGLD(target, SGLD_STEP),
        prior=None,
        chains=sgmcmc.keras.Chains(CHAINS),
        collect=sgmcmc.keras.Collect(BURN_IN, BETWEEN - 1),
        seed=seed,
    )
    ones = np.ones([EXAMPLES, 1], np.float32)
    steps = BURN_IN + KEPT * BETWEEN
    data = sgmcmc.keras.IndependentBatches(ones, x, batch_size=BATCH, steps_per_epoch=steps)
    model.fit(data, epochs=1, verbose=0, callbacks=[sampler])
    return np.asarray(sampler.result.posterior.samples[0])


@keras.saving.register_keras_serializable("exact")
class _HalfSquare(keras.losses.Loss):
    """The likelihood's share of an example, as a loss."""

    def call(self, y: Any, outputs: Any) -> Any:
        return 0.5 / EXAMPLES * keras.ops.sum((y - outputs) ** 2, axis=-1)


_half_square = _HalfSquare()


def automatic(seed: int) -> np.ndarray:
    """Returns draws of `sample` with the settings that it chooses."""
    target = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, rows()[:2000], 100)
    result = sgmcmc.sample(
        target, tf.zeros([DIMENSIONS]), 600, num_chains=60, seed=seed, progress_bar=False
    )
    return np.asarray(result.states)


_SGLD = float(overdamped_law(SGLD_STEP, 1.0, 1.0).temperature)
ENTRY_POINTS: dict[str, tuple[Callable[[int], np.ndarray], float]] = {
    "StreamedLogProb": (streamed, _SGLD),
    "fit": (fitted, _SGLD),
    "sample": (automatic, EXAMPLES / 2000),
}


def measure(name: str, seed: int = 0) -> Found:
    """Returns the relative error of a variance, by its name, with draws of its own for each.

    Chains may share minibatches, so the standard error comes from batches of draws in time.
    """
    draw, expected = ENTRY_POINTS[name]
    states = draw(seed_of(name, seed))
    squares = (states.astype(np.float64) ** 2).mean(axis=(1, 2)) / expected - 1
    batches = squares.reshape(20, -1).mean(axis=-1)
    return Found(float(squares.mean()), float(batches.std(ddof=1) / 20**0.5))
