"""The number of steps, and of seconds, that an independent draw takes.

`tfp.mcmc.effective_sample_size` truncates the sum of autocorrelations by Geyer's rule. Here the sum
is truncated by Sokal's window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.checks import require


def integrated_autocorrelation_time(
    samples: Any, *, chain_ndims: int = 0, window: float = 5.0
) -> Any:
    r"""Estimates the integrated autocorrelation time, with Sokal's window.

    \[
    \tau = 1 + 2 \sum_{s=1}^{W} \hat\rho(s), \qquad
    W = \min \bigl\{ w : w \geq c \max(1, \tau(w)) \bigr\}
    \]

    The mean of T results has the variance of T / tau independent ones. Autocorrelations are taken
    about the mean of all chains and averaged over chains, so that chains that have not met count as
    slow chains.

    Examples:
      >>> import numpy as np
      >>> x = np.random.default_rng(0).standard_normal([1000, 20])
      >>> bool(abs(integrated_autocorrelation_time(x, chain_ndims=1) - 1) < 0.1)
      True

    The standard error is about \( \tau \sqrt{2 (2W + 1) / T} \), where T counts the results of all
    chains. Fewer than 50 tau results say little.

    Args:
      samples: a nest of arrays `[results, chains..., event...]`.
      chain_ndims: number of dimensions after the first that count chains.
      window: c.

    Returns:
      tau, as a number of results: a nest of arrays `[event...]` in double precision. NaN if no
      window is found within half of the results, because the chain is too short or constant.

    Raises:
      ValueError: an array has too few dimensions, or there are fewer than two results.

    References:
      A. Sokal. Monte Carlo methods in statistical mechanics: foundations and new algorithms.
      Functional Integration, 1997. Section 3.
    """
    require("window", window, window > 0, "a positive number")

    def time(x: Any) -> Any:
        x = np.asarray(x, np.float64)
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
            times = 2 * np.cumsum(covariance / covariance[0], axis=0) - 1
        fits = (lags >= window * np.maximum(times, 1)) & (lags <= len(x) // 2)
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
    require("seconds_per_result", seconds_per_result, seconds_per_result > 0, "positive")
    times = integrated_autocorrelation_time(samples, chain_ndims=chain_ndims, window=window)
    return tf.nest.map_structure(lambda t: t * seconds_per_result, times)
