"""Finds where a density falls to zero at once, which no gradient tells a chain beforehand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_NUM_DRAWS = 50
_LEAST_SHARE = 0.02  # of draws from which a move of one deviation ends where the density is zero
_HALVINGS = 60
_MOST_FALL = 100.0  # of the log density on the way; a larger one is an overflow


def zero_density_beyond(
    log_prob_fn: Callable[[np.ndarray], np.ndarray], draws: np.ndarray
) -> tuple[int, np.ndarray, float] | None:
    """Returns the entry along which a density falls to zero at once, where, and to which side.

    Args:
      log_prob_fn: log densities of flat states, `[K, D]`.
      draws: flat states, `[draws, D]`.

    Returns:
      The entry, the last state of positive density on a line along it, and 1.0 or -1.0; or None.
    """
    rows = draws[np.linspace(0, len(draws) - 1, min(len(draws), _NUM_DRAWS)).astype(int)]
    inside = log_prob_fn(rows)
    rows, inside = rows[np.isfinite(inside)], inside[np.isfinite(inside)]
    deviation = draws.std(axis=0)
    for entry in range(draws.shape[-1]):
        for side in (-1.0, 1.0):
            step = np.zeros(draws.shape[-1])
            step[entry] = side * deviation[entry]
            (is_zero,) = np.nonzero(np.isneginf(log_prob_fn(rows + step)))
            if len(is_zero) <= _LEAST_SHARE * len(rows):
                continue
            start, value = rows[is_zero], inside[is_zero]
            low, high = np.zeros([len(is_zero), 1]), np.ones([len(is_zero), 1])
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                is_in = np.isfinite(log_prob_fn(start + middle * step))[:, np.newaxis]
                low, high = np.where(is_in, middle, low), np.where(is_in, high, middle)
            fall = value - log_prob_fn(start + low * step)
            if np.median(fall) < _MOST_FALL:
                return entry, (start + low * step)[0], side
    return None
