"""The integrated autocorrelation time, by definition and for chains with a known time."""

import numpy as np
import pytest
from scipy.signal import lfilter

from tests.harness.statistics import Rejected, check_means
from tfp_sgmcmc.diagnostics import autocorrelation_time_unit_cost, integrated_autocorrelation_time

GENERATOR = np.random.default_rng(0)


def by_definition(x: np.ndarray, window: float) -> float:
    x = x - x.mean()
    rho = [np.mean(x[: len(x) - s] * x[s:]) / np.mean(x**2) for s in range(len(x))]
    for width in range(len(x) // 2 + 1):
        tau = 1 + 2 * sum(rho[1 : width + 1])
        pairs = [(rho[s] + rho[s + 1]) / (rho[0] + rho[1]) for s in range(0, width, 2)]
        if width >= window * max(tau, 1, 2 * sum(pairs) - 1):
            return tau
    return np.nan


def autoregressive(phi: float, num_results: int, num_chains: int) -> np.ndarray:
    """Returns x_t = phi x_(t-1) + noise in equilibrium: tau = (1 + phi) / (1 - phi)."""
    noise = GENERATOR.standard_normal([num_results, num_chains])
    noise[0] /= np.sqrt(1 - phi**2)
    return lfilter([1.0], [1.0, -phi], noise, axis=0)


def test_by_definition() -> None:
    x = autoregressive(0.5, 60, 6).reshape(60, 2, 3)
    found = integrated_autocorrelation_time({"x": x}, chain_ndims=1, window=3.0)["x"]
    expected = [by_definition(x[:, :, i], 3.0) for i in range(3)]
    np.testing.assert_allclose(found, expected)
    found = integrated_autocorrelation_time(x[:, 0, 0], window=3.0)
    np.testing.assert_allclose(found, by_definition(x[:, 0, :1], 3.0))


@pytest.mark.parametrize(
    "phi", [0.9, *(pytest.param(p, marks=pytest.mark.thorough) for p in (0.0, -0.8))]
)
def test_of_autoregressive_chains(phi: float) -> None:
    """50 estimates from 200 chains each; false-alarm rate 1e-6; an error of 10 % is found.

    Subtracting the mean lowers tau by (2 W + 1) / T, 0.2 %. The sum ends at W = 5 tau, or 5, or
    for negative phi at 5 times the time of pairs, (1 + phi^2) / (1 - phi^2).
    """
    tau, num_results, num_chains = (1 + phi) / (1 - phi), 500, 200
    found = [
        integrated_autocorrelation_time(autoregressive(phi, num_results, num_chains), chain_ndims=1)
        for _ in range(50)
    ]
    window = np.ceil(5 * max(tau, 1, (1 + phi**2) / (1 - phi**2)))
    expected = 1 + 2 * sum(phi**s for s in range(1, int(window) + 1))
    expected *= 1 - (2 * window + 1) / (num_results * num_chains)
    check_means(found, [expected], 0.1 * tau)
    with pytest.raises(Rejected):
        check_means(found, [1.12 * expected], 0.1 * tau)


def test_chains_that_have_not_met_count_as_slow() -> None:
    x = autoregressive(0.0, 500, 4)
    apart = x + np.array([-3.0, -1.0, 1.0, 3.0])
    assert integrated_autocorrelation_time(x, chain_ndims=1) < 2
    assert np.isnan(integrated_autocorrelation_time(apart, chain_ndims=1))


def test_too_short_or_constant_chains() -> None:
    assert np.isnan(integrated_autocorrelation_time(np.ones(100)))
    assert np.isnan(integrated_autocorrelation_time(np.arange(20.0)))


def test_cost_is_time_by_seconds() -> None:
    x = autoregressive(0.5, 300, 6).reshape(300, 2, 3)
    times = integrated_autocorrelation_time(x, chain_ndims=1)
    cost = autocorrelation_time_unit_cost(x, 0.25, chain_ndims=1)
    np.testing.assert_allclose(cost, times / 4)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"at least 2 results. Received: shape \(1,\)"):
        integrated_autocorrelation_time(np.ones(1))
    with pytest.raises(ValueError, match="with 1 dimensions of chains"):
        integrated_autocorrelation_time(np.ones(10), chain_ndims=1)
    with pytest.raises(ValueError, match="window must be a positive finite number. Received: 0"):
        integrated_autocorrelation_time(np.ones(10), window=0.0)
    with pytest.raises(ValueError, match="seconds_per_result must be a positive finite number"):
        autocorrelation_time_unit_cost(np.ones(10), 0.0)
