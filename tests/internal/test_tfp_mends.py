"""Hessians through TensorFlow Probability's gradients are right, and compiled once."""

import importlib
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.harness.fast_settings import fast_settings
from tests.harness.programs import num_maps
from tfp_sgmcmc.internal import tfp_mends
from tfp_sgmcmc.targets.base import value_and_gradient

tfd = tfp.distributions

Y = np.arange(1.0, 6.0)


def student_t(theta: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(
        tfd.StudentT(tf.exp(theta), tf.zeros([], theta.dtype), 1.0).log_prob(
            tf.cast(Y, theta.dtype)
        ),
        axis=-1,
    )


def negative_binomial(theta: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(
        tfd.NegativeBinomial(tf.exp(theta), logits=0.3).log_prob(tf.cast(Y, theta.dtype)), axis=-1
    )


@pytest.mark.parametrize("log_prob", fast_settings([student_t, negative_binomial], student_t))
def test_another_value_does_not_compile_the_hessian_again(
    log_prob: Callable[[tf.Tensor], tf.Tensor],
) -> None:
    """Two chains have parameters that are broadcast against the data."""
    tfp_mends.mend_tfp()
    hessian = tf.function(
        lambda theta: value_and_gradient(log_prob, theta, tf.ones([2, 1]))[2], jit_compile=True
    )
    hessian(tf.constant([[0.1], [0.2]]))
    before = num_maps()
    found = [hessian(tf.constant([[x], [x + 0.1]])) for x in (0.3, 0.5, 0.7, 0.9)]
    assert num_maps() - before < 4  # four programs take 12 and 48
    around = [log_prob(tf.constant([[x]], tf.float64)) for x in (0.49, 0.5, 0.51)]
    expected = (around[0] - 2 * around[1] + around[2]) / 0.01**2
    np.testing.assert_allclose(found[1][0], expected, rtol=1e-3)


@pytest.mark.parametrize(
    "shapes", [([3], [2, 1]), ([], [4, 3]), ([1, 3], [2, 1], [3]), ([2, 3], [2, 3])]
)
def test_gradients_are_summed_as_without_the_mend(shapes: tuple[list[int], ...]) -> None:
    """Against gradients of a product, which TensorFlow's own operations broadcast."""
    tfp_mends.mend_tfp()
    generator = np.random.default_rng(0)
    parts = [tf.constant(generator.standard_normal(shape)) for shape in shapes]
    with tf.GradientTape() as tape:
        tape.watch(parts)
        product = parts[0]
        for x in parts[1:]:
            product = product * x
    others = [product / x for x in parts]  # the gradient for each entry of the full shape
    module = importlib.import_module("tensorflow_probability.python.math.generic")
    found = module.fix_gradient_for_broadcasting(parts, others)
    for x, g in zip(found, tape.gradient(product, parts), strict=True):
        np.testing.assert_allclose(x, g, rtol=1e-12)
