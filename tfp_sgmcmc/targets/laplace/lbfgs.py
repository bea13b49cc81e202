"""L-BFGS ascent, whose line search also ends where slopes jump."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.targets.laplace.newton import ROUNDING

_MEMORY = 10  # pairs of steps and changes of the gradient
_RISE, _SLOPE = 1e-4, 0.9  # shares of the first slope in the conditions of Wolfe
_MOST_TRIALS = 50  # states of a line search


class _Point(NamedTuple):
    theta: np.ndarray
    log_prob: float
    gradient: np.ndarray


def lbfgs_ascent(
    log_prob_and_gradient_fn: Callable[[np.ndarray], tuple[float, np.ndarray]],
    theta: np.ndarray,
    max_steps: int,
    tolerance: float,
    resolution: float,
) -> tuple[np.ndarray, int, int]:
    r"""Climbs by limited-memory BFGS steps (Nocedal 1980) with ten pairs.

    With the steps \( s_i \) and the falls of the gradient \( y_i \) along them, a step goes along
    \( B g \), where B is the inverse of the negative Hessian that BFGS updates by the pairs from
    \( I \, s^T y / y^T y \) of the last pair. Along it, a search by doubling and halving looks for
    a share t of the step with the conditions of Wolfe (Lewis and Overton 2013),

    \[
    f(\theta + t d) \ge f(\theta) + 10^{-4} t \, d^T g(\theta), \qquad
    d^T g(\theta + t d) \le 0.9 \, d^T g(\theta) .
    \]

    It needs no second derivatives, and so ends at a mode where slopes jump, too. A log posterior
    that is as high as before but for rounding has risen enough if the slope has not turned by more
    than (1 - 2e-4) of the first one, the approximate condition of Hager and Zhang 2005.

    Args:
      log_prob_and_gradient_fn: theta, `[D]` -> log posterior and its gradient, `[D]`.
      theta: the start, in coordinates in which standard deviations are about 1.
      max_steps: the largest number of steps.
      tolerance: the largest entry of the gradient that ends the ascent.
      resolution: the relative rounding error of a log posterior.

    Returns:
      The state `[D]` at the end, the number of steps, and that of evaluated gradients. The ascent
      also ends where no share of a step satisfies the conditions.
    """

    def evaluate(at: np.ndarray) -> _Point:
        log_prob, gradient = log_prob_and_gradient_fn(at)
        return _Point(at, float(log_prob), np.asarray(gradient, np.float64))

    here, num_steps, num_evaluations = evaluate(np.asarray(theta, np.float64)), 0, 1
    pairs: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=_MEMORY)
    while num_steps < max_steps and np.abs(here.gradient).max() > tolerance:
        direction = _direction(here.gradient, pairs)
        rounding = ROUNDING * resolution * abs(here.log_prob)
        there, num_trials = _search(evaluate, here, direction, rounding)
        num_evaluations += num_trials
        if there is None and not pairs:
            break
        if there is None:  # the pairs may be those of another region
            pairs.clear()
            continue
        step, fall = there.theta - here.theta, here.gradient - there.gradient
        if step @ fall > resolution * np.linalg.norm(step) * np.linalg.norm(fall):
            pairs.append((step, fall))
        here, num_steps = there, num_steps + 1
    return here.theta, num_steps, num_evaluations


def _direction(gradient: np.ndarray, pairs: deque[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Returns B g by the two loops over pairs."""
    direction, shares = gradient.copy(), []
    for step, fall in reversed(pairs):
        shares.append((step @ direction) / (step @ fall))
        direction -= shares[-1] * fall
    if pairs:
        step, fall = pairs[-1]
        direction *= (step @ fall) / (fall @ fall)
    for step, fall in pairs:
        direction += (shares.pop() - (fall @ direction) / (step @ fall)) * step
    return direction


def _search(
    evaluate: Callable[[np.ndarray], _Point], here: _Point, direction: np.ndarray, rounding: float
) -> tuple[_Point | None, int]:
    """Returns a state along the direction with the conditions of Wolfe, or None, and its trials."""
    slope, share, low, high = direction @ here.gradient, 1.0, 0.0, np.inf
    if not slope > 0:
        return None, 0
    for trial in range(1, _MOST_TRIALS + 1):
        there = evaluate(here.theta + share * direction)
        at_end, rise = direction @ there.gradient, there.log_prob - here.log_prob
        is_rise = rise >= _RISE * share * slope
        is_rise |= rise >= -rounding and at_end >= -(1 - 2 * _RISE) * slope
        if not (is_rise and np.isfinite(at_end)):
            high = share
        elif at_end > _SLOPE * slope:
            low = share
        else:
            return there, trial
        share = 2 * share if np.isinf(high) else (low + high) / 2
    return None, _MOST_TRIALS
