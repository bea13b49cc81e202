"""The natural gradient of ICA agrees with explicit matrices and finite differences."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.harness.matrices import check_against_explicit, divergence_by_differences, local
from tfp_sgmcmc.preconditioners import NaturalGradientICA

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_natural_gradient_ica(size: int) -> None:
    """Compares M(W) with a d^2 x d^2 matrix, and div M = (d + 1) W with finite differences."""
    w = GENERATOR.standard_normal([size, size])
    preconditioner = NaturalGradientICA()

    def multiply_at(w: np.ndarray) -> Any:
        return local(preconditioner, tf.constant(w)).multiply

    matrix = local(preconditioner, tf.constant(w))
    check_against_explicit(matrix, np.kron(np.eye(size), w.T @ w), w)
    np.testing.assert_allclose(
        matrix.divergence, divergence_by_differences(multiply_at, w), rtol=1e-7, atol=1e-8
    )


def test_natural_gradient_ica_by_chain() -> None:
    w = GENERATOR.standard_normal([4, 2, 2])
    v = GENERATOR.standard_normal([4, 2, 2])
    together = local(NaturalGradientICA(), tf.constant(w), 1)
    for i in range(4):
        alone = local(NaturalGradientICA(), tf.constant(w[i]))
        np.testing.assert_allclose(together.multiply(v)[i], alone.multiply(v[i]))
        np.testing.assert_allclose(together.sqrt_multiply(v)[i], alone.sqrt_multiply(v[i]))
        np.testing.assert_allclose(together.divergence[i], alone.divergence)
        np.testing.assert_allclose(together.log_det[i], alone.log_det)
        np.testing.assert_allclose(together.inverse_quadratic(v)[i], alone.inverse_quadratic(v[i]))


def test_natural_gradient_ica_compiles() -> None:
    """Every operation compiles under XLA, with the same results."""
    w, v = (tf.constant(GENERATOR.standard_normal([4, 3, 3])) for _ in range(2))

    def operations(w: tf.Tensor, v: tf.Tensor) -> Any:
        m = local(NaturalGradientICA(), w, 1)
        return m.multiply(v), m.sqrt_multiply(v), m.divergence, m.inverse_quadratic(v), m.log_det

    compiled = tf.function(operations, jit_compile=True, autograph=False)
    for got, expected in zip(compiled(w, v), operations(w, v), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9)
