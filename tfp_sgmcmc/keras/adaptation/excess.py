"""How hot gradient noise makes a kernel that the pilot considers, and how slow the kernel is."""

from __future__ import annotations

from typing import Any, NamedTuple

from tfp_sgmcmc.kernels.linear_theory import LinearLaw, nogin_law, overdamped_law, splitting_law


class Scheme(NamedTuple):
    """A kernel and its settings.

    Attributes:
      kernel: "SGLD", "UnderdampedLangevin" or "NOGIN".
      step_size: epsilon of SGLD, h of the others.
      friction: friction; None for SGLD.
      covariance: what NOGIN knows of the noise: "full" or "diag"; None for the others.
    """

    kernel: str
    step_size: float
    friction: float | None = None
    covariance: str | None = None


def law(scheme: Scheme, curvature: Any, noise: Any, known: Any = 0.0) -> LinearLaw:
    """Returns the law of a scheme along directions.

    Args:
      scheme: the kernel and its settings.
      curvature: a, positive, `[...]`.
      noise: s, the variance of the gradient along the direction, `[...]`.
      known: the variance that NOGIN takes it for, `[...]`.
    """
    h, friction = scheme.step_size, scheme.friction
    if scheme.kernel == "SGLD":
        return overdamped_law(h, curvature, noise)
    if scheme.kernel == "UnderdampedLangevin":
        return splitting_law(h, friction, curvature, noise)
    return nogin_law(h, friction, curvature, noise, known)
