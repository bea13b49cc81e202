"""Conjugate gradients and the Chebyshev root: errors, zeros, and rates of convergence."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from tests.harness.graphs import trace
from tfp_sgmcmc.covariance import Diag, Full, LowRank, Solver
from tfp_sgmcmc.covariance.matrices import DenseMatrix, LowRankMatrix, as_solver, chebyshev_sqrt

GENERATOR = np.random.default_rng(0)


def definite(size: int, condition: float, *chains: int) -> np.ndarray:
    """Returns matrices with eigenvalues spread evenly in logarithms over [1, condition]."""
    basis = np.linalg.qr(GENERATOR.standard_normal([*chains, size, size]))[0]
    values = np.geomspace(1.0, condition, size)
    return (basis * values) @ np.swapaxes(basis, -1, -2)


def solve_counting(solver: Solver, matrix: np.ndarray, v: np.ndarray, inverse: Any = None) -> Any:
    """Returns the solution by conjugate gradients, and the number of products it took."""
    count = 0

    def multiply(x: tf.Tensor) -> tf.Tensor:
        nonlocal count
        count += 1
        return tf.linalg.matvec(tf.constant(matrix), x)

    def precondition(r: tf.Tensor) -> tf.Tensor:
        return r if inverse is None else tf.linalg.matvec(tf.constant(inverse), r)

    return solver.conjugate_gradient(multiply, tf.constant(v), precondition).numpy(), count


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("condition", [1.0, 10.0, 1e4])
@pytest.mark.parametrize("chains", [(), pytest.param((5,), marks=pytest.mark.thorough), (2, 3)])
def test_conjugate_gradients(chains: tuple[int, ...], condition: float, dtype: Any) -> None:
    """The residual ends below the tolerance, 1e-5 in single and 1e-10 in double precision."""
    matrix = definite(20, condition, *chains)
    v = GENERATOR.standard_normal([*chains, 20])
    x, _ = solve_counting(Solver(), matrix.astype(dtype), v.astype(dtype))
    residual = v - (matrix @ x[..., np.newaxis])[..., 0]
    tolerance = 1e-5 if dtype == np.float32 else 1e-10
    rounding = condition * np.finfo(dtype).eps  # which the recursion for the residual misses
    size = np.linalg.norm(residual, axis=-1) / np.linalg.norm(v, axis=-1)
    assert np.all(size <= tolerance + 10 * rounding)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_chains_that_need_nothing_wait_without_nan(jit: bool) -> None:
    """A chain with v = 0 gives exactly 0, and a chain that is solved at once does not change."""
    matrix = definite(6, 100.0, 4)
    matrix[1] = np.eye(6)
    v = GENERATOR.standard_normal([4, 6])
    v[0] = 0.0

    def solve(v: tf.Tensor) -> tf.Tensor:
        dense = DenseMatrix(tf.constant(matrix), Solver("cg"))
        return dense.solve(tf.zeros_like(v), tf.constant(1.0, tf.float64), v)

    x = tf.function(solve, jit_compile=jit, autograph=False)(tf.constant(v)).numpy()
    np.testing.assert_array_equal(x[0], 0)
    np.testing.assert_allclose(x[1], v[1], rtol=1e-14)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, v[..., np.newaxis])[..., 0], rtol=1e-7)


def test_a_chain_that_is_nan_does_not_hold_up_the_others() -> None:
    matrix, v = definite(6, 10.0, 3), GENERATOR.standard_normal([3, 6])
    _, without = solve_counting(Solver(), matrix, v)
    v[1] = np.nan
    x, count = solve_counting(Solver(), matrix, v)
    assert count <= without and np.all(np.isnan(x[1]))
    expected = np.linalg.solve(matrix, v[..., np.newaxis])[..., 0]
    np.testing.assert_allclose(x[[0, 2]], expected[[0, 2]], rtol=1e-8)


def test_tolerance_and_max_iterations() -> None:
    matrix, v = definite(30, 1e3), GENERATOR.standard_normal(30)
    counts = [solve_counting(Solver(tolerance=t), matrix, v)[1] for t in (1e-2, 1e-6, 1e-10)]
    assert counts[0] < counts[1] < counts[2]
    x, count = solve_counting(Solver(max_iterations=3), matrix, v)
    assert count == 3
    assert np.linalg.norm(v - matrix @ x) > 1e-3 * np.linalg.norm(v)
    np.testing.assert_array_equal(solve_counting(Solver(), matrix, 0 * v)[0], 0)
    assert solve_counting(Solver(), matrix, 0 * v)[1] == 0


def test_an_inverse_saves_iterations() -> None:
    """The exact inverse takes one iteration; that of a matrix a few percent off takes few."""
    matrix, v = definite(40, 1e4), GENERATOR.standard_normal(40)
    root = scipy.linalg.sqrtm(matrix)
    nearby = matrix + 0.03 * root @ definite(40, 3.0) @ root
    _, plain = solve_counting(Solver(), matrix, v)
    x, exact = solve_counting(Solver(), matrix, v, np.linalg.inv(matrix))
    y, lagged = solve_counting(Solver(), matrix, v, np.linalg.inv(nearby))
    assert exact <= 2 and lagged <= 10 < plain
    for found in (x, y):
        np.testing.assert_allclose(found, np.linalg.solve(matrix, v), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("kind", ["full", "few rows", "many rows"])
def test_auto(kind: str, jit: bool) -> None:
    """Takes conjugate gradients if XLA compiles, or for more rows than entries."""
    rows = {"few rows": 4, "many rows": 20}.get(kind, 8)

    def solve(rows: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        if kind == "full":
            matrix: Any = DenseMatrix(rows, Solver())
        else:
            matrix = LowRankMatrix(rows, tf.ones([tf.shape(rows)[0]]), Solver())
        return matrix.solve(tf.ones_like(v), tf.constant(1.0), v)

    nodes = trace(solve, tf.TensorSpec([rows, 8]), tf.TensorSpec([8]), jit=jit)
    found = {node.op for node in nodes}
    factorises = not jit and kind != "many rows"
    assert ("Cholesky" in found) == factorises
    assert ("StatelessWhile" in found or "While" in found) != factorises


@pytest.mark.parametrize(
    ("method", "factorises"),
    [("cg", False), ("lagged_cholesky", False), ("cholesky", True), ("woodbury", True)],
)
def test_other_methods_are_the_same_everywhere(method: str, factorises: bool) -> None:
    assert Solver(method).factorises() is Solver(method).factorises(worthwhile=False) is factorises


def test_one_entry() -> None:
    """Every method solves a system with D = 1."""
    one = tf.constant([[2.0]], tf.float64)
    v, shift, scale = (tf.constant(x, tf.float64) for x in ([3.0], [1.0], 0.5))
    weights = tf.constant([0.5], tf.float64)
    for matrix in (
        *(DenseMatrix(one, Solver(method)) for method in ("cg", "cholesky", "lagged_cholesky")),
        *(LowRankMatrix(one, weights, Solver(method)) for method in ("cg", "woodbury")),
    ):
        np.testing.assert_allclose(matrix.solve(shift, scale, v), [1.5], rtol=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    "condition",
    [1.5, pytest.param(4.0, marks=pytest.mark.thorough), 20.0]
    + [pytest.param(100.0, marks=pytest.mark.thorough), 1000.0],
)
def test_error_of_the_series_is_that_of_chebyshev_interpolation(
    condition: float, sign: float
) -> None:
    """The bound is 4 M rho^-n / (rho - 1) with n = degree - 1 (Trefethen 2013, theorem 8.2).

    sqrt(a + b x), whose squares at the ends have the ratio k, is analytic inside the ellipse of
    rho = (sqrt k + 1) / (sqrt k - 1), and there at most M = sqrt(k + 1) times its least value.
    """
    size = 25
    basis = np.linalg.qr(GENERATOR.standard_normal([size, size]))[0]
    values = np.linspace(0.0, 1.0, size)  # eigenvalues of Sigma, which reach the bound
    sigma = (basis * values) @ basis.T
    # Eigenvalues of a I + b Sigma run from 1 to `condition`.
    shift, scale = (1.0, condition - 1) if sign > 0 else (condition, 1 - condition)
    exact = scipy.linalg.sqrtm(shift * np.eye(size) + scale * sigma)
    rho = (condition**0.5 + 1) / (condition**0.5 - 1)
    numbers = [tf.constant(x, tf.float64) for x in (shift, scale, 1.0)]
    eye, errors = tf.eye(size, dtype=tf.float64), {}
    for degree in (4, 8, 16, 32):
        root = chebyshev_sqrt(lambda x: x @ tf.constant(sigma), *numbers, eye, degree)
        errors[degree] = np.linalg.norm(root - exact, 2)
        bound = 4 * (condition + 1) ** 0.5 * rho ** (1 - degree) / (rho - 1)
        assert errors[degree] <= bound + 1e-12 * condition
    # Negative control: the error of few terms is at least a thousandth of the bound.
    assert errors[4] > 1e-3 * 4 * (condition + 1) ** 0.5 * rho**-3 / (rho - 1)


def test_the_root_of_numbers_for_each_chain_and_of_zero() -> None:
    v = tf.constant(GENERATOR.standard_normal([3, 2, 4]))
    numbers = [tf.constant(GENERATOR.uniform(1, 2, [3, 2, 1])) for _ in range(3)]
    shift, scale, bound = numbers
    found = chebyshev_sqrt(lambda x: bound * x, *numbers, v)
    np.testing.assert_allclose(found, tf.sqrt(shift + scale * bound) * v, rtol=1e-12)
    zero = tf.zeros([], tf.float64)
    found = chebyshev_sqrt(lambda x: 0.0 * x, zero + 4.0, zero + 1.0, zero, v)
    np.testing.assert_allclose(found, 2 * v, rtol=1e-12)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        ("lu", "'auto', 'cg', 'cholesky', 'lagged_cholesky', 'woodbury'.*Received: 'lu'"),
        (3, "solver must be one of .*auto.* Received: 3"),
        (Solver(tolerance=0.0), "tolerance must be in \\(0, 1\\). Received: 0.0"),
        (Solver(tolerance=-1e-3), "Received: -0.001"),
        (Solver(tolerance=1.0), "Received: 1.0"),
        (Solver(tolerance=float("nan")), "Received: nan"),
        (Solver(max_iterations=0), "max_iterations must be at least 1. Received: 0"),
        (Solver("lagged_cholesky", refactor_every=0), "refactor_every must be at least 1"),
    ],
)
def test_solvers_that_are_none(solver: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_solver(solver)
    for kind in (Full, LowRank, Diag):
        with pytest.raises(ValueError, match=message):
            kind(solver=solver)


def test_products_with_an_unknown_number_of_chains() -> None:
    """A product may have lost the shape of a single chain, as `[None, D]`, which a loop refuses."""
    matrix, v = definite(6, 10.0, 1), tf.constant(GENERATOR.standard_normal([1, 6]))

    def both(given: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def multiply(x: tf.Tensor) -> tf.Tensor:
            return tf.linalg.matvec(given, x)

        one, bound = tf.ones([], v.dtype), tf.constant(10.0, v.dtype)
        root = chebyshev_sqrt(multiply, one, one, bound, v)
        return root, Solver().conjugate_gradient(multiply, v, tf.identity)

    unknown = tf.TensorSpec([None, 6, 6], tf.float64)
    root, solution = tf.function(both, input_signature=[unknown], autograph=False)(
        tf.constant(matrix)
    )
    expected = scipy.linalg.sqrtm(np.eye(6) + matrix[0]) @ v[0].numpy()
    # 32 terms leave ((sqrt(11) - 1) / (sqrt(11) + 1))^32 = 2e-9 of the largest root.
    np.testing.assert_allclose(root[0], expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(matrix[0] @ solution[0].numpy(), v[0], rtol=1e-6, atol=1e-6)
