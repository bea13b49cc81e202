"""The choice of minibatch, step and sampler, from predictions and measured costs alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.kernels.linear_theory import splitting_law

FRICTION = 1.0
STEP_SIZES = (1.0, 0.5, 0.25)
# Of excess variance, half of which is what widths are off by. The temperature takes the mean off.
# Where more was allowed, few draws far out, which no prediction sees, made means and widths wrong.
MOST_MEAN, MOST_WORST = 0.03, 0.05
HMC_STRIDE = 2  # steps of HMC between nearly independent draws
_ROUND = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)


class Setting(NamedTuple):
    """A minibatch and a step, with the excess variance that the noise is predicted to cause.

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
    """Returns the batch sizes that are tried: up to N / 2, beyond which all data cost no more.

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
) -> list[Setting]:
    r"""Returns for each step the smallest minibatch whose noise is small, if there is one.

    `covariance` is that of the estimate from one example, in whitened coordinates. The variance in
    excess of 1 is predicted as `excess_variance_factor` times its eigenvalues over n. It must be at
    most 0.03 on average, which the temperature makes up for, and 0.05 in the worst direction.

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
                found.append(Setting(n, h, float(mean), float(worst)))
                break
    return found


def cheapest(settings: Sequence[Setting], seconds: Callable[[int], float]) -> Setting | None:
    """Returns the setting with the least seconds for a nearly independent draw.

    `seconds(n)` is the time of a step, and is asked for the fewest n: of the settings with the same
    n, the one with the largest step is the cheapest.
    """
    by_size: dict[int, Setting] = {}
    for s in settings:
        if s.batch_size not in by_size or s.step_size > by_size[s.batch_size].step_size:
            by_size[s.batch_size] = s
    return min(
        by_size.values(), key=lambda s: s.steps_per_draw * seconds(s.batch_size), default=None
    )


def leapfrog(dim: int) -> tuple[float, int]:
    """Returns the step and the number of steps of HMC for a standard normal in `dim` dimensions.

    With step e, the error of the energy has the standard deviation e^2 sqrt(D) / 4, and 0.38 of it
    is accepted with probability 0.85.

    >>> leapfrog(1), leapfrog(124), leapfrog(1000)
    ((0.79, 2), (0.37, 4), (0.22, 7))
    """
    step = min(0.8, (1.5**2 / dim) ** 0.25)
    count = steps_for(step)
    return round(min(step, 1.57 / count), 2), count


def steps_for(step: float) -> int:
    """Returns the number of leapfrog steps to about pi / 2, which make draws independent."""
    return max(2, round(1.5 / step))
