"""Chains with minibatches of their own must not depend on one another."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

RNG = np.random.default_rng(0)
DATA = {"group": np.arange(40) % 4, "y": RNG.normal(size=40).astype(np.float32)}


def hierarchical(gather: Any, **options: Any) -> sgmcmc.MinibatchLogProb:
    def log_likelihood(a: tf.Tensor, batch: Any) -> tf.Tensor:
        return -0.5 * (batch["y"] - gather(a, batch["group"])) ** 2

    return sgmcmc.MinibatchLogProb(
        lambda a: -0.5 * tf.reduce_sum(a**2, axis=-1), log_likelihood, DATA, 5, **options
    )


def right(a: tf.Tensor, group: tf.Tensor) -> tf.Tensor:
    if group.shape.rank == 1:  # a batch that all chains share
        return tf.gather(a, group, axis=-1)
    return tf.gather(a, group, axis=-1, batch_dims=group.shape.rank - 1)


def without_chains(a: tf.Tensor, group: tf.Tensor) -> tf.Tensor:
    return tf.gather(a, group, axis=-1)


def of_the_first_chain(a: tf.Tensor, group: tf.Tensor) -> tf.Tensor:
    """Has the right shape."""
    one = tf.reshape(a, [-1, 4])[0]
    return tf.gather(one, group) + 0 * a[..., :1]


@pytest.mark.parametrize(
    "shape", [[3, 4], *(pytest.param(s, marks=pytest.mark.thorough) for s in ([1, 4], [2, 3, 4]))]
)
def test_chains_that_mix_are_refused(shape: list[int]) -> None:
    """By an error of the shapes, or by the values where shapes hide it."""
    a = tf.constant(RNG.normal(size=shape).astype(np.float32))
    sgmcmc.preflight(hierarchical(right), a)
    with pytest.raises((TypeError, ValueError)) as caught:
        sgmcmc.preflight(hierarchical(without_chains), a)
    assert "batch_dims=1" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    if shape[0] > 1 and len(shape) == 2:
        with pytest.raises(ValueError, match="for each chain what it returns for that chain alone"):
            sgmcmc.preflight(hierarchical(of_the_first_chain), a)
    sgmcmc.preflight(hierarchical(without_chains, shared_batch=True), a)
