"""Log posteriors of many states: blocks and chunks are bounded, and their sums are right."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.diagnostics.vector_functions import (
    log_prob_of_vectors,
    parameters_of_states,
    value_and_gradient_of_vectors,
)
from tfp_sgmcmc.targets.scores import sum_values

tfb = tfp.bijectors


def seen(num_examples: int, shapes: list[tuple[int, int]]) -> sgmcmc.MinibatchLogProb:
    """A normal mean that records the states and examples of each trace."""

    def log_likelihood(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        shapes.append((*theta.shape[:-1], *x.shape))
        return -0.5 * (x - theta[..., :1]) ** 2

    x = np.random.default_rng(0).standard_normal(num_examples)
    return sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1), log_likelihood, x, 10
    )


@pytest.mark.parametrize(("num_examples", "most"), [(1000, 64), (20_000, 20)])
def test_a_few_states_of_large_data_are_padded_little(num_examples: int, most: int) -> None:
    shapes: list[tuple[int, int]] = []
    target, like = seen(num_examples, shapes), tf.zeros([2], tf.float64)
    theta = np.random.default_rng(1).standard_normal([17, 2])
    value, gradient = value_and_gradient_of_vectors(target, like, in_blocks=False)(theta)
    assert shapes and {shape[0] for shape in shapes} == {most}
    np.testing.assert_allclose(value, target(tf.constant(theta)), rtol=1e-12)
    assert gradient.shape == (17, 2)


def test_chunks_of_large_data_fit_a_cache() -> None:
    """Chunks of 655 examples at 100 states; data that need one evaluation are not cut."""
    shapes: list[tuple[int, int]] = []
    target, like = seen(20_000, shapes), tf.zeros([2], tf.float64)
    theta = np.random.default_rng(1).standard_normal([100, 2])
    found = log_prob_of_vectors(target, like)(theta)
    assert shapes and all(states * examples <= 2**16 for states, examples in shapes)
    np.testing.assert_allclose(found, target(tf.constant(theta)), rtol=1e-12)
    sizes = []
    sum_values(lambda s, start, size: sizes.append(size) or s[:, 0], tf.zeros([100, 2]), 10_000)
    assert sizes == [10_000]


def test_parameters_of_states_with_any_leading_axes() -> None:
    """They are those of the bijector, and the program is traced once."""
    traces = []

    def log_prior(mean: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_sum(mean**2, axis=-1) - scale

    class Traced(tfb.Exp):
        def _forward(self, x: tf.Tensor) -> tf.Tensor:
            traces.append(x.shape)
            return super()._forward(x)

    bijector = {"scale": Traced()}
    target = sgmcmc.MinibatchLogProb(
        log_prior, lambda mean, scale, y: 0 * y * scale[..., None], np.ones(3), bijector=bijector
    )
    like = {"mean": tf.zeros([2], tf.float64), "scale": tf.zeros([], tf.float64)}
    parameters = parameters_of_states(target, like)
    del traces[:]
    for lead in ((), (3,), (700, 4)):
        rng = np.random.default_rng(0)
        state = {k: tf.constant(rng.normal(size=lead + tuple(x.shape))) for k, x in like.items()}
        found = parameters(state)
        np.testing.assert_array_equal(found["mean"], state["mean"])
        np.testing.assert_allclose(found["scale"], np.exp(state["scale"]), rtol=1e-14)
    again = parameters_of_states(target, like)(state)
    np.testing.assert_array_equal(again["scale"], found["scale"])
    assert not traces
