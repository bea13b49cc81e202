"""How far draws are from the exact moments, with the error of their finite number taken off."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.common.chains import effective_sizes
from benchmarks.no_knobs.references import Reference

MEAN_AIM = 0.03  # standard deviations, root mean square over the parameters
DEVIATION_AIM = 0.02  # of the mean ratio of the standard deviations


class Accuracy(NamedTuple):
    """Errors of draws.

    Attributes:
      mean: root mean square over parameters of (mean - exact mean) / exact standard deviation.
      mean_noise: what that would be if only the numbers of draws were to blame, the reference's
        included: the root mean square of the standard errors.
      ratio: mean over parameters of standard deviation / exact standard deviation.
      ratio_noise: standard error of `ratio`, as if all parameters had the same error.
      least: the least ratio of a parameter.
      largest: the largest one.
    """

    mean: float
    mean_noise: float
    ratio: float
    ratio_noise: float
    least: float
    largest: float

    @property
    def mean_excess(self) -> float:
        """The error of the means beyond their noise, which adds in squares."""
        return float(np.sqrt(np.maximum(self.mean**2 - self.mean_noise**2, 0.0)))

    @property
    def ratio_excess(self) -> float:
        """The error of the mean ratio beyond its noise."""
        return float(np.sqrt(np.maximum((self.ratio - 1) ** 2 - self.ratio_noise**2, 0.0)))

    @property
    def is_good(self) -> bool:
        """Whether the aims are met; never for NaN, nor where noise could hide a miss."""
        is_known = self.mean_noise < MEAN_AIM and self.ratio_noise < DEVIATION_AIM
        return is_known and self.mean_excess < MEAN_AIM and self.ratio_excess < DEVIATION_AIM


def judge(draws: np.ndarray, reference: Reference) -> Accuracy:
    """Returns the errors of draws `[num_results, chains, D]`."""
    z = (draws.astype(np.float64) - reference.mean) / reference.deviation
    off, squares = z.mean(axis=(0, 1)), (z - z.mean(axis=(0, 1))) ** 2
    ratios = np.sqrt(squares.mean(axis=(0, 1)))
    of_means = ratios**2 / sizes(z) + reference.mean_error**2
    # The standard deviation of a mean square is twice that of its root, at a ratio of one.
    of_ratios = squares.var(axis=(0, 1)) / sizes(squares) / 4 + reference.deviation_error**2
    return Accuracy(
        float(np.sqrt(np.mean(off**2))),
        float(np.sqrt(np.mean(of_means))),
        float(np.mean(ratios)),
        float(np.sqrt(np.mean(of_ratios))),
        float(ratios.min()),
        float(ratios.max()),
    )


def sizes(draws: np.ndarray) -> np.ndarray:
    """Returns effective sample sizes `[D]`, at most the number of draws.

    Chains that alternate around the mean know it better than independent draws, but not the rest.
    """
    num_draws = draws.shape[0] * draws.shape[1]
    return np.minimum(effective_sizes(draws, cross_chain_dims=1), num_draws)


def effective(draws: np.ndarray) -> float:
    """Returns the effective sample size of the median parameter."""
    return float(np.median(sizes(draws)))
