"""Damped Newton ascent to a mode, by steps that do not depend on the units of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.targets.laplace.quadratic import to_unit_diagonal

NEAR_ENOUGH = 0.01  # nats of expected gain at a mode
MOST_LAST_GAIN = 1e-6  # nats of expected gain that end the ascent, or fewer
_STILL_FALLING = 0.9  # of the expected gain before a step
_MOST_DAMPING, _LEAST_DAMPING = 1e30, 1e-12  # where all derivatives vanish, scaled steps are long
_AS_EXPECTED, _FASTER = 0.1, 100.0  # share of a rise, and the fall of the damping after it
_SADDLE = 1e-3  # minus the least eigenvalue of a saddle, relative to the diagonal
_SHARES = (1.0, 0.3, 0.1, 0.03)  # of a deviation, of a step away from a saddle
ROUNDING = 8  # in units of the last place of the log posterior
# Curvatures that grow by this power of the resolution have no end: 3e23 in float64. Those of the
# first steps do not count, because they may leave a tail without curvature.
_GROWTH, _FIRST_STEPS = -1.5, 5


class Ascent(NamedTuple):
    r"""The end of an ascent.

    Attributes:
      theta: the state, `[D]`, in `float64`.
      log_prob: the log posterior there.
      expected_gain: the Newton decrement \( \tfrac12 g^T |H|^{-1} g \) in nats: by how much the log
        posterior is expected to rise on the way to the mode. It does not depend on units.
      is_maximum: whether the Hessian there is negative definite.
      num_steps: number of steps that were taken.
      num_passes: number of log posteriors and of Hessian-vector products that were evaluated.
      curvature: the absolute diagonal of the Hessian at theta, `[D]`.
      gradient: the gradient there, `[D]`.
      grown: the entry whose curvature grew most, if it grew without end while the log posterior
        rose, as where a scale falls to zero and the density has no bound. No mode lies that way.
    """

    theta: np.ndarray
    log_prob: float
    expected_gain: float
    is_maximum: bool
    num_steps: int
    num_passes: int
    curvature: np.ndarray
    gradient: np.ndarray
    grown: int | None = None

    @property
    def is_mode(self) -> bool:
        """Whether the state is near enough to a mode."""
        return self.is_maximum and self.expected_gain <= NEAR_ENOUGH


def newton_ascent(
    log_prob_fn: Callable[[np.ndarray], float],
    derivatives_fn: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    theta: np.ndarray,
    max_steps: int,
    resolution: float,
    last_gain: float = MOST_LAST_GAIN,
    damping: float = 1.0,
) -> Ascent | None:
    r"""Climbs by damped Newton steps, with the Hessian scaled to a unit diagonal.

    \[
    \theta \leftarrow \theta + S^{-1} (|A| + \lambda I)^{-1} S^{-1} g, \qquad
    A = -S^{-1} H S^{-1}, \quad S = \mathrm{diag}(|H_{jj}|^{1/2})
    \]

    |A| has the absolute eigenvalues of A, so that steps leave saddles. At a saddle itself, where
    the gradient vanishes, as by symmetry, a step follows the eigenvector of the least eigenvalue.
    The damping \( \lambda \) starts at 1, or as given. It falls to a quarter after a step that does
    not lower the log posterior, to a hundredth if the rise is within a tenth of what derivatives
    predict, and rises sixfold after a step that lowers it, which is not taken (Levenberg 1944). A
    change of the units of any parameter changes S with it, and leaves the path as it is. The ascent
    ends without a mode where the Hessian is not negative definite although a curvature has grown by
    the power -1.5 of the rounding error, as where the width of effects falls to zero. Near the
    mode, where rounding hides the rise of the log posterior, the ascent goes on while the expected
    gain falls, because gradients are rounded less.

    Args:
      log_prob_fn: theta, `[D]` -> log posterior.
      derivatives_fn: theta -> Hessian `[D, D]` and gradient `[D]` of the log posterior.
      theta: the start.
      max_steps: the largest number of steps.
      resolution: the relative rounding error of a log posterior.
      last_gain: the expected gain, in nats, that ends the ascent.
      damping: that of the first step; small if the start is near a mode.

    Returns:
      The end of the ascent, or None if a derivative is not finite at the start.
    """
    log_prob, (hessian, gradient) = log_prob_fn(theta), derivatives_fn(theta)
    if not (np.isfinite(hessian).all() and np.isfinite(gradient).all()):
        return None
    num_steps, num_passes, rise = 0, 1 + len(gradient), np.inf
    before = np.inf  # the expected gain before the last step
    curved = np.zeros_like(theta)  # in the first steps
    while True:
        scaled, scale = to_unit_diagonal(-hessian)
        if num_steps <= _FIRST_STEPS:
            curved = np.maximum(curved, scale**2)
        eigenvalues, vectors = np.linalg.eigh(scaled)
        least = resolution * len(scale) * np.abs(eigenvalues).max()
        lengths = np.maximum(np.abs(eigenvalues), max(least, np.finfo(float).tiny))
        along = vectors.T @ (gradient / scale)
        gain, is_maximum = 0.5 * float(np.sum(along**2 / lengths)), bool(eigenvalues[0] > least)
        rounding = ROUNDING * resolution * abs(log_prob)
        has_ended = rise <= rounding and gain > _STILL_FALLING * before
        is_near = gain <= last_gain or (gain <= NEAR_ENOUGH and has_ended)
        if is_near and eigenvalues[0] < -_SADDLE and num_steps < max_steps:
            away = vectors[:, 0] / scale / np.sqrt(-eigenvalues[0])
            found = _beside_saddle(log_prob_fn, theta, log_prob + rounding, away)
            if found is not None:
                theta, log_prob = found
                num_steps, num_passes = num_steps + 1, num_passes + 1 + len(theta)
                hessian, gradient = derivatives_fn(theta)
                if not (np.isfinite(hessian).all() and np.isfinite(gradient).all()):
                    return None
                damping, rise, before = 1.0, np.inf, np.inf
                continue
        growth = scale**2 / curved
        is_endless = not is_maximum and bool(growth.max() > resolution**_GROWTH)
        has_found = (is_maximum and is_near) or num_steps >= max_steps or damping > _MOST_DAMPING
        if has_found or is_endless:
            end = num_steps, num_passes, scale**2, gradient
            grown = int(np.argmax(growth)) if is_endless else None
            return Ascent(theta, log_prob, gain, is_maximum, *end, grown)
        while damping <= _MOST_DAMPING:
            step = along / (lengths + damping)
            proposed = theta + vectors @ step / scale
            reached, num_passes = log_prob_fn(proposed), num_passes + 1
            if np.isfinite(reached) and reached >= log_prob - rounding:
                found, slope = derivatives_fn(proposed)
                num_passes += len(slope)
                if np.isfinite(found).all() and np.isfinite(slope).all():
                    rise, num_steps, before = reached - log_prob, num_steps + 1, gain
                    theta, log_prob, hessian, gradient = proposed, reached, found, slope
                    expected = float(step @ along - 0.5 * np.sum(lengths * step**2))
                    is_quadratic = abs(rise - expected) <= _AS_EXPECTED * expected + rounding
                    damping = max(damping / (_FASTER if is_quadratic else 4), _LEAST_DAMPING)
                    break
            damping *= 6


def _beside_saddle(
    log_prob_fn: Callable[[np.ndarray], float],
    saddle: np.ndarray,
    log_prob: float,
    away: np.ndarray,
) -> tuple[np.ndarray, float] | None:
    """Returns a state on the line `away` from a saddle that is higher than `log_prob`, or None."""
    for share in _SHARES:
        for theta in (saddle + share * away, saddle - share * away):
            reached = log_prob_fn(theta)
            if np.isfinite(reached) and reached > log_prob:
                return theta, reached
    return None
