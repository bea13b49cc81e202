"""Kernels run in many dimensions, where a D x D matrix is large."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.accuracy import sgfs_network

D, N, BATCH = 100_000, 12, 4


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [pytest.param("diag", marks=pytest.mark.slow), "low_rank"])
def test_a_compiled_step(kind: str) -> None:
    """A D x D matrix would take 40 GB."""
    x = np.random.default_rng(0).standard_normal((N, D), np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, batch: -0.5 * tf.reduce_sum((batch - theta[..., None, :]) ** 2, axis=-1),
        x,
        BATCH,
        replacement=True,  # compiles faster
        score_fn=lambda theta, batch: batch - theta[..., None, :],
    )
    kernel = sgmcmc.NOGIN(target, 0.1, covariance=kind, num_estimation_steps=0)
    state = tf.constant(x.mean(axis=0))

    @tf.function(jit_compile=True, autograph=False)
    def step(state: tf.Tensor, results: Any, seed: tf.Tensor) -> Any:
        return kernel.one_step(state, results, seed)

    results, moved = kernel.bootstrap_results(state), state
    for t in range(2):
        moved, results = step(moved, results, tf.constant([0, t]))
    change = np.abs(moved - state)
    assert np.all(np.isfinite(change)) and np.median(change) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_steps"), [("diag", 300), ("block", 40)])
def test_network(kind: str, num_steps: int) -> None:
    """SGFS runs on a network of 23,860 parameters, and reaches the posterior."""
    result = sgfs_network.run(kind, num_groups=25, num_steps=num_steps, seed=0)
    assert np.all(np.isfinite(result))
    assert result.first_log_prob < -138_000  # of a constant prediction
    assert result.last_log_prob > -30_000
    assert result.accuracy > 0.85
    assert result.num_frozen == 0
