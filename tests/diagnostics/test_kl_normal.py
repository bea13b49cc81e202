"""The normal distribution nearest to a posterior, against closed forms."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.diagnostics.certificate import fit_kl_normal

RNG = np.random.default_rng(0)


def test_a_normal_is_found_exactly_in_any_units() -> None:
    """The slope of a normal's gradient is a regression without residuals."""
    unit = 10.0 ** RNG.uniform(-6, 6, 30)
    covariance = np.cov(RNG.standard_normal([60, 30]), rowvar=False)
    root, mean = unit[:, np.newaxis] * np.linalg.cholesky(covariance), unit * 2.0

    def normal(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = np.linalg.solve(root, (x - mean).T)
        return -0.5 * (z**2).sum(axis=0), -np.linalg.solve(root.T, z).T

    found = fit_kl_normal(normal, 0 * mean, 1.5 * root, np.random.default_rng(1))
    assert found.converged and found.num_rounds == 2
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
    scale = np.outer(unit, unit)
    np.testing.assert_allclose(found.factor @ found.factor.T / scale, covariance, atol=1e-6)


SHAPES = np.geomspace(2.0, 30.0, 40)


def log_gamma(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of gamma variables, p = a x - e^x."""
    return (SHAPES * x - np.exp(x)).sum(axis=-1), SHAPES - np.exp(x)


def test_the_divergence_is_least_for_logarithms_of_gamma_variables() -> None:
    """E[e^x] = a at N(log a - 1/(2a), 1/a), which has gradient 0 and mean curvature a.

    With v = 1/a, a mean of 200 pairs e^x has the relative variance
    ((1 + e^(2v)) / (2 e^v) - 1) / 200, and so has m. Six standard errors have probability 2e-9.
    Laplace's approximation has the mean log a: the control.
    """
    start = np.log(SHAPES), np.diag(SHAPES**-0.5)
    found = fit_kl_normal(log_gamma, *start, np.random.default_rng(2))
    assert found.converged
    exact, v = np.log(SHAPES) - 1 / (2 * SHAPES), 1 / SHAPES
    error = np.sqrt(((1 + np.exp(2 * v)) / (2 * np.exp(v)) - 1) / 200)
    assert np.all(np.abs(found.mean - exact) < 6 * error)
    assert np.any(start[0] - exact > 6 * error)
    # Residuals of a regression of sinh(sqrt(v) z) on z, with 200 pairs and 40 entries. They are
    # mostly the third Hermite polynomial, for which E[z^2 r^2] = 7 E[r^2].
    residual = ((np.exp(2 * v) - 1) / 2 - v * np.exp(v)) / (v * np.exp(v))
    ratio = np.diag(np.linalg.inv(found.factor @ found.factor.T)) / SHAPES
    assert np.all(np.abs(ratio - 1) < 6 * np.sqrt(7 * residual / 160) + error)


def test_rounds_end_before_gradients_that_are_not_finite() -> None:
    def nowhere(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(x), np.nan), np.full(x.shape, np.nan)

    found = fit_kl_normal(nowhere, np.ones(3), 2 * np.eye(3), np.random.default_rng(3))
    assert not found.converged and found.num_rounds == 1
    np.testing.assert_array_equal(found.mean, np.ones(3))
    np.testing.assert_array_equal(found.factor, 2 * np.eye(3))


@pytest.fixture(scope="module")
def counts() -> tuple[sgmcmc.MinibatchLogProb, np.ndarray]:
    """Log rates of Poisson counts in 40 columns; the rates are gamma. Also their shapes."""
    y = np.random.default_rng(4).poisson(np.geomspace(0.5, 5.0, 40), [20, 40])
    target = sgmcmc.MinibatchLogProb(
        lambda theta: tf.reduce_sum(2 * theta - tf.exp(theta), axis=-1),
        lambda theta, y: tf.reduce_sum(
            y * theta[..., tf.newaxis, :] - tf.exp(theta[..., tf.newaxis, :]), axis=-1
        ),
        y.astype(np.float64),
        5,
    )
    return target, 2 + y.sum(axis=0)


def test_forty_parameters_are_drawn_independently_and_certified(
    counts: tuple[sgmcmc.MinibatchLogProb, np.ndarray],
) -> None:
    """Six standard errors, 2e-9 each, of 80 exact moments; by Laplace alone k would be higher."""
    target, shapes = counts
    result = sgmcmc.sample(target, tf.zeros([40], tf.float64), 500, seed=0, progress_bar=False)
    assert result.choices.sampler == "IndependentMetropolis" and result.is_trusted
    found = result.certificate
    mean, sd = special.digamma(shapes) - np.log(21), special.polygamma(1, shapes) ** 0.5
    assert np.all(np.abs(found.mean - mean) < 6 * found.mean_error)
    assert np.all(np.abs(found.sd - sd) < 6 * found.sd_error)
    assert np.all(np.abs(found.mean_offset) < 6 * found.mean_offset_error)
    assert found.efficiency > 0.7 and np.max(found.mean_error / found.sd) < 0.05


def test_a_bias_in_forty_dimensions_is_told(
    counts: tuple[sgmcmc.MinibatchLogProb, np.ndarray],
) -> None:
    """Exact draws pass; draws that are 30 % too wide in one column are told there."""
    target, shapes = counts
    rng = np.random.default_rng(5)
    draws = np.log(rng.gamma(shapes, 1 / 21, size=[500, 4, 40]))
    for factor in (1.0, 1.3):
        wide = draws.copy()
        wide[..., 7] = draws[..., 7].mean() + factor * (draws[..., 7] - draws[..., 7].mean())
        found = sgmcmc.certify(wide, target)
        assert found.is_reliable
        scores = (found.sd_ratio - 1) / found.sd_ratio_error
        assert np.abs(np.delete(scores, 7)).max() < 6
        assert (abs(scores[7]) > 6) == (factor > 1)
