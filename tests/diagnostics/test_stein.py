"""The kernel Stein discrepancy, by definition, by Stein's identity, and in the mean.

The false-alarm rate is 1e-6 a test. The tests state their powers.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.harness.gaussian_mean import GaussianMean
from tests.harness.statistics import Rejected, check_means
from tfp_sgmcmc.diagnostics import gradients_at, squared_kernel_stein_discrepancy

GENERATOR = np.random.default_rng(0)
C, BETA = 1.3, -0.4


def discrepancy(x: Any, g: Any, **options: Any) -> np.ndarray:
    return squared_kernel_stein_discrepancy(x, g, scale=C, exponent=BETA, **options).numpy()


def stein_kernel(
    x: np.ndarray, y: np.ndarray, g: np.ndarray, h: np.ndarray, m: np.ndarray | None = None
) -> float:
    """Returns k_0 of two points, from differences of the kernel along the rows of M."""
    m = np.eye(len(x)) if m is None else m
    step, g, h = 1e-3 * m, m @ g, m @ h

    def k(x: np.ndarray, y: np.ndarray) -> float:
        return (C**2 + np.sum((x - y) ** 2)) ** BETA

    by_x = np.array([k(x + e, y) - k(x - e, y) for e in step]) / 2e-3
    by_y = np.array([k(x, y + e) - k(x, y - e) for e in step]) / 2e-3
    mixed = [k(x + e, y + e) - k(x + e, y - e) - k(x - e, y + e) + k(x - e, y - e) for e in step]
    return float(g @ h * k(x, y) + g @ by_y + h @ by_x + sum(mixed) / 4e-6)


def by_definition(
    x: np.ndarray, g: np.ndarray, w: np.ndarray, statistic: str, m: np.ndarray | None = None
) -> float:
    pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if statistic == "V" or i != j]
    total = sum(w[i] * w[j] * stein_kernel(x[i], x[j], g[i], g[j], m) for i, j in pairs)
    return total / sum(w[i] * w[j] for i, j in pairs)


@pytest.mark.parametrize("statistic", ["U", "V"])
@pytest.mark.parametrize(
    "chunk_size", [None, 4, *(pytest.param(n, marks=pytest.mark.thorough) for n in (2, 7))]
)
def test_by_definition(statistic: Any, chunk_size: int | None) -> None:
    """Two chains, two parts, weights, and chunks that divide n = 7 or do not."""
    x, g = np.random.default_rng(1).standard_normal([2, 7, 2, 3])
    w = np.arange(1.0, 8.0)
    parts = ([y[..., 0], y[..., 1:]] for y in (x, g))
    options = dict(chain_ndims=1, weights=w, statistic=statistic, chunk_size=chunk_size)
    found = discrepancy(*parts, **options)
    for chain in range(2):
        expected = by_definition(x[:, chain], g[:, chain], w, statistic)
        np.testing.assert_allclose(found[chain], expected, rtol=1e-5)


@pytest.mark.parametrize("statistic", ["U", "V"])
def test_a_preconditioner_by_definition(statistic: Any) -> None:
    x, g = np.random.default_rng(1).standard_normal([2, 7, 2, 3])
    m = np.array([[2.0, 0.3, -0.5], [0.3, 1.0, 0.2], [-0.5, 0.2, 0.4]])
    found = discrepancy(x, g, chain_ndims=1, statistic=statistic, preconditioner=m, chunk_size=3)
    for chain in range(2):
        expected = by_definition(x[:, chain], g[:, chain], np.ones(7), statistic, m)
        # U is near zero, and differences with steps of 1e-3 have errors of about 1e-6.
        np.testing.assert_allclose(found[chain], expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"must have shape \[3, 3\]. Received: \(3,\)"):
        discrepancy(x, g, chain_ndims=1, preconditioner=np.ones(3))


def test_two_points_by_hand() -> None:
    """x = 0 and 1, g = 2 and 3, c = 1, beta = -1/2: k = q^-1/2, q = 1 or 2.

    k_0(0, 1) = 6 / 2^1/2 + (1 + (2 - 3)(0 - 1)) / 2^3/2 - 3 / 2^5/2, k_0(x, x) = g^2 + 1.
    """
    between = 6 / 2**0.5 + 2 / 2**1.5 - 3 / 2**2.5
    x, g = np.array([[0.0], [1.0]]), np.array([[2.0], [3.0]])
    found = [squared_kernel_stein_discrepancy(x, g, statistic=s) for s in ("U", "V")]
    np.testing.assert_allclose(found, [between, (2 * between + 5 + 10) / 4])


def test_steins_identity() -> None:
    """E[k_0(x, y)] = 0 over the target, for every y: on N(0, 1), by quadrature."""
    grid = np.linspace(-10, 10, 401)
    density = np.exp(-(grid**2) / 2)
    for y in (-0.7, 2.0):
        points = np.append(grid, y)[:, np.newaxis]

        def mean(slope: float, points: np.ndarray = points) -> float:
            """Returns the mean of k_0 over the grid, with the gradients of N(0, 1 / slope)."""
            weights = np.append(density / density.sum(), 0.0)
            both = np.append(density / density.sum(), 1.0)  # (grid + y): 1/4 (gg + 2 gy + yy)
            gradients = -slope * points
            total = 4 * discrepancy(points, gradients, weights=both, statistic="V")
            own = discrepancy(points, gradients, weights=weights, statistic="V")
            alone = discrepancy(points[-1:], gradients[-1:], statistic="V")
            return float(total - own - alone) / 2

        assert abs(mean(1.0)) < 1e-10
        assert abs(mean(1.5)) > 1e-3  # control: the gradients of another law


def expected_square(shift: float, scale: float) -> float:
    """Returns S^2 of N(shift, scale^2) against N(0, 1), by quadrature."""
    grid = np.linspace(-8, 8, 321) * scale + shift
    weights = np.exp(-0.5 * ((grid - shift) / scale) ** 2)
    x = grid[:, np.newaxis]
    return float(discrepancy(x, -x, weights=weights, statistic="V"))


NUM_SETS, SIZE = 3000, 25


def sets(shift: float = 0.0, scale: float = 1.0, dimension: int = 1) -> np.ndarray:
    """Returns many sets of independent draws, `[SIZE, NUM_SETS, dimension]`."""
    return shift + scale * GENERATOR.standard_normal([SIZE, NUM_SETS, dimension])


def test_of_exact_draws_it_falls_as_one_over_n() -> None:
    """V has mean E[k_0(x, x)] / n, and U has mean zero. An error of 7 % of V is found."""
    x = sets(dimension=3)
    expected = C ** (2 * BETA) * (3 - 2 * BETA * 3 / C**2) / SIZE  # d c^2b - 2 b d c^(2b - 2)
    v, u = (discrepancy(x, -x, chain_ndims=1, statistic=s) for s in ("V", "U"))
    check_means(v, [expected], 0.07 * expected)
    check_means(u, [0.0], 0.07 * expected)


@pytest.mark.parametrize(
    ("shift", "scale"),
    [(0.5, 1.0), *(pytest.param(0.0, s, marks=pytest.mark.thorough) for s in (0.7, 1.4))],
)
def test_of_other_draws_it_does_not(shift: float, scale: float) -> None:
    """U has mean S^2 of the law of the draws. An error of 30 % is found."""
    x, expected = sets(shift, scale), expected_square(shift, scale)
    assert expected > 0.02
    found = discrepancy(x, -x, chain_ndims=1)
    check_means(found, [expected], 0.3 * expected)
    with pytest.raises(Rejected):
        check_means(found, [0.0], 0.3 * expected)


def test_gradient_noise_leaves_u_without_bias() -> None:
    """It adds c^2b times its variance over n to V."""
    x, deviation = sets(0.5), 2.0
    g = -x + deviation * GENERATOR.standard_normal(x.shape)
    expected = expected_square(0.5, 1.0)
    check_means(discrepancy(x, g, chain_ndims=1), [expected], 0.5 * expected)
    added = discrepancy(x, g, chain_ndims=1, statistic="V")
    added -= discrepancy(x, -x, chain_ndims=1, statistic="V")
    check_means(added, [deviation**2 * C ** (2 * BETA) / SIZE], 0.5 * expected)


@pytest.mark.thorough
@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_compiled(jit: bool) -> None:
    """Single precision suffices for a set far from zero; chunks bound the memory."""
    x = GENERATOR.standard_normal([50, 2, 3])

    def of(x: tf.Tensor) -> tf.Tensor:
        options: dict[str, Any] = dict(chain_ndims=1, statistic="V", chunk_size=8)
        return squared_kernel_stein_discrepancy(x + 100.0, -x, **options)

    found = tf.function(of, jit_compile=jit, autograph=False)(tf.constant(x, tf.float32))
    np.testing.assert_allclose(found, of(tf.constant(x)), rtol=1e-3)


def test_gradients_at_samples() -> None:
    model = GaussianMean(num_examples=12)
    target = model.target(4, dtype=tf.float64, parts=True)
    x = GENERATOR.standard_normal([3, 2, 3])
    parts = [x[..., :1], x[..., 1:]]
    exact = gradients_at(target, parts)
    expected = (model.mean - x) @ model.hessian
    np.testing.assert_allclose(np.concatenate(exact, axis=-1), expected)
    noisy = np.concatenate(gradients_at(target, parts, seed=1), axis=-1)
    again = np.concatenate(gradients_at(target, parts, seed=1), axis=-1)
    np.testing.assert_array_equal(noisy, again)
    differences = (noisy - expected).reshape(6, 3)
    assert len(np.unique(differences.round(9), axis=0)) == 6  # each has another minibatch


def test_bad_input() -> None:
    x = np.ones([4, 2])
    for bad, match in (
        (dict(scale=0.0), "scale must be a positive finite number. Received: 0"),
        (dict(exponent=-1.0), "exponent must be between -1 and 0. Received: -1"),
        (dict(statistic="W"), "statistic must be 'U' or 'V'. Received: 'W'"),
        (dict(weights=np.ones(3)), r"weights must have shape \[4\], .* Received: \(3,\)"),
        (dict(chunk_size=0), "chunk_size must be at least 1. Received: 0"),
    ):
        with pytest.raises(ValueError, match=match):
            squared_kernel_stein_discrepancy(x, x, **bad)
    with pytest.raises(ValueError, match="samples must not be empty"):
        squared_kernel_stein_discrepancy(x[:0], x[:0])
    assert np.isnan(squared_kernel_stein_discrepancy(x[:1], x[:1]))
    with pytest.raises(ValueError, match="equal shapes"):
        squared_kernel_stein_discrepancy(x, np.ones([4, 3]))
