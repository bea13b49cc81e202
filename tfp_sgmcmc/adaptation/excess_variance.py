"""Predicts the excess variance that minibatch noise causes, and chooses batch and step by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.kernels.linear_theory import splitting_law
from tfp_sgmcmc.targets.control_variates.noise_prediction import RemainderCovariance
from tfp_sgmcmc.targets.laplace.quadratic import GUARD

NUM_STATES = 16  # at which the noise is evaluated at a time
_OF_STEPS = 0.01  # excess variance, of either sign, that a step of 1 may cause
FRICTION = 1.0
STEP_SIZES = (1.0, 0.5, 0.25)
# Limits of the excess variance; standard deviations are off by half of it. The temperature corrects
# the mean. With higher limits, a few draws far out, which no prediction sees, made means and
# standard deviations wrong.
MOST_MEAN, MOST_WORST = 0.03, 0.05
_ROUND = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)


class BatchAndStep(NamedTuple):
    """A batch size and a step size, with the excess variance that the noise is predicted to cause.

    Attributes:
      batch_size: n.
      step_size: h, in whitened coordinates.
      mean: the mean over directions of the excess variance.
      worst: the largest excess variance of a direction.
    """

    batch_size: int
    step_size: float
    mean: float
    worst: float

    @property
    def steps_per_draw(self) -> int:
        """Number of steps between draws.

        By the exact law of a standard normal, each draw is then worth 0.98 independent draws or
        more for the mean, and 0.91 or more for the variance.
        """
        return round(2 / self.step_size)


def batch_sizes(num_examples: int) -> list[int]:
    """Returns the batch sizes to try, up to N / 2; larger ones cost as much as all data.

    >>> batch_sizes(1200), batch_sizes(60)
    ([100, 150, 200, 300, 400, 500], [30])
    """
    found = [int(100 * 10**k * r) for k in range(8) for r in _ROUND]
    half = max(1, num_examples // 2)
    return [n for n in found if n <= half] or [half]


def excess_variance_factor(step_size: float) -> float:
    """Returns the variance that noise of variance 1 adds to a whitened direction.

    >>> round(excess_variance_factor(1.0), 4), round(excess_variance_factor(0.01), 6)
    (0.7213, 0.005)
    """
    return float(splitting_law(step_size, FRICTION, 1.0, 1.0).temperature) - 1


def safe_settings(
    covariance: np.ndarray, num_examples: int, step_sizes: Sequence[float] = STEP_SIZES
) -> list[BatchAndStep]:
    r"""Returns for each step size the smallest batch size whose noise is small, if there is one.

    `covariance` is the covariance of the estimate from one example, in whitened coordinates. The
    excess over the variance 1 is predicted as `excess_variance_factor` times its eigenvalues over
    n. It must be at most 0.03 on average, which the temperature corrects, and 0.05 in the worst
    direction.

    >>> n, h, mean, worst = safe_settings(np.diag([4.0, 2.0]), 10_000)[0]
    >>> n, h, round(mean, 4), round(worst, 4)
    (100, 1.0, 0.0216, 0.0289)
    """
    eigenvalues = np.maximum(np.linalg.eigvalsh(covariance), 0)
    found = []
    for h in step_sizes:
        factor = excess_variance_factor(h)
        for n in batch_sizes(num_examples):
            mean, worst = factor * eigenvalues.mean() / n, factor * eigenvalues[-1] / n
            if mean <= MOST_MEAN and worst <= MOST_WORST:
                found.append(BatchAndStep(n, h, float(mean), float(worst)))
                break
    return found


def cheapest(
    settings: Sequence[BatchAndStep], seconds: Callable[[int], float]
) -> BatchAndStep | None:
    """Returns the setting that needs the least time for a nearly independent draw.

    `seconds(n)` measures the time of a step, once for each n: among the settings with the same n,
    the one with the largest step is the cheapest.
    """
    by_step = sorted(settings, key=lambda s: s.step_size)
    largest = {s.batch_size: s for s in by_step}.values()
    return min(largest, key=lambda s: s.steps_per_draw * seconds(s.batch_size), default=None)


class ExcessVariance(NamedTuple):
    """The variance that noise adds to the variance 1: mean over directions, and worst direction."""

    mean: float
    worst: float


def noise_covariance(remainders: RemainderCovariance, z: np.ndarray, blocks: int) -> np.ndarray:
    """Returns the mean covariance of estimates from one example at 16 states a block of `z`.

    The states are equally spaced among those of `z`, `[..., D]`.
    """
    flat = z.reshape(-1, z.shape[-1])
    picked = flat[np.linspace(0, len(flat) - 1, blocks * NUM_STATES).astype(int)]
    return np.mean([remainders(part) for part in np.split(picked, blocks)], axis=0)


def excess_of(covariance: np.ndarray, step_size: float, batch_size: int) -> ExcessVariance:
    """Returns the excess variance with n examples a step; `covariance` is that of one example."""
    factor = excess_variance_factor(step_size) / batch_size
    eigenvalues = factor * np.linalg.eigvalsh(covariance)
    return ExcessVariance(float(eigenvalues.mean()), float(eigenvalues[-1]))


def excess_of_parameters(
    covariance: np.ndarray, factor: np.ndarray, step_size: float, batch_size: int
) -> float:
    """Returns the mean over parameters of the relative excess of their variances.

    `factor` is L in theta = center + L z. Most of the parameters' variance comes from directions
    that the data hardly inform, where noise is small.
    """
    ratios = ((factor @ covariance) * factor).sum(axis=-1) / (factor**2).sum(axis=-1)
    return float(excess_variance_factor(step_size) / batch_size * ratios.mean())


def temperature(noise: float, unexplained: float, error: float) -> float:
    r"""Returns the temperature at which the parameters' variances are right on average.

    \[
    T = 1 - m - \frac{0.01^2}{0.01^2 + \sigma^2} u
    \]

    where m is the mean excess of the parameters' variances due to noise, and \( u \pm \sigma \) is
    the excess that gradients at the pilot's draws show beyond m. It comes from the finite step, and
    is about 0.01.

    >>> round(temperature(0.02, unexplained=0.01, error=0.01), 4)
    0.975
    """
    return 1 - noise - _OF_STEPS**2 / (_OF_STEPS**2 + error**2) * unexplained


def guarded_share(z: np.ndarray) -> float:
    """Returns the share of states `[..., D]` at which the guard w of control variates is below 1.

    >>> guarded_share(np.array([[1.0, 1.0], [2.0, 0.0]]))
    0.5
    """
    return float(np.mean((z**2).mean(axis=-1) > GUARD))
