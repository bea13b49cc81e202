"""Operations with Sigma compared with matrices in NumPy, for every kind and each chain."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from tests.harness.every_minibatch import flat
from tests.harness.fast_settings import fast_settings
from tests.harness.sigma import KINDS, PLACES, SIZE, Example, draw_parts, explicit, make, tensors
from tests.harness.statistics import Rejected, check_covariance
from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import matrices

GENERATOR = np.random.default_rng(0)
CHAINS = [(), pytest.param((3,), marks=pytest.mark.thorough), (2, 2)]
SOLVERS = {
    "full": ["auto", "cg", "cholesky", "lagged_cholesky"],
    "block": ["auto", "cg", "cholesky", "lagged_cholesky"],
    "diag": ["auto"],
    "low_rank": ["auto", "cg", "woodbury"],
}
KINDS_AND_SOLVERS = [(kind, solver) for kind in KINDS for solver in SOLVERS[kind]]


def per_chain(values: np.ndarray) -> np.ndarray:
    """Returns numbers `[chains...]` in a shape that multiplies matrices `[chains..., D, D]`."""
    return np.asarray(values)[..., np.newaxis, np.newaxis]


def root_matrix(sigma: Any, chains: tuple[int, ...], *numbers: Any) -> np.ndarray:
    """Returns the matrix S of `sqrt_multiply`."""
    return explicit(
        tf.function(lambda z: sigma.sqrt_multiply(*numbers, z), autograph=False), chains
    )


def largest(example: Example) -> np.ndarray:
    return np.linalg.eigvalsh(example.matrix)[..., -1]


@pytest.mark.parametrize("chains", CHAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_multiply_and_diag_part(kind: str, chains: tuple[int, ...]) -> None:
    sigma, matrix = make(kind, chains)
    np.testing.assert_allclose(explicit(sigma.multiply, chains), matrix, rtol=1e-10, atol=1e-12)
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    np.testing.assert_allclose(flat(sigma.diag_part(), len(chains)), diagonal, rtol=1e-10)


@pytest.mark.parametrize("chains", CHAINS)
@pytest.mark.parametrize(("kind", "solver"), KINDS_AND_SOLVERS)
def test_solve(kind: str, solver: str, chains: tuple[int, ...]) -> None:
    """Shifts are numbers or diagonals, and scales are shared or one for each chain."""
    sigma, matrix = make(kind, chains, solver)
    v = draw_parts(GENERATOR, *chains)
    own = {k: np.exp(x) for k, x in draw_parts(GENERATOR, *chains).items()}
    shared = {"a": np.array([0.5, 2.0]), "b": np.array(1.5), "w": np.array([[1.0, 2.0]])}
    wide = {k: np.broadcast_to(x, v[k].shape) for k, x in shared.items()}
    scales = GENERATOR.uniform(0.1, 2.0, chains)
    number, one = tf.constant(0.7, tf.float64), np.ones(SIZE)
    for shift, diagonal, scale in [
        (0.7, 0.7 * one, 0.3),
        (number, 0.7 * one, tf.constant(scales)),
        (tensors(own), flat(own, len(chains)), scales),
        (shared, flat(wide, len(chains)), 0.0),
    ]:
        found = flat(sigma.solve(shift, scale, tensors(v)), len(chains))
        system = diagonal[..., np.newaxis] * np.eye(SIZE) + per_chain(scale) * matrix
        expected = np.linalg.solve(system, flat(v, len(chains))[..., np.newaxis])[..., 0]
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    "chains",
    [
        pytest.param((), marks=pytest.mark.thorough),
        pytest.param((3,), marks=pytest.mark.slow),
        (2, 2),
    ],
)
@pytest.mark.parametrize("kind", fast_settings(KINDS, "full", "diag"))
def test_sqrt_multiply(kind: str, chains: tuple[int, ...]) -> None:
    """S S^T = a I + b Sigma for b of both signs, and S is the symmetric root.

    The largest eigenvalue is at most four times the smallest, so the series has errors of 1e-15.
    """
    sigma, matrix = make(kind, chains)
    bound = largest(make(kind, chains))
    for shift, scale in [(bound / 3, 1.0), (bound, -0.75), (2.0, 0.0)]:
        shift = np.asarray(shift)
        s = root_matrix(sigma, chains, tf.constant(shift), scale, tf.constant(bound))
        expected = per_chain(shift) * np.eye(SIZE) + scale * matrix
        tolerance = dict(rtol=1e-11, atol=1e-11 * bound.max())
        np.testing.assert_allclose(s @ np.swapaxes(s, -1, -2), expected, **tolerance)
        for index in np.ndindex(*chains):
            np.testing.assert_allclose(s[index], scipy.linalg.sqrtm(expected[index]), **tolerance)


def test_numbers_of_sqrt_multiply_may_differ_from_chain_to_chain() -> None:
    sigma, matrix = make("low_rank", (3,))
    bound = 1.2 * largest(make("low_rank", (3,)))
    shift, scale = bound * [1.0, 2.0, 0.5], np.array([-0.5, 1.0, 0.7])
    s = root_matrix(sigma, (3,), *(tf.constant(x) for x in (shift, scale, bound)))
    expected = per_chain(shift) * np.eye(SIZE) + per_chain(scale) * matrix
    np.testing.assert_allclose(s @ np.swapaxes(s, -1, -2), expected, rtol=1e-10, atol=1e-10)


def test_negative_eigenvalues_count_as_zero() -> None:
    """This is exact for a diagonal Sigma; for others the series has an error of about 1%."""
    sigma, matrix = make("diag", (2,))
    s = root_matrix(sigma, (2,), 20.0, -1.0, 0.0)
    expected = np.maximum(20 - np.diagonal(matrix, axis1=-2, axis2=-1), 0)
    assert np.any(expected == 0) and np.any(expected > 0)
    np.testing.assert_allclose(s @ s, expected[..., np.newaxis] * np.eye(SIZE), rtol=1e-12)
    sigma, matrix = make("full", ())
    values, vectors = np.linalg.eigh(matrix)
    shift, bound = values[-2], values[-1]
    s = root_matrix(sigma, (), shift, -1.0, bound)
    clipped = (vectors * np.maximum(shift - values, 0)) @ vectors.T
    np.testing.assert_allclose(s @ s.T, clipped, atol=0.02 * bound)


@pytest.mark.parametrize("kind", KINDS)
def test_sample_is_the_root_times_the_normals_of_the_seed(kind: str) -> None:
    sigma, _ = make(kind, (2,))
    bound, seed = largest(make(kind, (2,))), tf.constant([1, 2])
    like = tensors(draw_parts(GENERATOR, 2))
    numbers = (1.0, 0.5, tf.constant(bound))
    z = random.normal_like(like, seed)
    drawn, root = sigma.sample(*numbers, seed), sigma.sqrt_multiply(*numbers, z)
    tf.nest.map_structure(np.testing.assert_array_equal, drawn, root)


@pytest.mark.parametrize("kind", fast_settings(KINDS, "low_rank"))
def test_law_of_draw(kind: str) -> None:
    """Draws 25,000 times from N(0, diag(shift) + scale Sigma) for each of two chains.

    Finds an error of 8% in the variance of any whitened direction.
    """
    chains, copies = (2,), 25_000
    sigma, matrix = make(kind, chains, copies=copies)
    shift = {k: np.exp(x) for k, x in draw_parts(GENERATOR, *chains).items()}
    scale = np.array([0.5, 2.0])
    covariance = per_chain(scale) * matrix
    covariance = covariance + flat(shift, 1)[..., np.newaxis] * np.eye(SIZE)
    wide = {k: np.repeat(x, copies, axis=0) for k, x in shift.items()}
    drawn = sigma.draw(tensors(wide), np.repeat(scale, copies), tf.constant([3, 4]))
    samples = flat(drawn, 1).reshape(2, copies, 1, SIZE)
    for i in range(2):
        check_covariance(samples[i], np.zeros(SIZE), covariance[i], relative_error=0.08)
        with pytest.raises(Rejected):
            check_covariance(samples[i], np.zeros(SIZE), 1.1 * covariance[i], relative_error=0.08)


@pytest.mark.parametrize("chains", CHAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_power_iteration(kind: str, chains: tuple[int, ...]) -> None:
    """k iterations return Sigma^k v, normalised, and |Sigma^k v| / |Sigma^(k-1) v|."""
    sigma, matrix = make(kind, chains)
    v = draw_parts(GENERATOR, *chains)
    exact = largest(make(kind, chains))
    begin, last = tensors(v), np.zeros(chains)
    for k in range(1, 5):
        found, unit = sigma.power_iteration(tensors(v), num_iterations=k)
        carried, begin = sigma.power_iteration(begin, num_iterations=1)  # as a sampler does
        if kind == "diag":
            np.testing.assert_allclose(found, exact, rtol=1e-12)
            continue
        product = flat(v, len(chains))[..., np.newaxis]
        before, after = (np.linalg.matrix_power(matrix, j) @ product for j in (k - 1, k))
        norm = np.linalg.norm(after[..., 0], axis=-1)
        expected = norm / np.linalg.norm(before[..., 0], axis=-1)
        for value, u in ((found, unit), (carried, begin)):
            np.testing.assert_allclose(value, expected, rtol=1e-10)
            direction = after[..., 0] / norm[..., np.newaxis]
            np.testing.assert_allclose(flat(u, len(chains)), direction, rtol=1e-8, atol=1e-10)
        assert np.all(last < found.numpy()) and np.all(found.numpy() < exact)
        last = found.numpy()


def test_power_iteration_keeps_its_vector_while_sigma_is_zero() -> None:
    """Sigma is zero after a first minibatch that was left out."""
    sigma, _ = make("full", (2,), noise_scale=0.0)
    v = tensors(draw_parts(GENERATOR, 2))
    value, unit = sigma.power_iteration(v)
    np.testing.assert_array_equal(value, [0, 0])
    expected = flat(v, 1) / np.linalg.norm(flat(v, 1), axis=-1, keepdims=True)
    np.testing.assert_allclose(flat(unit, 1), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["full", "block"])
def test_inverses_and_their_use(kind: str) -> None:
    """As preconditioners of another system, inverses change the solution only by rounding."""
    chains, scale = (3,), np.array([0.1, 1.0, 2.0])
    sigma, matrix = make(kind, chains, "lagged_cholesky")
    inverses = sigma.inverses(0.7, tf.constant(scale))
    system = 0.7 * np.eye(SIZE) + per_chain(scale) * matrix
    whole = np.linalg.inv(system)
    places = [slice(0, SIZE)] if kind == "full" else PLACES
    for inverse, p in zip(inverses, places, strict=True):
        np.testing.assert_allclose(inverse, whole[:, p, p], rtol=1e-9, atol=1e-12)
    v = draw_parts(GENERATOR, *chains)
    found = flat(sigma.preconditioned(inverses).solve(0.5, 0.4, tensors(v)), 1)
    system = 0.5 * np.eye(SIZE) + 0.4 * matrix
    expected = np.linalg.solve(system, flat(v, 1)[..., np.newaxis])[..., 0]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


def test_plus_adds_a_dense_matrix() -> None:
    sigma, matrix = make("full", (2,))
    other = GENERATOR.standard_normal([2, SIZE, SIZE])
    total = sigma.plus(tf.constant(other))
    np.testing.assert_allclose(explicit(total.multiply, (2,)), matrix + other, rtol=1e-10)
    with pytest.raises(TypeError, match="must be a DenseMatrix. Received: a LowRankMatrix"):
        make("low_rank", ()).sigma.plus(tf.eye(SIZE, dtype=tf.float64))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind",
    # Blocks are matrices like the one of "full".
    [
        pytest.param(
            kind,
            marks=[pytest.mark.slow] * (kind == "block")
            + [pytest.mark.thorough] * (kind in ("low_rank", "diag")),
        )
        for kind in KINDS
    ],
)
def test_compiled_operations_are_the_eager_ones(kind: str, dtype: Any) -> None:
    sigma, matrix = make(kind, (2,), dtype=dtype)
    bound = largest(make(kind, (2,))).astype(dtype)
    v = tensors(draw_parts(GENERATOR, 2, dtype=dtype))
    scale = tf.constant([0.1, 0.3], dtype)

    def all_of_them(v: Any) -> Any:
        value, unit = sigma.power_iteration(v, 3)
        return (
            sigma.multiply(v), sigma.solve(1.0, scale, v), value, unit, sigma.diag_part(),
            sigma.sqrt_multiply(bound, -scale, bound, v),
        )  # fmt: skip

    compiled = tf.function(all_of_them, jit_compile=True, autograph=False)(v)
    tolerance = 2e-5 if dtype == np.float32 else 1e-9
    for x, y in zip(tf.nest.flatten(all_of_them(v)), tf.nest.flatten(compiled), strict=True):
        assert x.dtype == y.dtype == dtype
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.abs(x).max())


def test_power_iteration_of_a_sigma_whose_square_overflows() -> None:
    """Such a Sigma was taken for zero."""
    v = tensors(draw_parts(GENERATOR, 2))
    small, large = (
        make("full", (2,), noise_scale=scale)[0].power_iteration(v)[0] for scale in (1.0, 1e200)
    )
    np.testing.assert_allclose(large, 1e200 * small.numpy(), rtol=1e-10)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_factors_in_half_precision(dtype: Any) -> None:
    """TensorFlow factorises none of these matrices on a CPU outside XLA."""
    root = np.random.default_rng(1).normal(size=[3, 3])
    values, x = np.eye(3) + root @ root.T, np.array([1.0, 2.0, 3.0])
    made = matrices.DenseMatrix(tf.constant(values, dtype), matrices.Solver("cholesky"))
    one = tf.ones([3], dtype)
    solved = made.solve(one, one[0], tf.constant(x, dtype))
    assert solved.dtype == dtype == made.draw(one, one[0], random.as_seed(0)).dtype
    error = 10 * 2.0 ** (-7 if dtype == tf.bfloat16 else -10)
    expected = np.linalg.solve(np.eye(3) + values, x)
    np.testing.assert_allclose(tf.cast(solved, tf.float64), expected, rtol=error, atol=error)
    inverse = matrices.inverse_or_diagonal(tf.constant(values, dtype))
    np.testing.assert_allclose(
        tf.cast(inverse, tf.float64), np.linalg.inv(values), rtol=error, atol=error
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_conjugate_gradients_do_not_hide_what_is_not_finite(bad: float) -> None:
    """The solution was zero, as for a vector of zeros; other chains keep theirs."""
    made = matrices.DenseMatrix(tf.eye(2), matrices.Solver("cg"))
    x = tf.constant([[bad, 1.0], [3.0, 4.0]])
    found = made.solve(tf.ones([2, 2]), tf.constant(1.0), x).numpy()
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], [1.5, 2.0], rtol=1e-5)
