"""The relative errors E1 and E2 against their definitions."""

import numpy as np
import pytest

from tfp_sgmcmc.diagnostics import (
    relative_covariance_error,
    relative_mean_error,
    squared_variance_error,
)

GENERATOR = np.random.default_rng(0)


def test_relative_mean_error() -> None:
    estimate, reference = GENERATOR.standard_normal([2, 7])
    expected = sum(abs(a - b) for a, b in zip(estimate, reference, strict=True))
    expected /= sum(abs(b) for b in reference)
    np.testing.assert_allclose(relative_mean_error(estimate, reference), expected)
    assert relative_mean_error(reference, reference) == 0.0


def test_relative_covariance_error() -> None:
    estimate, reference = GENERATOR.standard_normal([2, 4, 4])
    expected = np.abs(estimate - reference).sum() / np.abs(reference).sum()
    np.testing.assert_allclose(relative_covariance_error(estimate, reference), expected)


def test_errors_do_not_change_with_the_scale() -> None:
    estimate, reference = GENERATOR.standard_normal([2, 7])
    expected = relative_mean_error(estimate, reference)
    np.testing.assert_allclose(relative_mean_error(1e6 * estimate, 1e6 * reference), expected)


def test_squared_variance_error() -> None:
    samples, variances = GENERATOR.standard_normal([9, 2, 3]), np.array([1.0, 2.0, 0.5])
    found = squared_variance_error(samples, variances)
    for chain in range(2):
        pairs = zip(samples[:, chain].T, variances, strict=True)
        expected = np.mean([(np.mean((x - x.mean()) ** 2) / v - 1) ** 2 for x, v in pairs])
        np.testing.assert_allclose(found[chain], expected)
    samples[4, 0, 1], samples[5, 1, 2] = np.nan, np.inf
    np.testing.assert_array_equal(squared_variance_error(samples, variances), [np.inf] * 2)
    message = r"variances \[D\]. Received: shapes \(9, 2, 3\) and \(2,\)"
    with pytest.raises(ValueError, match=message):
        squared_variance_error(samples, variances[:2])
    with pytest.raises(ValueError, match="variances must be positive numbers"):
        squared_variance_error(samples, [1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("error", "what"), [(relative_mean_error, "mean"), (relative_covariance_error, "covariance")]
)
def test_bad_input(error: object, what: str) -> None:
    message = rf"estimated {what} must .* \(3,\). Received: shape \(2,\)"
    with pytest.raises(ValueError, match=message):
        error(np.ones(2), np.ones(3))
    with pytest.raises(ValueError, match=f"The reference {what} must not be zero"):
        error(np.ones(2), np.zeros(2))
