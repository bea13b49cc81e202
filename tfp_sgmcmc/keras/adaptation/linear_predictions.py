"""Predicts temperature and relaxation time near a state, along all measured directions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tfp_sgmcmc.keras.checks.local_geometry import LocalGeometry
from tfp_sgmcmc.kernels import linear_theory
from tfp_sgmcmc.targets.minibatch import noise_scale

_GAIN = 3  # a kernel must need this many times fewer steps than a simpler one
_PRICE = 2.2  # factor of steps, or of bias, that a larger friction may cost
_FRICTIONS = 9  # compared
_STEP_SIZES = 25  # compared for the least bias
MARGIN = 9.0  # growth of the curvature at which chosen steps stay stable
_BISECTIONS = 40
_SMALLEST_SHARE = 1e-12  # of the largest step
_UNKNOWN = 1e-4  # smallest curvature over the largest, if the prior does not determine it

Kernels = Iterable[tuple[str, str | None]]  # names, with the covariance of NOGIN


class KernelSettings(NamedTuple):
    """A kernel and its settings.

    Attributes:
      kernel: "SGLD", "UnderdampedLangevin" or "NOGIN".
      step_size: epsilon of SGLD, h of the others.
      friction: friction; None for SGLD.
      covariance: the covariance of NOGIN, "full" or "diag"; None for the others.
    """

    kernel: str
    step_size: float
    friction: float | None = None
    covariance: str | None = None


def law(
    settings: KernelSettings, curvature: Any, noise: Any, known: Any = 0.0
) -> linear_theory.LinearLaw:
    """Returns the linear law of a kernel along directions.

    Args:
      settings: the kernel and its settings.
      curvature: a, positive, `[...]`.
      noise: s, the variance of the gradient along the direction, `[...]`.
      known: the variance that NOGIN assumes, `[...]`.
    """
    h, friction = settings.step_size, settings.friction
    if settings.kernel == "SGLD":
        return linear_theory.overdamped_law(h, curvature, noise)
    if settings.kernel == "UnderdampedLangevin":
        return linear_theory.splitting_law(h, friction, curvature, noise)
    return linear_theory.nogin_law(h, friction, curvature, noise, known)


class LinearPredictions(NamedTuple):
    """Predictions of linear theory from a local geometry, for batches of one size.

    Attributes:
      found: curvature and noise.
      scale: c, where c V is the covariance of a batch's gradient.
      least: the curvature of flat directions.
    """

    found: LocalGeometry
    scale: float
    least: float

    def excess(self, settings: KernelSettings) -> np.ndarray:
        """Returns the excess temperature along measured directions, and for the mean weight."""
        return self._along_all(settings).temperature[:-1] - 1

    def slowest(self, settings: KernelSettings) -> float:
        """Returns the relaxation time of the slowest direction, in steps."""
        return float(np.max(self._along_all(settings).relaxation_steps))

    def of_hottest(self, settings: KernelSettings) -> float:
        """Returns the relaxation time of the hottest direction, in steps."""
        found = self._along_all(settings)
        return float(found.relaxation_steps[np.argmax(found.temperature[:-2])])

    def share_of_flat(self, settings: KernelSettings, num_steps: int) -> float:
        """Returns the share of their variance that flat directions reach in `num_steps`."""
        return float(self._along_all(settings).share_after(num_steps)[-1])

    def fastest(self, kernels: Kernels, bound: float) -> KernelSettings:
        """Returns the settings with the shortest relaxation time within the bound.

        Where noise limits the step, h grows in proportion to the friction, and flat directions are
        equally slow at any large friction. The largest friction with a low cost is taken, because
        stiff directions then reach their temperature in the fewest steps.
        """
        best, fewest = None, math.inf
        for kernel, covariance in kernels:
            candidates = [
                self._with_largest_step(
                    KernelSettings(kernel, self.most(kernel), friction, covariance), bound
                )
                for friction in self._frictions(kernel)
            ]
            steps = [self.slowest(settings) for settings in candidates]
            if _GAIN * min(steps) < fewest:
                fewest, best = min(steps), _last_within(steps, candidates)
        assert best is not None  # because the number of steps is finite
        return best

    def least_biased(
        self, kernels: Kernels, within: KernelSettings, num_steps: int
    ) -> KernelSettings:
        """Returns the settings with the least bias of variances after `num_steps`.

        The bias is the largest absolute logarithm of a variance over the right one, among
        directions. `within` are settings that keep the bound.
        """
        best, least = within, _GAIN * self._bias(within, num_steps)
        for kernel, covariance in kernels:
            candidates, biases = [], []
            for friction in self._frictions(kernel):
                tried = [
                    KernelSettings(kernel, float(h), friction, covariance)
                    for h in np.geomspace(1e-6, 1.0, _STEP_SIZES) * self.most(kernel)
                ]
                found = [self._bias(settings, num_steps) for settings in tried]
                candidates.append(tried[int(np.argmin(found))])
                biases.append(min(found))
            if _GAIN * min(biases) < least:
                least, best = min(biases), _last_within(biases, candidates)
        return best

    def _along_all(self, settings: KernelSettings) -> linear_theory.LinearLaw:
        """Returns the law along measured directions, for the mean weight, and along flat ones."""
        found = self.found
        known: Any = {
            None: np.zeros_like(found.noise),
            "full": found.noise,  # an average over many minibatches
            "diag": found.noise_of_diagonal,
        }[settings.covariance]
        of_mean = 0.0 if settings.covariance is None else found.mean_noise
        curvature = np.maximum([*found.curvature, found.mean_curvature, self.least], self.least)
        noise = np.array([*found.noise, found.mean_noise, found.mean_noise])
        known = np.array([*known, of_mean, of_mean])
        return law(settings, curvature, self.scale * noise, self.scale * known)

    def _bias(self, settings: KernelSettings, num_steps: int) -> float:
        """Returns the largest absolute logarithm of a variance over the right one."""
        found = self._along_all(settings)
        ratio = found.temperature * found.share_after(num_steps)
        return float(np.max(np.abs(np.log(np.maximum(ratio, 1e-300)))))

    def most(self, kernel: str, margin: float = MARGIN) -> float:
        """Returns the largest step that is stable at `margin` times the curvature."""
        curvature = margin * self.found.largest_curvature
        return float(
            linear_theory.overdamped_limit(curvature)
            if kernel == "SGLD"
            else linear_theory.splitting_limit(curvature)
        )

    def _frictions(self, kernel: str) -> Iterator[float | None]:
        if kernel == "SGLD":
            return iter([None])
        largest = self.found.largest_curvature
        return iter((2 * np.geomspace(self.least, largest, _FRICTIONS) ** 0.5).tolist())

    def _with_largest_step(self, settings: KernelSettings, bound: float) -> KernelSettings:
        """Returns the settings with the step reduced, if necessary, to keep the bound."""

        def keeps(step_size: float) -> bool:
            return bool(np.all(self.excess(settings._replace(step_size=step_size)) <= bound))

        high = settings.step_size
        low = high if keeps(high) else _SMALLEST_SHARE * high
        for _ in range(0 if low == high else _BISECTIONS):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if keeps(middle) else (low, middle)
        return settings._replace(step_size=float(low))


def _last_within(costs: list[float], candidates: list[KernelSettings]) -> KernelSettings:
    """Returns the last settings that cost little more than the cheapest ones."""
    return [s for c, s in zip(costs, candidates, strict=True) if c <= _PRICE * min(costs)][-1]


def predictions_for(found: LocalGeometry, num_examples: int, batch_size: int) -> LinearPredictions:
    """Returns the predictions near a state for batches of n examples."""
    least = found.prior_curvature or _UNKNOWN * found.largest_curvature
    scale = noise_scale(num_examples, min(batch_size, num_examples), replacement=False)
    return LinearPredictions(found, scale, least)
