"""Constant preconditioners agree with explicit matrices."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.harness.matrices import check_against_explicit, local
from tfp_sgmcmc import preconditioners
from tfp_sgmcmc.preconditioners import Diagonal, FullMatrix

GENERATOR = np.random.default_rng(0)
SPD = np.array([[2.0, 0.3, -0.4], [0.3, 1.0, 0.2], [-0.4, 0.2, 0.5]])


@pytest.mark.parametrize("scale", [2.5, [0.5, 2.0, 3.0]])
def test_diagonal(scale: Any) -> None:
    theta = GENERATOR.standard_normal(3)
    expected = np.diag(np.broadcast_to(scale, [3]))
    matrix = local(Diagonal(scale), tf.constant(theta))
    check_against_explicit(matrix, expected, theta)
    assert matrix.divergence is None


def test_diagonal_by_part() -> None:
    state = {"a": tf.zeros([2], tf.float64), "b": tf.zeros([2, 2], tf.float64)}
    matrix = local(Diagonal({"a": [1.0, 4.0], "b": 9.0}), state)
    root = matrix.sqrt_multiply(tf.nest.map_structure(tf.ones_like, state))
    np.testing.assert_allclose(root["a"], [1.0, 2.0])
    np.testing.assert_allclose(root["b"], np.full([2, 2], 3.0))
    np.testing.assert_allclose(matrix.log_det, np.log(4.0) + 4 * np.log(9.0))
    quadratic = matrix.inverse_quadratic(tf.nest.map_structure(tf.ones_like, state))
    np.testing.assert_allclose(quadratic, 1.25 + 4 / 9)


def test_full_matrix() -> None:
    theta = GENERATOR.standard_normal(3)
    check_against_explicit(local(FullMatrix(SPD), tf.constant(theta)), SPD, theta)


@pytest.mark.parametrize("chains", [(), (5,), (2, 3)])
def test_full_matrix_over_parts_and_chains(chains: tuple[int, ...]) -> None:
    """Parts are in the order of `tf.nest.flatten`, with row-major entries."""
    state = {
        "b": GENERATOR.standard_normal([*chains, 2]),
        "a": GENERATOR.standard_normal([*chains]),
    }
    flat = np.concatenate([state["a"][..., np.newaxis], state["b"]], axis=-1)
    matrix = local(FullMatrix(SPD), tf.nest.map_structure(tf.constant, state), len(chains))
    product = matrix.multiply(tf.nest.map_structure(tf.constant, state))
    np.testing.assert_allclose(product["a"], (flat @ SPD)[..., 0])
    np.testing.assert_allclose(product["b"], (flat @ SPD)[..., 1:])
    root = matrix.sqrt_multiply(tf.nest.map_structure(tf.constant, state))
    np.testing.assert_allclose(root["b"], (flat @ np.linalg.cholesky(SPD).T)[..., 1:])
    quadratic = np.sum(flat * np.linalg.solve(SPD, flat[..., np.newaxis])[..., 0], axis=-1)
    quadratics = matrix.inverse_quadratic(tf.nest.map_structure(tf.constant, state))
    np.testing.assert_allclose(np.reshape(quadratics, chains), quadratic)


def inverse_in_float32(condition: float) -> np.ndarray:
    """Returns TensorFlow's `float32` inverse of a matrix of the given condition number."""
    basis, _ = np.linalg.qr(np.random.default_rng(1).standard_normal([60, 60]))
    hessian = (basis * np.geomspace(1.0, condition, 60)) @ basis.T
    return tf.linalg.inv(tf.constant(hessian, tf.float32)).numpy().astype(np.float64)


def test_full_matrix_takes_a_float32_inverse() -> None:
    """The inverse is not exactly symmetric. All operations use its symmetric part."""
    inverse = inverse_in_float32(1e5)
    assert np.abs(inverse - inverse.T).max() > 1e-5 * np.abs(inverse).max()
    symmetric = (inverse + inverse.T) / 2
    theta = GENERATOR.standard_normal(60)
    check_against_explicit(local(FullMatrix(inverse), tf.constant(theta)), symmetric, theta)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_full_matrix_refuses_a_small_asymmetry_in_any_unit(scale: float) -> None:
    """An asymmetry of one per cent of a correlation is refused in any unit."""
    units = np.array([scale, 1.0, 1.0])
    asymmetric = SPD + np.sqrt(2.0) * 0.01 * np.outer([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    FullMatrix(SPD * np.outer(units, units))
    with pytest.raises(ValueError, match="matrix must be symmetric"):
        FullMatrix(asymmetric * np.outer(units, units))


def test_scales_that_are_no_numbers() -> None:
    with pytest.raises(TypeError, match="scale must be a number. Received: 'large'"):
        Diagonal("large")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Diagonal(0.0), "scale must be a positive finite number. Received: 0.0"),
        (lambda: Diagonal([1.0, -2.0]), "scale must be a positive finite number. Received: -2.0"),
        (lambda: Diagonal({"a": float("nan")}), "scale must be a positive finite .*: nan"),
        (lambda: Diagonal(np.array([1.0, np.inf])), "scale must be a positive finite .*: .*inf.*"),
        (lambda: FullMatrix(np.ones([2, 3])), r"matrix must be square, \[D, D\].*: shape \(2, 3\)"),
        (lambda: FullMatrix([1.0, 2.0]), r"matrix must be square, .* Received: shape \(2,\)"),
        (lambda: FullMatrix([[1.0, 0.5], [0.0, 1.0]]), "matrix must be symmetric"),
        (
            lambda: FullMatrix([[1.0, 2.0], [2.0, 1.0]]),
            "matrix must be positive definite.* smallest eigenvalue is -1",
        ),
        (
            lambda: FullMatrix([[np.nan]]),
            "matrix must be finite. Received: NaN",
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_full_matrix_of_another_size_than_the_state() -> None:
    with pytest.raises(ValueError, match=r"2 entries. Received: shape \(3, 3\)"):
        local(FullMatrix(SPD), tf.zeros([2]))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ([1.0, 2.0], r"scale must have the structure of the state, .* Received: \[1.0, 2.0\]"),
        (np.ones([2]), r"scale must broadcast .* \(3,\). Received: shape \(2,\)"),
        ({"a": 1.0}, "scale must have the structure of the state, .* Received: {'a': 1.0}"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, "scale must have the structure of the state"),
        ({"a": np.ones([4, 3]), "b": 1.0}, r"scale must broadcast .* Received: shape \(4, 3\)"),
    ],
)
def test_diagonal_of_another_shape_than_the_state(scale: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        local(Diagonal(scale), {"a": tf.zeros([3]), "b": tf.zeros([])})


def test_as_preconditioner() -> None:
    given = FullMatrix(SPD)
    assert preconditioners.as_preconditioner(given) is given
    identity = local(preconditioners.as_preconditioner(None), tf.zeros([2]))
    np.testing.assert_array_equal(identity.multiply(tf.constant([1.0, 2.0])), [1.0, 2.0])
    assert float(identity.log_det) == 0.0
