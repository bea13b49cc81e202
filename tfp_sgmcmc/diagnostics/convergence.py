r"""Convergence of draws: R-hat, effective sample sizes, standard errors, autocorrelation times.

References:
  A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Bürkner. Rank-normalization, folding,
  and localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis, 2021.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics.base import real_array
from tfp_sgmcmc.internal.checks import integer, positive
from tfp_sgmcmc.internal.xla import traced

MOST_RHAT, LEAST_DRAWS = 1.01, 400  # Vehtari et al. 2021
_BY_CHANCE = 1e-3  # probability that sound chains exceed the limit
_DEPENDENT_BY_CHANCE = 1e-6  # probability that any entry of independent chains looks dependent
_TAIL = 0.05  # probability of each tail
_BLOCK = 2**18  # numbers that are transformed at once


def rank_normalized_rhat(draws: Any) -> np.ndarray:
    r"""Returns the rank-normalised split R-hat of each entry.

    Each chain is cut into halves, and draws are replaced by the normal scores of their ranks. The
    result is the larger R-hat of the draws and of their distances to the median (equation 14).

    Examples:
      >>> draws = np.random.default_rng(0).normal(size=[1000, 4])
      >>> bool(rank_normalized_rhat(draws) < 1.01)
      True
      >>> bool(rank_normalized_rhat(draws + [0, 0, 0, 1]) > 1.1)
      True

    Args:
      draws: `[draws, chains, ...]`.

    Returns:
      `[...]`, NaN for entries that never move or are not finite.

    Raises:
      ValueError: there are fewer than four draws.
    """

    def largest(x: np.ndarray) -> np.ndarray:
        x = _split(x)
        scores = _normal_scores(x), _normal_scores(np.abs(x - np.median(x, axis=(0, 1))))
        of_draws, of_distances = (
            rhat_of_moments(z.mean(axis=0), z.var(axis=0, ddof=1), len(z)) for z in scores
        )
        return np.fmax(of_draws, of_distances)  # two values have equal distances: 0 / 0

    return _of_entries(largest, draws)


def effective_sample_size(draws: Any, kind: Literal["bulk", "tail", "mean"] = "bulk") -> np.ndarray:
    r"""Returns the effective sample size of each entry, all chains together.

    For S draws, \( \mathrm{ESS} = S / (1 + 2 \sum_t \hat\rho_t) \) of split chains (equation 10),
    with the sum truncated by Geyer's initial monotone sequence. It is at most S log10(S). Chains
    that depend on each other are worth fewer: see `chain_dependence`, which it is divided by.

    Args:
      draws: `[draws, chains, ...]`.
      kind: "bulk" is the size for the normal scores of the draws; "tail" is the smaller size for
        the events of being at most the 5 % and the 95 % quantile; "mean" is the size for the mean,
        whose standard error is the standard deviation over its root.

    Returns:
      `[...]`, NaN for entries that never move or are not finite.

    Raises:
      ValueError: there are fewer than four draws, or `kind` is another word.
    """
    if kind not in ("bulk", "tail", "mean"):
        raise ValueError(f'kind must be "bulk", "tail" or "mean". Received: {kind!r}.')

    def bulk(x: np.ndarray) -> np.ndarray:
        return _effective_sample_size(_normal_scores(_split(x)))

    def tail(x: np.ndarray) -> np.ndarray:
        limits = np.quantile(x, [_TAIL, 1 - _TAIL], axis=(0, 1))
        events = (_split((x <= limit).astype(np.float64)) for limit in limits)
        return np.minimum(*(_effective_sample_size(event) for event in events))

    def mean(x: np.ndarray) -> np.ndarray:
        return _effective_sample_size(_split(x))

    size, count = {"bulk": bulk, "tail": tail, "mean": mean}[kind], _num_entries(draws)
    return _of_entries(lambda x: size(x) / _chain_dependence(x, count), draws)


def chain_dependence(draws: Any) -> np.ndarray:
    r"""Returns the factor by which dependent chains shrink the effective sample size of entries.

    Chains that share minibatches or random numbers move together. With the mean correlation
    \( \bar\rho \) between two of C chains at the same time, the variance of the mean of all draws
    is

    \[ 1 + (C - 1) \bar\rho \]

    times that of independent chains. The correlation is that of the normal scores in the last half
    of the draws, so that it does not see a common way from the start.

    Examples:
      >>> x = np.random.default_rng(0).normal(size=[1000, 4])
      >>> float(chain_dependence(x))
      1.0
      >>> copies = x[:, [0, 0, 0, 0]]
      >>> round(float(chain_dependence(copies)), 2), bool(effective_sample_size(copies) < 1200)
      (4.0, True)

    Args:
      draws: `[draws, chains, ...]`.

    Returns:
      `[...]`: the factor where independent chains would seldom have as large a one, in any entry
      with a probability of 1e-6; otherwise 1. NaN for entries that never move or are not finite.

    Raises:
      ValueError: there are fewer than four draws.
    """
    count = _num_entries(draws)
    return _of_entries(lambda x: _chain_dependence(x, count), draws)


def rhat_of_moments(means: Any, variances: Any, num_draws: int) -> np.ndarray:
    r"""Returns R-hat from the moments of m chains of n draws, without ranks.

    With means \( \bar m_c \) and sample variances \( s_c^2 \) of the chains, and their mean W,

    \[ \hat R = \sqrt{\frac{n - 1}{n} + \frac{\operatorname{var}_c \bar m_c}{W}} . \]

    This is Gelman et al., Bayesian Data Analysis, 3rd ed., equation 11.4.

    Args:
      means: means of the chains, `[chains, ...]`.
      variances: variances of the chains, divided by n - 1, `[chains, ...]`.
      num_draws: n.

    Returns:
      `[...]`, NaN for entries that never move, and for a single chain.
    """
    means = np.asarray(means)
    if len(means) < 2:
        return np.full(means.shape[1:], np.nan)
    between, within = means.var(axis=0, ddof=1), np.mean(variances, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((num_draws - 1) / num_draws + between / within)


class RunningMoments:
    """Updates means and variances of entries in chains (Chan, Golub & LeVeque 1979).

    Attributes:
      count: number of draws of each chain, n.
      mean: means of the chains, `[chains, ...]`.
      squares: sums of squared distances to them, `[chains, ...]`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, block: np.ndarray) -> None:
        """Adds draws `[n, chains, ...]`."""
        block = block.astype(np.float64)
        new, mean = len(block), block.mean(axis=0)
        squares = np.square(block - mean).sum(axis=0)
        total, off = self.count + new, mean - self.mean
        self.squares = self.squares + squares + off**2 * (self.count * new / total)
        self.mean = self.mean + off * (new / total)
        self.count = total

    def rhat(self) -> np.ndarray:
        """Returns `rhat_of_moments` of each entry; NaN until each chain has two different draws."""
        if self.count < 2:
            return np.full(np.shape(self.mean)[1:], np.nan)
        return rhat_of_moments(self.mean, self.squares / (self.count - 1), self.count)


