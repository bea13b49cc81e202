"""Faults of a density near draws: values that rounding decides, and sudden falls to zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_NUM_ROUNDED, _NUM_LINES = 500, 50  # draws that are looked at
_MOVE = 1e-4  # of all entries at once, in standard deviations
_MOST_CHANGE = 0.5  # of a log density over such a move; a smooth one changes by about 1e-4
_ENTRIES = 10  # that are moved in one call
_LEAST_SHARE = 0.02  # of draws from which a move of one deviation ends where the density is zero
_HALVINGS = 60
_MOST_FALL = 100.0  # of the log density on the way; a larger one is an overflow


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
    rows = _evenly_spread(draws, _NUM_ROUNDED)
    moves = _MOVE * draws.std(axis=0) * rng.standard_normal(rows.shape)
    with np.errstate(all="ignore"):
        change = np.abs(log_prob_fn(rows + moves.astype(rows.dtype)) - log_prob_fn(rows))
    return float(np.mean(~(change <= _MOST_CHANGE)))


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
    rows = _evenly_spread(draws, _NUM_LINES)
    inside = log_prob_fn(rows)
    rows, inside = rows[np.isfinite(inside)], inside[np.isfinite(inside)]
    deviation, dim = draws.std(axis=0), draws.shape[-1]
    for first in range(0, dim, _ENTRIES):  # together, because a call evaluates many states
        entries = np.arange(first, min(first + _ENTRIES, dim))
        steps = np.zeros([len(entries), 2, 1, dim])
        for side in (0, 1):
            steps[entries - first, side, 0, entries] = (2 * side - 1) * deviation[entries]
        values = log_prob_fn((rows + steps).reshape(-1, dim))
        is_zero = np.isneginf(values).reshape(len(entries), 2, len(rows))
        for i, side in np.argwhere(is_zero.sum(axis=-1) > _LEAST_SHARE * len(rows)):
            end = _last_inside(
                log_prob_fn, rows[is_zero[i, side]], inside[is_zero[i, side]], steps[i, side]
            )
            if end is not None:
                return int(entries[i]), end, 2.0 * side - 1
    return None


def _evenly_spread(draws: np.ndarray, most: int) -> np.ndarray:
    return draws[np.linspace(0, len(draws) - 1, min(len(draws), most)).astype(int)]


def _last_inside(
    log_prob_fn: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    value: np.ndarray,
    step: np.ndarray,
) -> np.ndarray | None:
    """Returns the last state of positive density on the way from the first start to start + step.

    The log densities at the starts, `[K, D]`, are `value`. The result is None if densities fall
    gradually on the way.
    """
    low, high = np.zeros([len(start), 1]), np.ones([len(start), 1])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_in = np.isfinite(log_prob_fn(start + middle * step))[:, np.newaxis]
        low, high = np.where(is_in, middle, low), np.where(is_in, high, middle)
    ends = start + low * step
    return ends[0] if np.median(value - log_prob_fn(ends)) < _MOST_FALL else None
