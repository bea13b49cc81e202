"""How far draws are from the reference draws, with the error of both finite numbers taken off."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.common.chains import effective_sizes
from datasets.posteriordb import QUANTILES, Moments

MEAN_AIM = 0.05  # standard deviations
DEVIATION_AIM = 0.05  # of the ratio of the standard deviations
QUANTILE_AIM = 0.1  # standard deviations
ERRORS = 4.0  # standard errors that are allowed beyond the aims
MOST_ERROR = 0.1  # standard deviations; means with a larger standard error are not known
WIDTH = 0.02  # of the probabilities whose quantiles give the density at a quantile


class Accuracy(NamedTuple):
    """Errors of draws in standard deviations of the reference, of the worst parameter.

    Attributes:
      mean: of the means.
      mean_excess: what is left of it beyond four standard errors.
      least: the least ratio of a standard deviation to the reference's.
      largest: the largest one.
      deviation_excess: the distance of a ratio from one, beyond four standard errors.
      low: of the 5 % quantiles.
      high: of the 95 % quantiles.
      quantile_excess: what is left of the larger one beyond four standard errors.
      effective: effective samples of the median parameter.
      fewest: effective samples of the worst parameter.
      error: the largest standard error of a mean.
    """

    mean: float
    mean_excess: float
    least: float
    largest: float
    deviation_excess: float
    low: float
    high: float
    quantile_excess: float
    effective: float
    fewest: float
    error: float

    @property
    def is_right(self) -> bool:
        """Whether the aims are met; never for NaN, nor where noise could hide a miss."""
        return (
            self.error < MOST_ERROR
            and self.mean_excess < MEAN_AIM
            and self.deviation_excess < DEVIATION_AIM
            and self.quantile_excess < QUANTILE_AIM
        )


def judge(draws: np.ndarray, reference: Moments) -> Accuracy:
    """Returns the errors of draws `[num_results, chains, D]`."""
    z = (draws - reference.mean) / reference.deviation
    ess = sizes(z)
    off, squares = z.mean(axis=(0, 1)), (z - z.mean(axis=(0, 1))) ** 2
    ratios = np.sqrt(squares.mean(axis=(0, 1)))
    mean_error = ratios * np.sqrt(1 / ess + 1 / reference.num_draws)
    # The standard deviation of a mean square is twice that of its root, at a ratio of one.
    relative = np.sqrt(squares.var(axis=(0, 1))) / np.maximum(ratios, 1e-12) / 2
    ratio_error = relative * np.sqrt(1 / sizes(squares) + 1 / reference.num_draws)
    found = [quantile_errors(z, reference, p) for p in (QUANTILES[0], QUANTILES[-1])]
    return Accuracy(
        worst(off),
        float(np.max(np.abs(off) - ERRORS * mean_error)),
        float(ratios.min()),
        float(ratios.max()),
        float(np.max(np.abs(ratios - 1) - ERRORS * ratio_error)),
        *(worst(off) for off, _ in found),
        max(float(np.max(np.abs(off) - ERRORS * error)) for off, error in found),
        float(np.median(ess)),
        float(np.min(ess)),
        float(np.max(ratios / np.sqrt(ess))),
    )


def quantile_errors(
    z: np.ndarray, reference: Moments, probability: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the errors of the quantiles of standardized draws, and their standard errors."""
    exact = reference.quantiles[QUANTILES.index(probability)]
    exact = (exact - reference.mean) / reference.deviation
    low, middle, high = np.quantile(
        z, [probability - WIDTH, probability, probability + WIDTH], axis=(0, 1)
    )
    width = (high - low) / (2 * WIDTH)  # one over the density
    size = sizes((z < middle).astype(np.float64))
    chance = probability * (1 - probability) * (1 / size + 1 / reference.num_draws)
    return middle - exact, width * np.sqrt(chance)


def sizes(draws: np.ndarray) -> np.ndarray:
    """Returns effective sample sizes `[D]`, at most the number of draws, and at least one."""
    found = effective_sizes(draws, cross_chain_dims=1)
    return np.clip(np.nan_to_num(found, nan=1.0), 1.0, draws.shape[0] * draws.shape[1])


def worst(x: np.ndarray) -> float:
    """Returns the entry of the largest size, which is NaN if there is one."""
    return float(x[np.argmax(np.abs(x))]) if np.isfinite(x).all() else np.nan
