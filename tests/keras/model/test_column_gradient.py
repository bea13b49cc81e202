"""Gradients with respect to columns of outputs have the same values, in a loop under XLA."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.keras.model.example_scores import with_stored_gradient

X = np.random.default_rng(0).normal(size=[6, 4])
Y = tf.constant(np.arange(6) % 2, tf.float64)


def derivatives(w, of_outputs):
    """Returns a logistic log likelihood, its gradient and a product with its Hessian."""
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            logits = of_outputs(tf.matmul(X, w))[:, 0]
            value = tf.reduce_sum(Y * logits - tf.math.softplus(logits))
        gradient = inner.gradient(value, w)
    return value, gradient, outer.gradient(gradient, w)


@pytest.mark.parametrize("jit", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_derivatives_are_those_without(jit):
    w = tf.constant(np.random.default_rng(1).normal(size=[4, 1]))
    expected = derivatives(w, lambda y: y)
    found = tf.function(derivatives, jit_compile=jit, autograph=False)(w, with_stored_gradient)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize(
    "sigmoid", [pytest.param(keras.activations.sigmoid, marks=pytest.mark.thorough), tf.nn.sigmoid]
)
def test_crossentropies_of_probabilities_still_see_logits(sigmoid):
    """Without logits, they clip probabilities near 0 and 1, which then have no gradient."""
    x = tf.constant([[30.0], [-30.0], [1.0], [2.0]])
    y = tf.constant([[0.0], [1.0], [1.0], [0.0]])
    loss = keras.losses.BinaryCrossentropy(reduction="sum")

    @tf.function(jit_compile=True, autograph=False)
    def gradient(w, of_outputs):
        with tf.GradientTape() as tape:
            tape.watch(w)
            value = loss(y, of_outputs(sigmoid(x * w)))
        return tape.gradient(value, w)

    expected = np.sum(x * (1 / (1 + np.exp(-x)) - y))
    w = tf.constant(1.0)
    np.testing.assert_allclose(gradient(w, with_stored_gradient), expected, rtol=1e-5)
    # Control: the same outputs without logits.
    assert gradient(w, lambda p: tf.where(p < 2, p, 0.0)) < 0.1 * expected


def test_only_columns_and_only_compiled_by_xla():
    def while_loops(shape, jit):
        @tf.function(jit_compile=jit, autograph=False)
        def gradient(y):
            with tf.GradientTape() as tape:
                tape.watch(y)
                total = tf.reduce_sum(with_stored_gradient([y])[0] ** 2)
            return tape.gradient(total, y)

        graph = gradient.get_concrete_function(tf.TensorSpec(shape, tf.float32)).graph
        return sum(op.type in ("While", "StatelessWhile") for op in graph.get_operations())

    on_cpu = not tf.config.list_logical_devices("GPU")
    assert while_loops([6, 1], jit=True) == on_cpu
    assert while_loops([6, 2], jit=True) == 0
    assert while_loops([6], jit=True) == 0
    assert while_loops([6, 1], jit=False) == 0
