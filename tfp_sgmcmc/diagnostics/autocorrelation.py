"""The integrated autocorrelation time, in results and in seconds.

`tfp.mcmc.effective_sample_size` truncates the sum of autocorrelations by Geyer's rule. Here the sum
is truncated by Sokal's window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics.arrays import real_array
from tfp_sgmcmc.internal.checks import integer, positive


def integrated_autocorrelation_time(
    samples: Any, *, chain_ndims: int = 0, window: float = 5.0
) -> Any:
    r"""Estimates the integrated autocorrelation time, with Sokal's window.

    \[
    \tau = 1 + 2 \sum_{s=1}^{W} \hat\rho(s), \qquad
    W = \min \bigl\{ w : w \geq c \max(1, \tau(w), \tau_2(w)) \bigr\}
    \]
    \[
    \tau_2 = 2 \sum_{k=0}^{\lfloor (W-1)/2 \rfloor}
      \frac{\hat\rho(2k) + \hat\rho(2k+1)}{1 + \hat\rho(1)} - 1
    \]

    The mean of T results has the variance of T / tau independent ones. Autocorrelations are taken
    about the mean of all chains and averaged over chains, so that chains that have not met count as
    slow chains.

    \( \tau_2 \) is the time of sums over pairs of lags, in pairs. It is below tau in chains with
    positive correlations. With negative ones, tau is short though correlations last, and Sokal's
    window without it would cut their alternating sum: at rho(s) = (-0.8)^s it gave -0.18 for 1/9.

    Examples:
      >>> import numpy as np
      >>> x = np.random.default_rng(0).standard_normal([1000, 20])
      >>> bool(abs(integrated_autocorrelation_time(x, chain_ndims=1) - 1) < 0.1)
      True

    The standard error is about \( \tau \sqrt{2 (2W + 1) / T} \), where T counts the results of all
    chains. Estimates from fewer than 50 tau results are unreliable.

    Args:
      samples: a nest of arrays `[results, chains..., event...]`.
      chain_ndims: number of dimensions after the first that count chains.
      window: c, a positive number.

    Returns:
      tau, as a number of results: a nest of arrays `[event...]` in double precision. NaN if no
      window is found within half of the results, because the chain is too short or constant.

    Raises:
      ValueError: an array has too few dimensions, or there are fewer than two results; `window` or
        `chain_ndims` is out of range.
      TypeError: `window` or `chain_ndims` is not a number, or an array is not of real numbers.

    References:
      A. Sokal. Monte Carlo methods in statistical mechanics: foundations and new algorithms.
      Functional Integration, 1997. Section 3.
    """
    positive("window", window)
    integer("chain_ndims", chain_ndims, 0)

    def time(x: Any) -> Any:
        x = real_array("samples", x)
        if x.ndim < 1 + chain_ndims or len(x) < 2:
            raise ValueError(
                f"samples must have shape [results, chains..., event...] with {chain_ndims} "
                f"dimensions of chains and at least 2 results. Received: shape {x.shape}."
            )
        chains = tuple(range(1, 1 + chain_ndims))
        x = x - x.mean(axis=(0, *chains), keepdims=True)
        # Mean products of pairs at each lag, by a Fourier transform of twice the length.
        spectrum = np.abs(np.fft.rfft(x, 2 * len(x), axis=0)) ** 2
        products = np.fft.irfft(spectrum, axis=0)[: len(x)].mean(axis=chains)
        lags = np.arange(len(x)).reshape(-1, *[1] * (products.ndim - 1))
        covariance = products / (len(x) - lags)
        with np.errstate(invalid="ignore"):
            sums = np.cumsum(covariance / covariance[0], axis=0)
            last_pair = np.maximum((np.arange(len(x)) - 1) // 2 * 2 + 1, 0)
            times, pair_times = 2 * sums - 1, 2 * sums[last_pair] / sums[1] - 1
        longest = np.maximum(np.maximum(times, 1), np.where(sums[1] > 0, pair_times, np.inf))
        fits = (lags >= window * longest) & (lags <= len(x) // 2)
        first = np.argmax(fits, axis=0)
        tau = np.take_along_axis(times, first[np.newaxis], axis=0)[0]
        tau = np.where(fits.any(axis=0), tau, np.nan)
        return float(tau) if tau.ndim == 0 else tau

    return tf.nest.map_structure(time, samples)


def autocorrelation_time_unit_cost(
    samples: Any, seconds_per_result: float, *, chain_ndims: int = 0, window: float = 5.0
) -> Any:
    r"""Estimates ATUC, the autocorrelation time per unit cost: seconds for an independent draw.

    \[ \mathrm{ATUC} = \tau \cdot s \]

    tau is the `integrated_autocorrelation_time`, in results, and s is the cost of a result, here in
    seconds. Lower is better. The estimator of tau (the window, the mean over chains) is not the
    paper's. ATUC does not show bias: a chain may be fast and wrong.

    Examples:
      >>> import numpy as np
      >>> x = np.random.default_rng(0).standard_normal([1000, 20])
      >>> cost = autocorrelation_time_unit_cost(x, seconds_per_result=0.5, chain_ndims=1)
      >>> bool(abs(cost - 0.5) < 0.05)
      True

    Args:
      samples: a nest of arrays `[results, chains..., event...]`.
      seconds_per_result: seconds for a result of all chains, including steps that are thinned out.
      chain_ndims: number of dimensions after the first that count chains.
      window: c, as in `integrated_autocorrelation_time`.

    Returns:
      Seconds for one chain: a nest of arrays `[event...]`. C chains that take `seconds_per_result`
      together give an independent draw C times as often.

    Raises:
      ValueError: the time is not positive, or `integrated_autocorrelation_time` raises it.

    References:
      S. Ahn, A. Korattikara and M. Welling. Bayesian posterior sampling via stochastic gradient
      Fisher scoring. ICML, 2012.
    """
    positive("seconds_per_result", seconds_per_result)
    times = integrated_autocorrelation_time(samples, chain_ndims=chain_ndims, window=window)
    return tf.nest.map_structure(lambda t: t * seconds_per_result, times)
