"""Random rows of a stream, kept in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


class Reservoir:
    """Keeps a uniform random sample of rows, without replacement; all of them if they fit.

    Algorithm R of J. S. Vitter, Random sampling with a reservoir, ACM Transactions on Mathematical
    Software 11, 1985, for blocks of rows.

    Args:
      most: the number of rows to keep.
      rng: draws the rows.
    """

    def __init__(self, most: int, rng: np.random.Generator):
        self._most, self._rng = most, rng
        self._kept: list[np.ndarray] = []
        self._structure: Any = None
        self.num_seen = 0

    def add(self, rows: Any) -> None:
        """Takes the next block of rows into account."""
        leaves = [np.asarray(x) for x in tf.nest.flatten(rows)]
        if not self._kept:
            self._structure = tf.nest.map_structure(lambda x: None, rows)
            self._kept = [np.empty([self._most, *x.shape[1:]], x.dtype) for x in leaves]
        count = len(leaves[0])
        first = min(count, max(0, self._most - self.num_seen))  # which fill empty slots
        numbers = self.num_seen + np.arange(first, count)
        slots = (self._rng.random(count - first) * (numbers + 1)).astype(np.int64)
        (taken,) = np.nonzero(slots < self._most)
        slots = slots[taken]
        for kept, x in zip(self._kept, leaves, strict=True):
            kept[self.num_seen : self.num_seen + first] = x[:first]
            kept[slots] = x[first + taken]  # a slot that is named twice keeps the later row
        self.num_seen += count

    def rows(self) -> Any:
        """Returns the rows that are kept, as leaves `[rows, ...]`."""
        count = min(self._most, self.num_seen)
        return tf.nest.pack_sequence_as(self._structure, [x[:count] for x in self._kept])


class PoissonSample:
    """Keeps each row by a coin of its own, with a given probability.

    The sum of kept rows over their probabilities estimates the sum over all rows without bias
    (Horvitz and Thompson, Journal of the American Statistical Association 47, 1952).

    Args:
      rng: tosses the coins.
    """

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._kept: list[list[np.ndarray]] = []
        self._structure: Any = None
        self._probabilities: list[np.ndarray] = []

    def add(self, rows: Any, probabilities: np.ndarray) -> None:
        """Takes the first rows of a block, one for each of `probabilities`."""
        leaves = tf.nest.flatten(rows)
        if not self._kept:
            self._structure = tf.nest.map_structure(lambda x: None, rows)
            self._kept = [[] for _ in leaves]
        (taken,) = np.nonzero(self._rng.random(len(probabilities)) < probabilities)
        for parts, x in zip(self._kept, leaves, strict=True):
            parts.append(np.asarray(x)[taken])
        self._probabilities.append(probabilities[taken])

    @property
    def probabilities(self) -> np.ndarray:
        """The probabilities of the rows that are kept."""
        return np.concatenate(self._probabilities)

    def take_rows(self) -> Any:
        """Returns the rows that were kept, and forgets them."""
        leaves = []
        while self._kept:
            parts = self._kept.pop(0)
            leaves.append(np.concatenate(parts))
            parts.clear()
        return tf.nest.pack_sequence_as(self._structure, leaves)
