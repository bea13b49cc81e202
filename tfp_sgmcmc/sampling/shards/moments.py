r"""Moments of the draws of each shard, which give R-hat and ESS of all shards.

Each chain is cut into K = 20 equal segments. Only their means \( m_{ck} \) and variances are kept,
so R-hat and ESS need no draws of other workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_sgmcmc.diagnostics.convergence import RunningMoments, rhat_of_moments

NUM_SEGMENTS = 20
_BLOCK = 4096  # draws that are in memory at once


class SegmentMoments(NamedTuple):
    """Means and variances of the segments of each chain.

    Attributes:
      length: number of draws in each segment. The first draws are left out if they fill no segment.
      means: means of the segments, `[K, chains, event...]`, `float64`.
      variances: variances of the segments, divided by `length`, with the same shape.
    """

    length: int
    means: np.ndarray
    variances: np.ndarray

    @classmethod
    def of(cls, draws: Any, num_segments: int = NUM_SEGMENTS) -> SegmentMoments:
        """Returns the moments of draws `[draws, chains, event...]`, an array or `StoredDraws`.

        Raises:
          ValueError: there are fewer than two draws for each segment.
        """
        length = len(draws) // num_segments
        if length < 2:
            raise ValueError(
                f"draws must hold at least {2 * num_segments} draws. Received: {len(draws)}."
            )
        first = len(draws) - num_segments * length
        found = [
            _mean_and_variance(draws, first + k * length, first + (k + 1) * length)
            for k in range(num_segments)
        ]
        return cls(length, *(np.stack(part) for part in zip(*found, strict=True)))


def concatenate(shards: Iterable[SegmentMoments]) -> SegmentMoments:
    """Returns the moments of the chains of all shards, which have equally many draws.

    Raises:
      ValueError: the shards have different numbers of draws.
    """
    parts = list(shards)
    if len({part.length for part in parts}) != 1:
        lengths = ", ".join(str(part.length * len(part.means)) for part in parts)
        raise ValueError(f"Shards must have equally many draws. Received: {lengths}.")
    means = np.concatenate([part.means for part in parts], axis=1)
    return SegmentMoments(
        parts[0].length, means, np.concatenate([p.variances for p in parts], axis=1)
    )


def rhat(moments: SegmentMoments) -> np.ndarray:
    """Returns the split R-hat of each entry, `[event...]`, by `rhat_of_moments` of half chains.

    It is the R-hat of the draws themselves. Rank-normalised R-hat would need all draws in one
    place.
    """
    halves = np.stack(np.split(moments.means, 2))  # [2, K/2, chains, event...]
    num_draws = moments.length * halves.shape[1]
    variances = np.stack(np.split(moments.variances, 2)).mean(axis=1) + halves.var(axis=1)
    variances *= num_draws / (num_draws - 1)
    means, variances = (np.concatenate(x) for x in (halves.mean(axis=1), variances))
    return rhat_of_moments(means, variances, num_draws)


def batch_means_sample_size(moments: SegmentMoments) -> np.ndarray:
    r"""Returns the effective sample size of each entry's mean, all chains together, `[event...]`.

    By batch means: with C chains of K segments of length L, and v the variance of all draws,

    \[ \mathrm{ESS} = C K L \frac{v}{\hat\sigma^2}, \quad
       \hat\sigma^2 = \frac{L}{C K - 1} \sum_{c, k} (m_{ck} - \bar m)^2 . \]

    Its relative standard error is \( \sqrt{2 / (C K - 1)} \). Segments must be much longer than the
    autocorrelation time, otherwise the estimate is too large. (Flegal & Jones, Batch means and
    spectral variance estimators in Markov chain Monte Carlo, Annals of Statistics 2010, eq. 4.)
    """
    flat = moments.means.reshape([-1, *moments.means.shape[2:]])
    variance = moments.variances.mean(axis=(0, 1)) + flat.var(axis=0)
    total = len(flat) * moments.length
    with np.errstate(divide="ignore", invalid="ignore"):
        return total * variance / (moments.length * flat.var(axis=0, ddof=1))


def _mean_and_variance(draws: Any, start: int, stop: int) -> Sequence[np.ndarray]:
    """Returns mean and variance of draws `start` to `stop`, read in blocks."""
    moments = RunningMoments()
    for at in range(start, stop, _BLOCK):
        moments.add(np.asarray(draws[at : min(at + _BLOCK, stop)]))
    return moments.mean, moments.squares / moments.count
