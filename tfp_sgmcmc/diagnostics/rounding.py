"""Finds log densities whose values rounding decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_NUM_DRAWS = 500
_MOVE = 1e-4  # of all entries at once, in standard deviations
_MOST_CHANGE = 0.5  # of a log density over such a move; a smooth one changes by about 1e-4


def rounded_share(
    log_prob_fn: Callable[[np.ndarray], np.ndarray], draws: np.ndarray, rng: np.random.Generator
) -> float:
    """Returns the share of draws at which hardly any move changes a log density by much.

    A value that is not finite, such as NaN where a factorisation fails, counts as such a change.

    Args:
      log_prob_fn: log densities of flat states, `[K, D]`.
      draws: flat states, `[draws, D]`.
      rng: random numbers.
    """
    rows = draws[np.linspace(0, len(draws) - 1, min(len(draws), _NUM_DRAWS)).astype(int)]
    moves = _MOVE * draws.std(axis=0) * rng.standard_normal(rows.shape)
    with np.errstate(all="ignore"):
        change = np.abs(log_prob_fn(rows + moves.astype(rows.dtype)) - log_prob_fn(rows))
    return float(np.mean(~(change <= _MOST_CHANGE)))