def rhat_text(rhat: Any, decimals: int = 3) -> str:
    """Returns R-hat as text; chains that hardly move have one whose digits say nothing."""
    return "above 1000" if rhat > 1000 else f"{rhat:.{decimals}f}"


def rhat_limit(num_chains: int, num_entries: int, ess: float) -> float:
    r"""Returns the R-hat that sound chains exceed with probability 1e-3; 1.01 at least.

    R-hat varies: with few independent draws or many entries, its maximum is above 1.01 by chance.
    The variance between m half chains of n effective draws each is about \( \chi^2 \) with m - 1
    degrees of freedom, over n (m - 1), in units of the variance within.

    Args:
      num_chains: number of whole chains, m / 2.
      num_entries: number of entries whose largest `rank_normalized_rhat` is compared. Each has two
        figures: for draws and for distances.
      ess: effective sample size, all chains together.
    """
    m = 2 * num_chains
    worst = _chi2_quantile(m - 1, 1 - _BY_CHANCE / (2 * num_entries)) / (m - 1)
    return float(max(MOST_RHAT, np.sqrt(1 + (worst - 1) * m / max(ess, 1.0))))


@functools.lru_cache  # it takes 0.1 s
def _chi2_quantile(freedom: int, probability: float) -> float:
    law = tfp.distributions.Chi2(np.float64(freedom))
    try:
        return float(law.quantile(probability))
    except tf.errors.InvalidArgumentError:  # tf.debugging.enable_check_numerics, not in a graph
        return float(traced(lambda: law.quantile(probability))())


def batch_means_standard_error(draws: Any, num_batches: int = 20) -> np.ndarray:
    """Returns the standard error of the mean over draws and chains, by batch means.

    The error comes from the variance of the batches' means within chains. It is too small if a
    batch is not much longer than the autocorrelation time. The last draws that fill no batch are
    left out.

    Args:
      draws: `[draws, chains, ...]`.
      num_batches: number of batches of each chain; at most one per draw.

    Returns:
      `[...]` with `chains * (num_batches - 1)` degrees of freedom; NaN for a single batch.
    """
    draws = np.asarray(draws)
    num_batches = min(num_batches, len(draws))
    if num_batches < 2:
        return np.full(draws.shape[2:], np.nan)
    length = len(draws) // num_batches
    batches = draws[: num_batches * length].reshape(num_batches, length, *draws.shape[1:])
    variance = batches.mean(axis=1).var(axis=0, ddof=1).mean(axis=0)
    return np.sqrt(variance / (num_batches * draws.shape[1]))


