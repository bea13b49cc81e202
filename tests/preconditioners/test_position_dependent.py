"""The natural gradient of ICA against explicit matrices and finite differences."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.harness.matrices import check_against_explicit, divergence_by_differences, local
from tfp_sgmcmc.preconditioners import NaturalGradientICA

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_natural_gradient_ica(size: int) -> None:
    """M(W) G = G W^T W as a d^2 x d^2 matrix, and div M = (d + 1) W by finite differences."""
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
