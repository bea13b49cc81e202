"""How a pool of rows is drawn: the probabilities of rows to be kept, and the error that is left."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.targets.base import ExpansionError
from tfp_sgmcmc.targets.streaming.row_remainders import Moments, RowRemainders

# Errors by the pool, in standard deviations of a mean and as a share of a standard deviation.
MOST_MEAN_ERROR, MOST_WIDTH_ERROR = 0.02, 0.01
_LEAST_ROWS, _MOST_ROWS = 100_000, 1_000_000
_MIXED = 0.2  # of the mean norm, which is added to all
_WANTED = 0.2  # of the largest errors


class Pass(NamedTuple):
    """A pass over the data.

    Attributes:
      num_rows: the rows that were read.
      seconds: the time that it took.
    """

    num_rows: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class PoolReport:
    """How a pool was drawn, and the error that it leaves.

    Attributes:
      num_examples: N.
      num_rows: M, the rows in memory.
      passes: the passes over the data that were made.
      mean_error: standard error that the pool causes in posterior means, in standard deviations,
        in the worst direction of whitened coordinates. 0 if all rows are in memory.
      width_error: the same of standard deviations, as a share.
      offset: the distance from the center to the mode, in standard deviations.
    """

    num_examples: int
    num_rows: int
    passes: tuple[Pass, ...]
    mean_error: float = 0.0
    width_error: float = 0.0
    offset: float = 0.0

    @property
    def lines(self) -> tuple[str, ...]:
        """The passes over the data and the error of the pool, in plain words."""
        seconds = ", ".join(f"{p.seconds:.3g} s" for p in self.passes)
        read, count = self.passes[0], len(self.passes)
        rate = read.num_rows / max(read.seconds, 1e-9)
        took = (
            f"{count} pass{'es' * (count > 1)} over the {self.num_examples} rows on disk took "
            f"{seconds} (the first, which only reads, {rate:.3g} rows a second)."
        )
        dropped = self.num_examples - read.num_rows
        if dropped:
            took += f" The dataset drops the last {dropped} rows, which do not fill a batch."
        if self.num_rows == read.num_rows:
            return (f"{took} All rows fit into memory and were loaded.",)
        return (
            f"{took} The sum of all log likelihoods is known exactly to second order at a center "
            f"{self.offset:.2g} standard deviations from the mode. What is beyond is estimated by "
            f"a pool of {self.num_rows} rows in memory, which were drawn in proportion to it. The "
            f"pool's standard errors are {self.mean_error:.1g} standard deviations in means and "
            f"{100 * self.width_error:.1g} % in standard deviations. Below, the examples are "
            "those of the pool.",
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """A warning if the pool is too small."""
        if self.mean_error < MOST_MEAN_ERROR and self.width_error < MOST_WIDTH_ERROR:
            return ()
        return (
            f"The pool of {self.num_rows} rows is too small: its standard errors are "
            f"{self.mean_error:.2g} standard deviations in means and "
            f"{100 * self.width_error:.2g} % in standard deviations. Raise memory= of the "
            "StreamedLogProb.",
        )


def moments_of(remainders: RowRemainders, rows: Any) -> Moments:
    """Returns the moments of all rows in memory."""
    total = len(tf.nest.flatten(rows)[0])
    found, size = [], min(total, remainders.block_rows)
    for start in range(0, total, size):
        first = min(start, total - size)
        part = remainders.moments(
            tf.nest.map_structure(lambda x, a=first: tf.constant(x[a : a + size]), rows)
        )
        found.append([x[start - first :] for x in part])
    moments = Moments(*(np.concatenate(x) for x in zip(*found, strict=True)))
    if not np.isfinite(moments.norms).all():
        raise ExpansionError(
            "The gradients of all log likelihoods must be finite at draws of Laplace's "
            "approximation. Received: NaN or infinite ones."
        )
    return moments


class KeepingProbabilities(NamedTuple):
    """The probabilities of rows to be kept, a function of the norms of their remainders.

    Attributes:
      scale: rows that are wanted for each unit of a norm.
      mixed: added to all norms, because remainders at other states differ.
    """

    scale: float
    mixed: float

    def __call__(self, norms: np.ndarray) -> np.ndarray:
        return np.minimum(1.0, self.scale * (norms + self.mixed))


def keeping_probabilities(moments: Moments, total: int, most_rows: int) -> KeepingProbabilities:
    """Returns the probabilities for a pool of as many rows as its error needs.

    It has at most as many as fit.
    """
    mean = float(moments.norms.mean())
    mixed = _MIXED * mean if mean > 0 else 1.0  # a quadratic log likelihood has no remainders

    def of_size(count: float) -> KeepingProbabilities:
        # The norms' mean over a sample of rows stands for that over all rows.
        return KeepingProbabilities(count / (total * (mean + mixed)), mixed)

    # The number of rows that are kept varies by its square root.
    most = min(max(most_rows - 3 * most_rows**0.5, most_rows / 2), _MOST_ROWS)
    count = min(most, _LEAST_ROWS)
    while count < most:
        mean_error, width_error = pool_errors(moments, of_size(count)(moments.norms), total)
        if mean_error < _WANTED * MOST_MEAN_ERROR and width_error < _WANTED * MOST_WIDTH_ERROR:
            break
        count = min(2 * count, most)
    return of_size(count)


def pool_errors(moments: Moments, probabilities: np.ndarray, total: int) -> tuple[float, float]:
    """Returns the standard errors that a pool causes in means and standard deviations."""
    weights = total / len(probabilities) * (1 / probabilities - 1)
    means, tilts = (np.sqrt(weights @ x**2).max() for x in (moments.means, moments.tilts))
    return float(means), float(tilts) / 2
