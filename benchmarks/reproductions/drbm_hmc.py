"""A small posterior of the discriminative restricted Boltzmann machine on KDD Cup 1999, and HMC.

Two experiments after Ahn, Korattikara & Welling (ICML 2012) compare samplers there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
from benchmarks.common import drbm
from benchmarks.common.chains import compiled

CLASSES = 6  # the most populous of the 23


class Data(NamedTuple):
    """Rows of the most populous classes."""

    x: np.ndarray  # [rows, 40]
    y: np.ndarray  # [rows], 0 for the most populous class
    x_test: np.ndarray
    y_test: np.ndarray


def connections(num_rows: int, num_test_rows: int, seed: int = 0) -> Data:
    """Returns random rows of the most populous classes, with 40 features."""
    data = datasets.kddcup99(encoding="integer", seed=seed)
    found = []
    largest = np.argsort(-np.bincount(data.y_train), kind="stable")[:CLASSES]
    for x, y, size in (
        (data.x_train, data.y_train, num_rows),
        (data.x_test, data.y_test, num_test_rows),
    ):
        kept = np.flatnonzero(np.isin(y, largest))[:size]  # the split has shuffled the rows
        found += [x[kept], (y[kept, np.newaxis] == largest).argmax(axis=1).astype(np.int32)]
    return Data(*found)


class Chains(NamedTuple):
    """Draws of HMC."""

    states: drbm.Weights  # parts [draws, chains, ...]
    acceptance: float  # rate of acceptance


def hmc(target: Any, start: drbm.Weights, num_results: int, num_leapfrog: int, seed: int) -> Chains:
    """Runs HMC twice: a pilot from `start`, then in units of the pilot's standard deviations.

    Each run adapts its step to an acceptance of 0.8 in `num_results` steps, which are dropped, and
    then makes `num_results` steps. The second run starts where the pilot ends.
    """

    def kernel(*scales: tf.Tensor) -> Any:
        scaled = tfp.mcmc.HamiltonianMonteCarlo(
            lambda *z: target(*(s * part for s, part in zip(scales, z, strict=True))),
            step_size=tf.constant(0.01),
            num_leapfrog_steps=num_leapfrog,
        )
        return tfp.mcmc.DualAveragingStepSizeAdaptation(scaled, num_results, 0.8)

    run = compiled(
        kernel,
        num_results,
        num_burnin_steps=num_results,
        trace_fn=lambda _, results: results.inner_results.is_accepted,
    )
    scales = [tf.ones(part.shape[1:]) for part in start]
    found = run(list(start), None, tf.constant([seed, 0]), *scales)
    # Within chains, because chains may be in different modes.
    scales = [tf.sqrt(tf.reduce_mean(tf.math.reduce_variance(x, 0), 0)) for x in found.all_states]
    last = [x[-1] / s for x, s in zip(found.all_states, scales, strict=True)]
    found = run(last, None, tf.constant([seed, 1]), *scales)
    states = drbm.Weights(*(x * s for x, s in zip(found.all_states, scales, strict=True)))
    return Chains(states, float(np.mean(found.trace)))


def repeated(weights: drbm.Weights, num_chains: int) -> drbm.Weights:
    """Returns `num_chains` copies of one state."""
    return drbm.Weights(*(tf.stack([part] * num_chains) for part in weights))


def r_hats(values: np.ndarray) -> np.ndarray:
    """Returns the split R-hat of each of the values `[draws, chains, ...]`."""
    found = tfp.mcmc.potential_scale_reduction(values.astype(np.float64), split_chains=True)
    return np.asarray(found)


def largest_r_hat(values: np.ndarray) -> float:
    """Returns the largest split R-hat of values `[draws, chains, ...]`."""
    return float(np.max(r_hats(values)))
