"""The exact law on a grid of two replicas in one dimension that move and swap."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from tests.harness.one_dimension import Function, GridLaw


class ReplicaLaw:
    """Two replicas on the cells of a grid, which move by normal transitions and swap.

    Exact normal probabilities move the mass of each cell from its centre. The law is computed after
    a given number of steps, and need not be stationary.

    Args:
      limit: the grid covers [-limit, limit].
      num_cells: number of cells.
      swap_probability: function (cold, hot) -> probability of arrays of centres that broadcast.
    """

    def __init__(self, limit: float, num_cells: int, swap_probability: Callable):
        self.edges = np.linspace(-limit, limit, num_cells + 1)
        self.centres = (self.edges[1:] + self.edges[:-1]) / 2
        self.swapped = swap_probability(self.centres[:, np.newaxis], self.centres)

    def transition(self, mean: Function, deviation: float, weights: Any = (1.0,)) -> np.ndarray:
        """Returns probabilities `[to, from]` of theta' ~ N(mean(theta), deviation^2).

        If `mean` returns K rows, the result is the weighted mean of these K transitions.
        """
        total = np.zeros(self.swapped.shape)
        for row, weight in zip(np.atleast_2d(mean(self.centres)), weights, strict=True):
            reached = stats.norm.cdf((self.edges[:, np.newaxis] - row) / deviation)
            total += weight * np.diff(reached, axis=0)
        return total / total.sum(axis=0)

    def after(
        self, num_steps: int, start: float, transitions: tuple[np.ndarray, np.ndarray]
    ) -> GridLaw:
        """Returns the law of the cold replica after `num_steps` steps of both from `start`."""
        cold, hot = transitions
        at = np.argmin(np.abs(self.centres - start))
        joint = np.zeros([len(self.centres)] * 2)  # [cold, hot]
        joint[at, at] = 1.0
        for _ in range(num_steps):
            joint = cold @ joint @ hot.T
            leaving = joint * self.swapped
            joint = joint - leaving + leaving.T
        return GridLaw(self.edges, joint.sum(axis=1))
