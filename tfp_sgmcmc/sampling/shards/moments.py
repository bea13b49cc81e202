r"""Moments of the draws of a shard, from which R-hat and ESS of all shards follow.

Each chain is cut into K = 20 equal segments. Their means \( m_{ck} \) and variances are all that is
kept, so that draws of different workers never meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

NUM_SEGMENTS = 20
_BLOCK = 4096  # draws that are in memory at once


class Moments(NamedTuple):
    """Moments of the segments of each chain.

    Attributes:
      length: number of draws in each segment; the first draws that fill no segment are left out.
      means: means of the segments, `[K, chains, event...]`, `float64`.
      variances: variances of the segments, divided by `length`, with the same shape.
    """

    length: int
    means: np.ndarray
    variances: np.ndarray

    @classmethod
    def of(cls, draws: Any, num_segments: int = NUM_SEGMENTS) -> Moments:
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


def concatenate(shards: Iterable[Moments]) -> Moments:
    """Returns the moments of the chains of all shards, which have equally many draws.

    Raises:
      ValueError: the shards have different numbers of draws.
    """
    parts = list(shards)
    if len({part.length for part in parts}) != 1:
        lengths = ", ".join(str(part.length * len(part.means)) for part in parts)
        raise ValueError(f"Shards must have equally many draws. Received: {lengths}.")
    means = np.concatenate([part.means for part in parts], axis=1)
    return Moments(parts[0].length, means, np.concatenate([p.variances for p in parts], axis=1))


def rhat(moments: Moments) -> np.ndarray:
    r"""Returns the split R-hat of each entry, `[event...]`.

    Each chain counts as two half chains of n draws, with means \( \bar m_j \) and sample variances
    \( s_j^2 \), of which \( W = \operatorname{mean}_j s_j^2 \) is the mean:

    \[ \hat R = \sqrt{\frac{n - 1}{n} + \frac{\operatorname{var}_j \bar m_j}{W}} . \]

    This is Gelman et al., Bayesian Data Analysis, 3rd ed., equation 11.4, of the draws themselves.
    ArviZ' default ranks the draws first, for which all of them must be gathered.
    """
    halves = np.stack(np.split(moments.means, 2))  # [2, K/2, chains, event...]
    means = halves.mean(axis=1)
    size = moments.length * halves.shape[1]
    squares = np.stack(np.split(moments.variances, 2)).mean(axis=1) + halves.var(axis=1)
    within = (squares * size / (size - 1)).mean(axis=(0, 1))
    between = means.reshape([-1, *means.shape[2:]]).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((size - 1) / size + between / within)


def effective_sample_size(moments: Moments) -> np.ndarray:
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
    """Returns mean and variance of some draws, which are read in blocks (Chan et al. 1979)."""
    count, mean, squares = 0, 0.0, 0.0
    for at in range(start, stop, _BLOCK):
        block = np.asarray(draws[at : min(at + _BLOCK, stop)], np.float64)
        difference = block.mean(axis=0) - mean
        added = len(block)
        squares = squares + block.var(axis=0) * added
        squares = squares + difference**2 * count * added / (count + added)
        mean = mean + difference * added / (count + added)
        count += added
    return np.asarray(mean), np.asarray(squares) / count
