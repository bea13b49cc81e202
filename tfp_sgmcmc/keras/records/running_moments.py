"""Means and variances of chains whose samples come in blocks and are not kept."""

from __future__ import annotations

from typing import Any

import numpy as np


class RunningMoments:
    r"""Mean and variance of each entry in each chain (Chan, Golub & LeVeque 1979).

    Attributes:
      count: number of samples of each chain, n.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0

    def add(self, block: np.ndarray) -> None:
        """Adds samples `[n, chains, ...]`."""
        block = block.astype(np.float64)
        new, mean = len(block), block.mean(axis=0)
        squares = np.square(block - mean).sum(axis=0)
        total, off = self.count + new, mean - self._mean
        self._squares = self._squares + squares + off**2 * (self.count * new / total)
        self._mean = self._mean + off * (new / total)
        self.count = total

    def rhat(self) -> np.ndarray:
        r"""Returns R-hat of each entry; NaN before every chain has two samples that differ.

        With means \( \bar m_c \) and sample variances \( s_c^2 \) of the chains, and their mean W,

        \[ \hat R = \sqrt{\frac{n - 1}{n} + \frac{\operatorname{var}_c \bar m_c}{W}} . \]

        This is Gelman et al., Bayesian Data Analysis, 3rd ed., equation 11.4, of whole chains.
        """
        if self.count < 2:
            return np.full(np.shape(self._mean)[1:], np.nan)
        within = self._squares.mean(axis=0) / (self.count - 1)
        between = self._mean.var(axis=0, ddof=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.sqrt((self.count - 1) / self.count + between / within)
