"""The exact law of two replicas in one dimension that move and swap, on a grid."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from tests.harness.one_dimension import Function, GridLaw


class ReplicaLaw:
    """Two replicas on the cells of a grid: moves by normal transitions, and swaps.

    Cells pass on their mass from their centres, by exact normal probabilities. The law after each
    number of steps is computed, whether it is stationary yet or not.

    Args:
      limit: the grid is `num_cells` cells on [-limit, limit].
      num_cells: m.
      swap_probability: `(cold, hot) -> probability`, at arrays of centres that broadcast.
    """

    def __init__(self, limit: float, num_cells: int, swap_probability: Callable):
        self.edges = np.linspace(-limit, limit, num_cells + 1)
        self.centres = (self.edges[1:] + self.edges[:-1]) / 2
        self.swapped = swap_probability(self.centres[:, np.newaxis], self.centres)

    def transition(self, mean: Function, deviation: float, weights: Any = (1.0,)) -> np.ndarray:
        """Probabilities `[to, from]` of theta' ~ N(mean(theta), deviation^2).

        Where `mean` returns K rows, it is the mean of these K transitions by their weights.
        """
        total = np.zeros(self.swapped.shape)
        for row, weight in zip(np.atleast_2d(mean(self.centres)), weights, strict=True):
            reached = stats.norm.cdf((self.edges[:, np.newaxis] - row) / deviation)
            total += weight * np.diff(reached, axis=0)
        return total / total.sum(axis=0)

    def after(
        self, num_steps: int, start: float, transitions: tuple[np.ndarray, np.ndarray]
    ) -> GridLaw:
        """Law of the cold replica after so many steps of both from `start`."""
        cold, hot = transitions
        at = np.argmin(np.abs(self.centres - start))
        joint = np.zeros([len(self.centres)] * 2)  # [cold, hot]
        joint[at, at] = 1.0
        for _ in range(num_steps):
            joint = cold @ joint @ hot.T
            leaving = joint * self.swapped
            joint = joint - leaving + leaving.T
        return GridLaw(self.edges, joint.sum(axis=1))
