"""Preconditioners against explicit matrices and finite differences."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc import preconditioners
from tfp_sgmcmc.preconditioners import (
    Diagonal,
    FullMatrix,
    GradientInfo,
    LocalMatrix,
    NaturalGradientICA,
    Preconditioner,
    RMSprop,
)

GENERATOR = np.random.default_rng(0)
SPD = np.array([[2.0, 0.3, -0.4], [0.3, 1.0, 0.2], [-0.4, 0.2, 0.5]])


def local(preconditioner: Preconditioner, state: Any, chain_ndims: int = 0) -> LocalMatrix:
    return preconditioner.evaluate(state, chain_ndims)[0]


def explicit(operation: Any, like: np.ndarray) -> np.ndarray:
    """The matrix of a linear map between arrays of the shape of `like`."""
    basis = np.eye(like.size).reshape(like.size, *like.shape)
    columns = [np.ravel(operation(tf.constant(e, tf.float64))) for e in basis]
    return np.stack(columns, axis=1)


def check_against_explicit(matrix: LocalMatrix, expected: np.ndarray, like: np.ndarray) -> None:
    """multiply, S S^T = M, v^T M^-1 v and log det M are those of `expected`."""
    np.testing.assert_allclose(explicit(matrix.multiply, like), expected, rtol=1e-9, atol=1e-12)
    factor = explicit(matrix.sqrt_multiply, like)
    np.testing.assert_allclose(factor @ factor.T, expected, rtol=1e-9, atol=1e-12)
    v = GENERATOR.standard_normal(like.shape)
    quadratic = v.ravel() @ np.linalg.solve(expected, v.ravel())
    np.testing.assert_allclose(matrix.inverse_quadratic(tf.constant(v)), quadratic, rtol=1e-9)
    np.testing.assert_allclose(matrix.log_det, np.linalg.slogdet(expected)[1], rtol=1e-9)


def divergence_by_differences(multiply_at: Any, theta: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """sum_j d M_ij / d theta_j, by central differences of explicit matrices."""
    total = np.zeros(theta.size)
    for j in range(theta.size):
        shift = np.zeros(theta.size)
        shift[j] = h
        shift = shift.reshape(theta.shape)
        up, down = (explicit(multiply_at(theta + s), theta) for s in (shift, -shift))
        total += (up - down)[:, j] / (2 * h)
    return total.reshape(theta.shape)


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
    """Entries are ordered as `tf.nest.flatten` orders the parts, row-major within a part."""
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


# RMSprop: V_t = decay V + (1 - decay) (g / N)^2, M = 1 / (epsilon + sqrt V)


def rmsprop_scale(own: np.ndarray, gradient: np.ndarray, total: int, decay: float) -> Any:
    average = decay * own + (1 - decay) * (gradient / total) ** 2
    return average, 1 / (0.1 + np.sqrt(average))


def test_rmsprop_average_and_matrix() -> None:
    preconditioner = RMSprop(decay=0.9, epsilon=0.1, gamma=False)
    state = tf.zeros([2], tf.float64)
    own, expected = preconditioner.init(state), np.zeros(2)
    for _ in range(3):
        gradient = GENERATOR.standard_normal(2) * 50
        matrix, own = preconditioner.evaluate(
            state, 0, own, GradientInfo(tf.constant(gradient), num_examples=20)
        )
        expected, scale = rmsprop_scale(expected, gradient, 20, 0.9)
        np.testing.assert_allclose(own, expected)
        np.testing.assert_allclose(explicit(matrix.multiply, np.zeros(2)), np.diag(scale))
        np.testing.assert_allclose(
            explicit(matrix.sqrt_multiply, np.zeros(2)), np.diag(np.sqrt(scale))
        )
        assert matrix.divergence is None


@pytest.mark.parametrize("decay", [0.0, 0.7, 0.99])
@pytest.mark.parametrize(
    "hessian", [[[-3.0]], np.diag([-3.0, -20.0]), [[-30.0, 8.0], [8.0, -10.0]]]
)
def test_rmsprop_divergence(hessian: Any, decay: float) -> None:
    """With g(theta) = H theta + b and V_{t-1} held fixed.

    With a diagonal Hessian every probe gives div M; with any other, the mean over all probes, which
    are equally likely, does.
    """
    hessian = np.array(hessian)
    size, total = len(hessian), 20
    theta, shift = GENERATOR.standard_normal(size), GENERATOR.standard_normal(size)
    own = GENERATOR.uniform(0.5, 2.0, size)
    preconditioner = RMSprop(decay, epsilon=0.1)
    assert preconditioner.needs_curvature

    def evaluate(theta: np.ndarray, probe: Any) -> LocalMatrix:
        gradient, probe = hessian @ theta + shift, np.array(probe)
        info = GradientInfo(
            tf.constant(gradient), total, tf.constant(probe), tf.constant(hessian @ probe)
        )
        return preconditioner.evaluate(tf.constant(theta), 0, tf.constant(own), info)[0]

    probes = list(itertools.product([-1.0, 1.0], repeat=size))
    estimates = np.array([evaluate(theta, probe).divergence for probe in probes])
    expected = divergence_by_differences(lambda x: evaluate(x, probes[0]).multiply, theta)
    np.testing.assert_allclose(estimates.mean(axis=0), expected, rtol=1e-5)
    if np.all(hessian == np.diag(np.diag(hessian))):
        np.testing.assert_allclose(estimates, np.tile(expected, [len(probes), 1]), rtol=1e-5)


def test_rmsprop_at_a_zero_gradient_is_finite() -> None:
    zero = tf.zeros([2])
    info = GradientInfo(zero, 10, tf.ones([2]), tf.ones([2]))
    matrix, _ = RMSprop(epsilon=0.5).evaluate(zero, 0, zero, info)
    np.testing.assert_array_equal(matrix.divergence, [0.0, 0.0])
    np.testing.assert_array_equal(matrix.multiply(tf.ones([2])), [2.0, 2.0])


def test_scales_that_are_no_numbers() -> None:
    with pytest.raises(TypeError, match="scale is 'large'; positive numbers are expected"):
        Diagonal("large")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Diagonal(0.0), "scale is 0.0; positive finite entries are expected"),
        (lambda: Diagonal([1.0, -2.0]), "scale is -2.0; positive finite"),
        (lambda: Diagonal({"a": float("nan")}), "scale is nan; positive finite"),
        (lambda: Diagonal(np.array([1.0, np.inf])), "scale is .*inf.*; positive finite"),
        (lambda: FullMatrix(np.ones([2, 3])), r"matrix has shape \(2, 3\); a square \[D, D\]"),
        (lambda: FullMatrix([1.0, 2.0]), r"matrix has shape \(2,\)"),
        (lambda: FullMatrix([[1.0, 0.5], [0.0, 1.0]]), "matrix is not symmetric"),
        (
            lambda: FullMatrix([[1.0, 2.0], [2.0, 1.0]]),
            "matrix is not positive definite: its smallest eigenvalue is -1",
        ),
        (lambda: FullMatrix([[np.nan]]), "matrix has NaN or infinite entries"),
        (lambda: RMSprop(decay=1.0), r"decay is 1.0; a number in \[0, 1\)"),
        (lambda: RMSprop(epsilon=0.0), "epsilon is 0.0; a positive number"),
        (lambda: RMSprop(epsilon=float("nan")), "epsilon is nan; a positive number"),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_full_matrix_of_another_size_than_the_state() -> None:
    with pytest.raises(ValueError, match=r"matrix has shape \(3, 3\), but .* 2 entries"):
        local(FullMatrix(SPD), tf.zeros([2]))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ([1.0, 2.0], r"scale is \[1.0, 2.0\], which has not the structure of the state"),
        (np.ones([2]), r"scale has shape \(2,\), which does not broadcast to .* shape \(3,\)"),
        ({"a": 1.0}, "scale is {'a': 1.0}, which has not the structure of the state"),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, "which has not the structure of the state"),
        ({"a": np.ones([4, 3]), "b": 1.0}, r"scale has shape \(4, 3\), which does not broadcast"),
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
