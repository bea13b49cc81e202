"""The integrated autocorrelation time, by definition and of chains of which it is known."""

import numpy as np
import pytest
from scipy.signal import lfilter

import tfp_sgmcmc as sgmcmc
from tests.harness.statistics import Rejected, check_means

GENERATOR = np.random.default_rng(0)


def by_definition(x: np.ndarray, window: float) -> float:
    """Of `[results, chains]`."""
    x = x - x.mean()
    rho = [np.mean(x[: len(x) - s] * x[s:]) / np.mean(x**2) for s in range(len(x))]
    for width in range(len(x) // 2 + 1):
        tau = 1 + 2 * sum(rho[1 : width + 1])
        if width >= window * max(tau, 1):
            return tau
    return np.nan


def autoregressive(phi: float, num_results: int, num_chains: int) -> np.ndarray:
    """x_t = phi x_(t-1) + noise, in equilibrium: tau = (1 + phi) / (1 - phi)."""
    noise = GENERATOR.standard_normal([num_results, num_chains])
    noise[0] /= np.sqrt(1 - phi**2)
    return lfilter([1.0], [1.0, -phi], noise, axis=0)


def test_by_definition() -> None:
    x = autoregressive(0.5, 60, 6).reshape(60, 2, 3)
    found = sgmcmc.diagnostics.integrated_autocorrelation_time({"x": x}, chain_ndims=1, window=3.0)[
        "x"
    ]
    expected = [by_definition(x[:, :, i], 3.0) for i in range(3)]
    np.testing.assert_allclose(found, expected)
    found = sgmcmc.diagnostics.integrated_autocorrelation_time(x[:, 0, 0], window=3.0)
    np.testing.assert_allclose(found, by_definition(x[:, 0, :1], 3.0))


@pytest.mark.parametrize("phi", [0.9, 0.0, -0.5])
def test_of_autoregressive_chains(phi: float) -> None:
    """50 estimates from 200 chains each; false alarms 1e-6, 8 % are found.

    Taking off the mean takes (2 W + 1) / T off, 0.2 %. The sum ends at W = 5 tau, or 5.
    """
    tau, num_results, num_chains = (1 + phi) / (1 - phi), 500, 200
    found = [
        sgmcmc.diagnostics.integrated_autocorrelation_time(
            autoregressive(phi, num_results, num_chains), chain_ndims=1
        )
        for _ in range(50)
    ]
    window = 5 * max(tau, 1)
    expected = 1 + 2 * sum(phi**s for s in range(1, round(window) + 1))
    expected *= 1 - (2 * window + 1) / (num_results * num_chains)
    check_means(found, [expected], 0.08 * tau)
    with pytest.raises(Rejected):
        check_means(found, [1.1 * expected], 0.08 * tau)


def test_chains_that_have_not_met_count_as_slow() -> None:
    x = autoregressive(0.0, 500, 4)
    apart = x + np.array([-3.0, -1.0, 1.0, 3.0])
    assert sgmcmc.diagnostics.integrated_autocorrelation_time(x, chain_ndims=1) < 2
    assert np.isnan(sgmcmc.diagnostics.integrated_autocorrelation_time(apart, chain_ndims=1))


def test_too_short_or_constant_chains() -> None:
    assert np.isnan(sgmcmc.diagnostics.integrated_autocorrelation_time(np.ones(100)))
    assert np.isnan(sgmcmc.diagnostics.integrated_autocorrelation_time(np.arange(20.0)))


def test_cost_is_time_by_seconds() -> None:
    x = autoregressive(0.5, 300, 6).reshape(300, 2, 3)
    times = sgmcmc.diagnostics.integrated_autocorrelation_time(x, chain_ndims=1)
    cost = sgmcmc.diagnostics.autocorrelation_time_unit_cost(x, 0.25, chain_ndims=1)
    np.testing.assert_allclose(cost, times / 4)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"shape \(1,\).* at least 2 results"):
        sgmcmc.diagnostics.integrated_autocorrelation_time(np.ones(1))
    with pytest.raises(ValueError, match="with 1 dimensions of chains"):
        sgmcmc.diagnostics.integrated_autocorrelation_time(np.ones(10), chain_ndims=1)
    with pytest.raises(ValueError, match="window is 0"):
        sgmcmc.diagnostics.integrated_autocorrelation_time(np.ones(10), window=0.0)
    with pytest.raises(ValueError, match="seconds_per_result is 0"):
        sgmcmc.diagnostics.autocorrelation_time_unit_cost(np.ones(10), 0.0)
