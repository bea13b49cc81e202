"""How many steps, and seconds, an independent draw takes.

`tfp.mcmc.effective_sample_size` and `tfp.mcmc.potential_scale_reduction` are not written again
here; the first truncates by Geyer's rule what is summed by Sokal's window here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def integrated_autocorrelation_time(
    samples: Any, *, chain_ndims: int = 0, window: float = 5.0
) -> Any:
    r"""The integrated autocorrelation time, with Sokal's window.

    \[
    \tau = 1 + 2 \sum_{s=1}^{W} \hat\rho(s), \qquad
    W = \min \bigl\{ w : w \geq c \max(1, \tau(w)) \bigr\}
    \]

    The mean of T results has the variance of T / tau independent ones. Autocorrelations are means
    over chains, about the mean of all chains: chains that have not met count as slow ones.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal([1000, 20])
    >>> bool(abs(integrated_autocorrelation_time(x, chain_ndims=1) - 1) < 0.1)
    True

    The standard error is about \( \tau \sqrt{2 (2W + 1) / T} \), T the results of all chains: less
    than 50 tau of them say little.

    Args:
      samples: a nest of arrays `[results, chains..., event...]`.
      chain_ndims: number of dimensions behind the first that count chains.
      window: c.

    Returns:
      tau, in numbers of results, `[event...]` an array, in double precision. NaN where no window is
      found within half of the results, the chain being too short, or constant.

    Raises:
      ValueError: an array of too few dimensions; fewer than two results.

    #### References

    A. Sokal. Monte Carlo methods in statistical mechanics: foundations and new algorithms.
    Functional Integration, 1997. Section 3.
    """
    if not window > 0:
        raise ValueError(f"window is {window}; a positive number is expected.")

    def time(x: Any) -> Any:
        x = np.asarray(x, np.float64)
        if x.ndim < 1 + chain_ndims or len(x) < 2:
            raise ValueError(
                f"samples have shape {x.shape}; [results, chains..., event...] with {chain_ndims} "
                "dimensions of chains and at least 2 results are expected."
            )
        chains = tuple(range(1, 1 + chain_ndims))
        x = x - x.mean(axis=(0, *chains), keepdims=True)
        # Mean products of the pairs that are s apart, by a Fourier transform twice as long.
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
    r"""ATUC, the autocorrelation time per unit cost: the seconds that an independent draw takes.

    \[ \mathrm{ATUC} = \tau \cdot s \]

    with tau the `integrated_autocorrelation_time`, in results, and s the cost of a result, here in
    seconds: the lower the better. How tau is estimated (the window, the mean over chains) is ours.
    It knows nothing of bias: a chain may be fast and wrong.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal([1000, 20])
    >>> cost = autocorrelation_time_unit_cost(x, seconds_per_result=0.5, chain_ndims=1)
    >>> bool(abs(cost - 0.5) < 0.05)
    True

    Args:
      samples: as of `integrated_autocorrelation_time`.
      seconds_per_result: for all chains together; with thinning, that of all steps of a result.
      chain_ndims: likewise.
      window: likewise.

    Returns:
      Seconds, `[event...]` an array, for one chain's worth of work: with C chains that take
      `seconds_per_result` together, a draw is had C times as often.

    Raises:
      ValueError: as `integrated_autocorrelation_time`; a time that is not positive.

    #### References

    S. Ahn, A. Korattikara and M. Welling. Bayesian posterior sampling via stochastic gradient
    Fisher scoring. ICML, 2012.
    """
    if not seconds_per_result > 0:
        raise ValueError(
            f"seconds_per_result is {seconds_per_result}; a positive time is expected."
        )
    times = integrated_autocorrelation_time(samples, chain_ndims=chain_ndims, window=window)
    return tf.nest.map_structure(lambda t: t * seconds_per_result, times)
