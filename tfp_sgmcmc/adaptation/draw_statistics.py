"""Figures of draws that the run decides by: R-hat, effective sample sizes, temperature, means."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics.autocorrelation import integrated_autocorrelation_time

_MOST_ENTRIES = 1000  # of which R-hat and effective sample sizes are computed


class Convergence(NamedTuple):
    """Figures of all entries.

    Attributes:
      rhat: largest R-hat, rank-normalised and split, of the draws and of their distances to the
        median.
      ess: smallest effective sample size of the same, all chains together.
      median_ess: the median of the same.
      limit: the R-hat that sound chains hardly ever exceed.
    """

    rhat: float
    ess: float
    median_ess: float
    limit: float


def convergence(draws: np.ndarray) -> Convergence:
    """Returns figures of draws `[results, chains, D]`, as Vehtari et al. (2021) define them."""
    size = draws.shape[-1]
    x = draws[..., np.unique(np.linspace(0, size - 1, min(size, _MOST_ENTRIES)).astype(int))]
    x = x[: len(x) // 2 * 2].astype(np.float64)
    folded = np.abs(x - np.median(x, axis=(0, 1)))
    rhat, sizes = 1.0, []
    for y in (x, folded):
        half = len(y) // 2
        split = _normal_scores(np.concatenate([y[:half], y[half:]], axis=1))
        found = tfp.mcmc.potential_scale_reduction(split, independent_chain_ndims=1)
        # Chains that have stopped give NaN.
        rhat = max(rhat, float(np.nan_to_num(np.sqrt(found), nan=np.inf).max()))
        times = integrated_autocorrelation_time(split, chain_ndims=1)
        worth = split.shape[0] * split.shape[1] / np.maximum(times, 1e-3)
        sizes.append(np.nan_to_num(worth, nan=1.0))
    ess = float(np.min(sizes))
    chains = 2 * x.shape[1]
    # Chains that never met have few effective draws, and must not be excused by that.
    worth = max(ess, 0.25 * x.shape[0] * x.shape[1])
    median = float(np.median(sizes))
    return Convergence(rhat, ess, median, _rhat_by_chance(chains, 4 * x.shape[-1], worth))


def _normal_scores(x: np.ndarray) -> np.ndarray:
    flat = x.reshape(-1, x.shape[-1])
    ranks = np.argsort(np.argsort(flat, axis=0, kind="stable"), axis=0) + 1
    scores = tf.math.ndtri((ranks - 0.375) / (len(flat) + 0.25)).numpy()
    return scores.reshape(x.shape)


def _rhat_by_chance(num_chains: int, num_tests: int, ess: float) -> float:
    """Returns the R-hat that the worst of `num_tests` exceeds with probability 1e-3."""
    chi2 = tfp.distributions.Chi2(np.float64(num_chains - 1))
    worst = float(chi2.quantile(1 - 1e-3 / num_tests)) / (num_chains - 1)
    return float(max(1.01, np.sqrt(1 + (worst - 1) * num_chains / max(ess, 1.0))))


class Fit(NamedTuple):
    r"""How well draws fit the gradients: \( -E[z_j g_j] = 1 \) and \( E[g_j] = 0 \).

    Attributes:
      temperature: the mean over entries of \( -z_j g_j \): the draws' mean variance over the
        posterior's.
      error: its standard error.
      shift: root mean square over entries of the means' offsets, in standard deviations, less what
        is by chance.
      shift_error: the root of the standard error of its square, if the means are right.
      radius: mean of \( |z|^2 / D \), which is 1 for Laplace's approximation.
    """

    temperature: float
    error: float
    shift: float
    shift_error: float
    radius: float

    @property
    def excess(self) -> float:
        return self.temperature - 1


def fit(z: np.ndarray, gradients: np.ndarray) -> Fit:
    """Returns figures of draws and gradients of the log posterior, `[results, chains, D]`."""
    products = -(z * gradients).mean(axis=-1)
    squares = _error(gradients) ** 2
    means = gradients.mean(axis=(0, 1))
    dim = z.shape[-1]
    shift = float(np.mean(means**2 - squares))
    noise = float(np.sqrt(2 * np.sum(squares**2)) / dim)
    return Fit(
        float(products.mean()),
        float(_error(products)),
        float(np.sqrt(max(shift, 0.0))),
        float(np.sqrt(noise)),
        float((z**2).mean()),
    )


def _error(x: np.ndarray) -> np.ndarray:
    """Returns the standard error of the mean over draws and chains, from means over windows."""
    windows = min(20, len(x))
    length = len(x) // windows
    means = x[: windows * length].reshape(windows, length, *x.shape[1:]).mean(axis=1)
    return np.sqrt(means.var(axis=0, ddof=1).mean(axis=0) / (windows * x.shape[1]))
