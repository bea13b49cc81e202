"""Explicit matrices of preconditioners, and their divergence by finite differences."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.preconditioners import LocalMatrix, Preconditioner


def local(preconditioner: Preconditioner, state: Any, chain_ndims: int = 0) -> LocalMatrix:
    return preconditioner.evaluate(state, chain_ndims)[0]


def explicit(operation: Any, like: np.ndarray) -> np.ndarray:
    """Returns the matrix of a linear map between arrays with the shape of `like`."""
    basis = np.eye(like.size).reshape(like.size, *like.shape)
    columns = [np.ravel(operation(tf.constant(e, tf.float64))) for e in basis]
    return np.stack(columns, axis=1)


def check_against_explicit(matrix: LocalMatrix, expected: np.ndarray, like: np.ndarray) -> None:
    """Checks multiply, S S^T = M, v^T M^-1 v and log det M against the matrix `expected`."""
    np.testing.assert_allclose(explicit(matrix.multiply, like), expected, rtol=1e-9, atol=1e-12)
    factor = explicit(matrix.sqrt_multiply, like)
    np.testing.assert_allclose(factor @ factor.T, expected, rtol=1e-9, atol=1e-12)
    v = np.random.default_rng(0).standard_normal(like.shape)
    quadratic = v.ravel() @ np.linalg.solve(expected, v.ravel())
    np.testing.assert_allclose(matrix.inverse_quadratic(tf.constant(v)), quadratic, rtol=1e-9)
    np.testing.assert_allclose(matrix.log_det, np.linalg.slogdet(expected)[1], rtol=1e-9)


def divergence_by_differences(multiply_at: Any, theta: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """Computes sum_j d M_ij / d theta_j by central differences of explicit matrices."""
    total = np.zeros(theta.size)
    for j in range(theta.size):
        shift = np.zeros(theta.size)
        shift[j] = h
        shift = shift.reshape(theta.shape)
        up, down = (explicit(multiply_at(theta + s), theta) for s in (shift, -shift))
        total += (up - down)[:, j] / (2 * h)
    return total.reshape(theta.shape)
