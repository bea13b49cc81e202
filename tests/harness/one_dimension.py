"""Exact laws in one dimension, by quadrature on a grid."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

Function = Callable[[np.ndarray], np.ndarray]


class GridLaw(NamedTuple):
    """A distribution on the cells of a grid."""

    edges: np.ndarray
    masses: np.ndarray

    def cdf(self, x: np.ndarray) -> np.ndarray:
        return np.interp(x, self.edges, np.concatenate([[0.0], np.cumsum(self.masses)]))

    def draw(self, size: int, seed: int) -> np.ndarray:
        """Draws `size` values by the inverse distribution function at uniform numbers."""
        uniform = np.random.default_rng(seed).uniform(size=size)
        cumulative = np.concatenate([[0.0], np.cumsum(self.masses)])
        return np.interp(uniform, cumulative, self.edges)

    @property
    def variance(self) -> float:
        centres = (self.edges[1:] + self.edges[:-1]) / 2
        mean = self.masses @ centres
        return float(self.masses @ (centres - mean) ** 2)


def density_law(log_density: Function, limit: float, num_cells: int = 4000) -> GridLaw:
    """Returns the law with an unnormalised log density on [-limit, limit]."""
    edges = np.linspace(-limit, limit, num_cells + 1)
    masses = np.exp(log_density((edges[1:] + edges[:-1]) / 2))
    return GridLaw(edges, masses / masses.sum())


def stationary_law(mean: Function, deviation: Function, limit: float, num_cells: int) -> GridLaw:
    """Returns the stationary law of theta' ~ N(mean(theta), deviation(theta)^2) on a grid.

    The grid covers [-limit, limit]. Exact normal probabilities move the mass of each cell from its
    centre. The law is the fixed point of this transition matrix.
    """
    edges = np.linspace(-limit, limit, num_cells + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    reached = ndtr((edges[:, np.newaxis] - mean(centres)) / deviation(centres))  # [to, from]
    transition = np.diff(reached, axis=0)
    transition /= transition.sum(axis=0)
    equations = transition - np.eye(num_cells)
    equations[-1] = 1.0  # the masses add up to one
    masses = np.linalg.solve(equations, np.eye(num_cells)[-1])
    return GridLaw(edges, masses)
