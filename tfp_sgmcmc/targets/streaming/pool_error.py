"""The probabilities of rows to be kept in a pool, and the error that a pool leaves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.targets.base import ExpansionError
from tfp_sgmcmc.targets.streaming.pool_report import MOST_MEAN_ERROR, MOST_WIDTH_ERROR
from tfp_sgmcmc.targets.streaming.row_remainders import Moments, RowRemainders

_LEAST_ROWS, _MOST_ROWS = 100_000, 1_000_000
_MIXED = 0.2  # of the mean norm, which is added to all
_WANTED = 0.2  # of the largest errors


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
