"""Groups of a few chains at a time give the same estimates as all chains at once."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.targets.scores import chains_per_group

N, D, n = 4000, 60, 1000
GENERATOR = np.random.default_rng(0)
DATA = {"x": GENERATOR.standard_normal([N, D]), "y": GENERATOR.integers(0, 2, N).astype(np.float64)}


def seen(chains: list[Any]) -> sgmcmc.MinibatchLogProb:
    """A logistic regression that records how many chains its log likelihood is called with."""

    def log_likelihood(theta: tf.Tensor, offset: tf.Tensor, batch: Any) -> tf.Tensor:
        chains.append(theta.shape[0])
        logits = tf.linalg.matvec(batch["x"], theta) + offset[..., tf.newaxis]
        return batch["y"] * logits - tf.math.softplus(logits)

    return sgmcmc.MinibatchLogProb(
        lambda theta, offset: -0.5 * tf.reduce_sum(theta**2, axis=-1) - offset**2,
        log_likelihood,
        DATA,
        n,
    )


@pytest.mark.parametrize(
    "num_chains, together", [(20, 5), pytest.param(23, 23, marks=pytest.mark.thorough)]
)
def test_groups_are_all_chains_at_once(num_chains: int, together: int) -> None:
    """XLA takes equal groups whose minibatches fit a cache; estimates are the same to rounding."""
    shapes = ([num_chains, D], [num_chains])
    state = [tf.constant(GENERATOR.standard_normal(shape)) for shape in shapes]
    chains: list[int] = []
    target = seen(chains)

    def estimate(state: Any) -> Any:
        return target.estimate(state, tf.constant([1, 2]), with_scores=False)[:2]

    expected = estimate(state)
    assert set(chains) == {num_chains}
    chains.clear()
    got = tf.function(estimate, jit_compile=True, autograph=False)(state)
    assert set(chains) == {together}
    for x, y in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "chain_shape, batch_bytes, expected",
    [
        ([], 2**30, None),
        ([4, 16], 2**30, None),
        ([16], 2**18, None),  # all fit
        ([64], 2**18, 16),
        ([9], 2**20, 3),
        ([7], 2**20, None),  # nothing divides 7
        ([8], 2**23, 2),  # nothing fits
        ([2], 2**23, None),
    ],
)
def test_groups_fit_the_cache(
    chain_shape: list[int], batch_bytes: int, expected: int | None
) -> None:
    assert chains_per_group(chain_shape, batch_bytes) == expected
