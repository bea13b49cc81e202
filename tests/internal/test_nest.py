"""Sums over the entries of states, compiled by XLA and not, and calls with their parts."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.internal.nest import call_with_state, convert_state, squared_norm, sum_entries


@pytest.mark.parametrize(
    ("shape", "chain_ndims", "jit"),
    [
        *(([3, 2, 10_003], 2, jit) for jit in (True, False)),
        *(
            pytest.param(*case, jit, marks=[pytest.mark.thorough] * jit)
            for case in (([100, 160], 0), ([10_007], 0), ([7], 0), ([], 0), ([3], 1))
            for jit in (True, False)
        ),
    ],
)
def test_sums_and_their_gradients(shape, chain_ndims, jit):
    x = np.random.default_rng(0).normal(size=shape)
    weights = np.random.default_rng(1).normal(size=shape[:chain_ndims])

    @tf.function(jit_compile=jit, autograph=False)
    def value_and_derivatives(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = sum_entries(x**3, chain_ndims)
                total = tf.reduce_sum(weights * value)
            gradient = inner.gradient(total, x)
        return value, gradient, outer.gradient(gradient, x), squared_norm(x, chain_ndims)

    value, gradient, second, norm = value_and_derivatives(tf.constant(x))
    axes = tuple(range(chain_ndims, len(shape)))
    of_entries = np.expand_dims(weights, axes)
    np.testing.assert_allclose(value, np.sum(x**3, axes), rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(gradient, 3 * of_entries * x**2, rtol=1e-12)
    np.testing.assert_allclose(second, 6 * of_entries * x, rtol=1e-12)
    np.testing.assert_allclose(norm, np.sum(x**2, axes), rtol=1e-12)


def test_a_sum_in_parts_is_as_exact_as_a_single_one():
    x = np.random.default_rng(0).normal(size=[20_003]).astype(np.float32)
    parts = tf.function(sum_entries, jit_compile=True, autograph=False)(tf.constant(x))
    assert abs(parts - np.sum(x.astype(np.float64))) < 1e-6 * np.sum(np.abs(x))


class Named(NamedTuple):
    """A state of two parts."""

    a: int
    b: int


@pytest.mark.parametrize(
    ("fn", "extra"),
    [
        (lambda b, a: (a, b), {}),
        (lambda *parts: parts, {}),
        (lambda x, y: (x, y), {}),
        (lambda **parts: (parts["a"], parts["b"]), {}),
        (lambda batch, b, a: (a, b, batch), {"batch": 3}),
        (lambda *parts: parts, {"batch": 3}),
        (max, {}),  # has no signature
    ],
)
def test_named_tuples_go_by_name_where_the_function_takes_the_names(fn, extra):
    expected = 2 if fn is max else (1, 2, *extra.values())
    assert call_with_state(fn, Named(1, 2), **extra) == expected


def test_names_of_parts_that_no_call_can_take_are_told():
    with pytest.raises(TypeError, match=r"strings as names of its parts.* Received: \[1, 2\]"):
        call_with_state(lambda a, b: a, {1: 0.5, 2: 0.5})
    with pytest.raises(TypeError, match="initial_state must have names that can be sorted"):
        convert_state({1: 0.5, "a": 0.5}, called="initial_state")
