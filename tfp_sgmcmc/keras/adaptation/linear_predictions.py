"""How hot and how slow kernels are near a place, along all directions that were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tfp_sgmcmc.keras.adaptation.excess import Scheme, law
from tfp_sgmcmc.keras.checks.local_geometry import Landscape
from tfp_sgmcmc.kernels.linear_theory import LinearLaw, overdamped_limit, splitting_limit

_GAIN = 3  # a kernel must need this many times fewer steps than a simpler one
_PRICE = 2.2  # times as many steps, or as much bias, that a larger friction may cost
_FRICTIONS = 9  # that are compared
_STEP_SIZES = 25  # that are compared for the least bias
MARGIN = 9.0  # times the curvature at which steps are still stable
_BISECTIONS = 40
_SMALLEST_SHARE = 1e-12  # of the largest step

Kernels = Iterable[tuple[str, str | None]]  # names, with the covariance that NOGIN knows


class Place(NamedTuple):
    """A landscape met with batches of one size.

    Attributes:
      found: curvature and noise.
      scale: c, with c V the covariance of a batch's gradient.
      least: the curvature of flat directions.
    """

    found: Landscape
    scale: float
    least: float

    def directions(self, covariance: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns curvature, noise and known noise along directions; the last is the mean weight's.

        `covariance` is the form in which a kernel knows the noise.
        """
        found = self.found
        known: Any = {
            None: np.zeros_like(found.noise),
            "full": found.noise,  # an average over many minibatches
            "diag": found.noise_of_diagonal,
        }[covariance]
        of_mean = 0.0 if covariance is None else found.mean_noise
        curvature = np.maximum([*found.curvature, found.mean_curvature], self.least)
        noise = np.array([*found.noise, found.mean_noise])
        return curvature, self.scale * noise, self.scale * np.array([*known, of_mean])

    def excess(self, scheme: Scheme) -> np.ndarray:
        """Returns the excess temperature along the directions of `directions`."""
        return law(scheme, *self.directions(scheme.covariance)).temperature - 1

    def slowest(self, scheme: Scheme) -> float:
        """Returns the steps in which all directions forget their start."""
        return float(np.max(self._along_all(scheme).relaxation_steps))

    def of_hottest(self, scheme: Scheme) -> float:
        """Returns the steps in which the hottest direction forgets its start."""
        found = self._along_all(scheme)
        return float(found.relaxation_steps[np.argmax(found.temperature[:-2])])

    def share_of_flat(self, scheme: Scheme, num_steps: int) -> float:
        """Returns the share of its variance that flat directions have after some steps."""
        return float(self._along_all(scheme).share_after(num_steps)[-1])

    def fastest(self, kernels: Kernels, bound: float) -> Scheme:
        """Returns the scheme that forgets its start in the fewest steps within the bound.

        Where noise limits the step, h grows in proportion to the friction, and flat directions are
        as slow at any large friction. The largest one is taken that costs little, as stiff
        directions then come to their temperature in the fewest steps.
        """
        best, fewest = None, math.inf
        for kernel, covariance in kernels:
            schemes = [
                self._with_largest_step(
                    Scheme(kernel, self.most(kernel), friction, covariance), bound
                )
                for friction in self._frictions(kernel)
            ]
            steps = [self.slowest(scheme) for scheme in schemes]
            if _GAIN * min(steps) < fewest:
                fewest, best = min(steps), _last_within(steps, schemes)
        assert best is not None  # the number of steps is finite
        return best

    def least_biased(self, kernels: Kernels, within: Scheme, num_steps: int) -> Scheme:
        """Returns the scheme whose variances after some steps are nearest to the right ones.

        The farthest direction counts, by the logarithm of its ratio. `within` keeps the bound.
        """
        best, least = within, _GAIN * self._bias(within, num_steps)
        for kernel, covariance in kernels:
            schemes, biases = [], []
            for friction in self._frictions(kernel):
                tried = [
                    Scheme(kernel, float(h), friction, covariance)
                    for h in np.geomspace(1e-6, 1.0, _STEP_SIZES) * self.most(kernel)
                ]
                found = [self._bias(scheme, num_steps) for scheme in tried]
                schemes.append(tried[int(np.argmin(found))])
                biases.append(min(found))
            if _GAIN * min(biases) < least:
                least, best = min(biases), _last_within(biases, schemes)
        return best

    def _along_all(self, scheme: Scheme) -> LinearLaw:
        """Returns the law along the directions of `directions`, and then along flat ones."""
        curvature, noise, known = self.directions(scheme.covariance)
        noise, known = (np.append(x, x[-1]) for x in (noise, known))
        return law(scheme, np.append(curvature, self.least), noise, known)

    def _bias(self, scheme: Scheme, num_steps: int) -> float:
        """Returns the largest logarithm of a ratio of variances."""
        found = self._along_all(scheme)
        ratio = found.temperature * found.share_after(num_steps)
        return float(np.max(np.abs(np.log(np.maximum(ratio, 1e-300)))))

    def most(self, kernel: str, margin: float = MARGIN) -> float:
        """Returns the largest step that is stable at `margin` times the curvature."""
        curvature = margin * self.found.largest_curvature
        return float(
            overdamped_limit(curvature) if kernel == "SGLD" else splitting_limit(curvature)
        )

    def _frictions(self, kernel: str) -> Iterator[float | None]:
        if kernel == "SGLD":
            return iter([None])
        largest = self.found.largest_curvature
        return iter((2 * np.geomspace(self.least, largest, _FRICTIONS) ** 0.5).tolist())

    def _with_largest_step(self, scheme: Scheme, bound: float) -> Scheme:
        """Returns the scheme with the largest step up to its own that keeps the bound."""

        def keeps(step_size: float) -> bool:
            return bool(np.all(self.excess(scheme._replace(step_size=step_size)) <= bound))

        high = scheme.step_size
        low = high if keeps(high) else _SMALLEST_SHARE * high
        for _ in range(0 if low == high else _BISECTIONS):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if keeps(middle) else (low, middle)
        return scheme._replace(step_size=float(low))


def _last_within(costs: list[float], schemes: list[Scheme]) -> Scheme:
    """Returns the last scheme that costs little more than the cheapest one."""
    return [s for c, s in zip(costs, schemes, strict=True) if c <= _PRICE * min(costs)][-1]
