"""Sums over rows in any order, which tell whether two passes read the same data."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import tensorflow as tf

_SEED = 0  # of the weights
_MOST_ROWS = 2**16  # that set the scale of columns


class RowSums:
    r"""The sums \( \sum_i \sin r_i \) and \( \sum_i \cos r_i \), with \( r_i = w^T x_i - c \).

    They change if a row does, or if the entries of a column are given to other rows, but not with
    the order of the rows. Unlike a checksum of bytes, they bear rounding: a function of a block
    gives a row other last digits at another place of the block or on another processor. The
    functions are bounded, so that no row hides the others.

    Args:
      weights: w, one array for each leaf of the rows.
      offset: c.
    """

    def __init__(self, weights: list[np.ndarray], offset: float):
        self.weights, self.offset = weights, offset

    @classmethod
    def scaled_to(cls, rows: Any) -> Self:
        """Returns sums in which each column of some rows counts by its standard deviation."""
        rng = np.random.default_rng(_SEED)
        columns = [_flat(x)[:_MOST_ROWS].astype(np.float64) for x in tf.nest.flatten(rows)]
        total, weights, offset = sum(x.shape[1] for x in columns), [], 0.0
        for x in columns:
            mean, scale = x.mean(axis=0), x.std(axis=0)
            # Later rows may differ where the first ones are all 0, as in files sorted by label.
            scale = np.where(scale > 0, scale, np.where(np.abs(mean) > 1e-30, np.abs(mean), 1))
            signed = rng.uniform(0.5, 1.5, x.shape[1]) * rng.choice([-1, 1], x.shape[1])
            weights.append(signed / scale / total**0.5)
            offset += float(weights[-1] @ mean)
        return cls(weights, offset)

    def __call__(self, rows: Any) -> np.ndarray:
        """Returns the sums over rows, `[2]`."""
        r = np.float32(-self.offset)
        with np.errstate(invalid="ignore", over="ignore"):  # of rows that are not finite
            for x, w in zip(map(_flat, tf.nest.flatten(rows)), self.weights, strict=True):
                w = w.astype(x.dtype)
                r = r + (x[:, 0] * w if len(w) == 1 else x @ w)  # which is faster for one column
            return np.array([f(r).sum(dtype=np.float64) for f in (np.sin, np.cos)])

    def equals(self, other: RowSums) -> bool:
        """Returns whether another object computes the same sums."""
        pairs = zip(self.weights, other.weights, strict=True)
        return self.offset == other.offset and all(np.array_equal(x, y) for x, y in pairs)

    def differ(self, one: np.ndarray, other: np.ndarray, count: int) -> bool:
        """Returns whether two sums over `count` rows differ by more than rounding explains."""
        # Rounding moves r by about this much, in each row by chance or in all rows alike.
        rounding = 1e-6 * (1 + abs(self.offset))
        most = rounding * count + 1e-4 * count**0.5
        return bool(np.any(np.abs(one - other) > most))


def _flat(x: Any) -> np.ndarray:
    """Returns a leaf as floats, `[rows, entries]`."""
    array = np.asarray(x)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    return array.reshape(len(array), -1)
