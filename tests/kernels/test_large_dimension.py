"""`diag` and `low_rank` run in 100,000 dimensions, where a D x D matrix would take 40 GB."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

D, N, BATCH = 100_000, 12, 4


@pytest.mark.parametrize("kind", [pytest.param("diag", marks=pytest.mark.slow), "low_rank"])
def test_a_compiled_step(kind: str) -> None:
    x = np.random.default_rng(0).standard_normal((N, D), np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, batch: -0.5 * tf.reduce_sum((batch - theta[..., None, :]) ** 2, axis=-1),
        x,
        BATCH,
        replacement=True,  # compiles faster
        score_fn=lambda theta, batch: batch - theta[..., None, :],
    )
    kernel = sgmcmc.NOGIN(target, 0.1, covariance=kind)
    state = tf.constant(x.mean(axis=0))

    @tf.function(jit_compile=True, autograph=False)
    def step(state: tf.Tensor, results: Any, seed: tf.Tensor) -> Any:
        return kernel.one_step(state, results, seed)

    results, moved = kernel.bootstrap_results(state), state
    for t in range(2):
        moved, results = step(moved, results, tf.constant([0, t]))
    change = np.abs(moved - state)
    assert np.all(np.isfinite(change)) and np.median(change) > 1e-3