def integrated_autocorrelation_time(
    samples: Any, *, chain_ndims: int = 0, window: float = 5.0
) -> Any:
    r"""Estimates the integrated autocorrelation time, with Sokal's window in place of Geyer's rule.

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
    window = positive("window", window)
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


def _of_entries(fn: Callable[[np.ndarray], np.ndarray], draws: Any) -> np.ndarray:
    """Returns a figure of each entry that moves, by blocks that bound the memory."""
    draws = np.asarray(draws)
    if draws.ndim < 2 or len(draws) < 4:
        raise ValueError(
            "draws must have shape [draws, chains, ...] with at least 4 draws. Received: shape "
            f"{draws.shape}."
        )
    x = draws.reshape(*draws.shape[:2], -1)
    found = np.full(x.shape[-1], np.nan)
    moves = np.isfinite(x).all(axis=(0, 1)) & (x != x[0, 0]).any(axis=(0, 1))
    places = np.flatnonzero(moves)
    num_blocks = 1 + len(places) * x.shape[0] * x.shape[1] // _BLOCK
    for block in np.array_split(places, num_blocks):
        if len(block):
            found[block] = fn(x[..., block].astype(np.float64))
    return found.reshape(draws.shape[2:])


def _num_entries(draws: Any) -> int:
    return max(1, math.prod(np.shape(draws)[2:]))


def _chain_dependence(x: np.ndarray, num_entries: int) -> np.ndarray:
    """Returns `chain_dependence` of some of the entries, `[draws, chains, entries]`.

    The variance of n independent normal numbers is chi-squared, over n; its quantile is that of
    Wilson and Hilferty. Autocorrelations leave a variance as much freedom as a mean, or more.
    """
    found, num_chains = np.ones(x.shape[-1]), x.shape[1]
    z = NormalDist().inv_cdf(1 - _DEPENDENT_BY_CHANCE / num_entries)

    def by_chance(freedom: Any) -> Any:
        return (1 - 2 / (9 * freedom) + z * np.sqrt(2 / (9 * freedom))) ** 3

    def of_last_half(y: np.ndarray) -> np.ndarray:
        y = y[len(y) // 2 :]
        y = y - y.mean(axis=0)
        with np.errstate(invalid="ignore"):
            return num_chains * (y.mean(axis=1) ** 2).mean(axis=0) / (y**2).mean(axis=(0, 1))

    most = len(x) - len(x) // 2
    near = np.flatnonzero(of_last_half(x) > by_chance(most))  # ranks take longer than moments
    if num_chains > 1 and len(near):
        scores = _normal_scores(x[..., near])
        freedom = np.minimum(_effective_sample_size(_split(scores)) / (2 * num_chains), most)
        factor = of_last_half(scores)
        found[near] = np.where(factor > by_chance(freedom), factor, 1.0)
    return found


def _split(x: np.ndarray) -> np.ndarray:
    half = len(x) // 2
    return np.concatenate([x[:half], x[-half:]], axis=1)


def _normal_scores(x: np.ndarray) -> np.ndarray:
    """Returns the normal scores of the ranks in all chains; equal draws have their mean rank."""
    flat = x.reshape(-1, x.shape[-1])
    ranks = np.empty(flat.shape)
    for entry, values in enumerate(flat.T):
        _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks[:, entry] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return tf.math.ndtri((ranks - 3 / 8) / (len(flat) + 1 / 4)).numpy().reshape(x.shape)


def _effective_sample_size(x: np.ndarray) -> np.ndarray:
    """Returns the size for the mean of x, `[draws, chains, entries]`, of chains that are split."""
    n, num_chains, _ = x.shape
    spectrum = np.fft.rfft(x - x.mean(axis=0), n=2 * n, axis=0)
    power = spectrum.real**2 + spectrum.imag**2
    covariance = np.fft.irfft(power, n=2 * n, axis=0)[:n].mean(axis=1) / n
    within = covariance[0] * n / (n - 1)
    variance = covariance[0] + x.mean(axis=0).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1 - (within - covariance) / variance
    rho[0] = 1.0
    num_pairs = max(1, (n - 1) // 2)
    pairs = rho[0 : 2 * num_pairs : 2] + rho[1 : 2 * num_pairs : 2]
    stops = np.vstack([pairs[:-1] <= 0, np.full([1, pairs.shape[1]], True)])
    last = stops.argmax(axis=0)  # the pair at which Geyer's sequence ends
    entries = np.arange(x.shape[-1])
    monotone = np.where(np.arange(num_pairs)[:, None] < last, np.minimum.accumulate(pairs), 0)
    even = rho[2 * last, entries]
    end = np.where(pairs[last, entries] >= 0, even, np.maximum(even, 0))
    total = n * num_chains
    time = np.maximum(2 * monotone.sum(axis=0) - 1 + end, 1 / np.log10(total))
    return np.where(variance > 0, total / time, total)  # an event that is always true
