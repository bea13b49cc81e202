"""A check that a kernel's step size is stable at the curvature of its target."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.state import State
from tfp_sgmcmc.targets.curvature import largest_curvature


class Stability(NamedTuple):
    """The step size of a kernel, and the largest one that is stable at a state.

    Attributes:
      largest_curvature: the largest eigenvalue of M H at the state, where H is minus the Hessian of
        the log posterior, and M the kernel's metric.
      largest_stable_step: the kernel's `largest_stable_step` at this curvature.
      step_size: the largest entry of the step size at step 0. The metric holds the smaller entries'
        ratios to it.
    """

    largest_curvature: float
    largest_stable_step: Any
    step_size: float

    @property
    def is_stable(self) -> bool:
        """Whether no entry of the step size is above the largest stable one."""
        return not np.any(self.step_size > np.asarray(self.largest_stable_step))


def check_step(kernel: Any, target: Any, state: State) -> Stability | None:
    """Warns if the kernel's step size is unstable at `state`; returns what was compared.

    Returns None for a kernel that does not say its largest stable step, and with a warning if the
    log posterior has no second derivatives.
    """
    if not (hasattr(kernel, "largest_stable_step") and hasattr(kernel, "metric_product")):
        return None
    results = kernel.bootstrap_results(state)

    def metric(v: State) -> State:
        return kernel.metric_product(v, state, results)

    try:
        curvature = largest_curvature(target, state, metric=metric)
    except (LookupError, NotImplementedError) as error:
        warnings.warn(
            "The step size was not compared with the largest stable one, because the log posterior "
            f"must have second derivatives for that. Received: {error}",
            stacklevel=3,
        )
        return None
    found = Stability(
        curvature, kernel.largest_stable_step(curvature), _largest_entry(kernel.step_size)
    )
    if not found.is_stable:
        limit = float(np.min(found.largest_stable_step))
        warnings.warn(
            f"step_size must be below {limit:.3g} for {type(kernel).__name__} at this state, where "
            f"the largest curvature of the log posterior is {found.largest_curvature:.4g}. "
            f"Received: {found.step_size:.3g} at step 0. With such a step a chain leaves the mode, "
            "or stays finite with draws that are far too wide. Make the step smaller, or pass a "
            "preconditioner or mass that fits the curvature. If this state is far from the mode, "
            "where the curvature can be another, start from `find_center` instead.",
            stacklevel=3,
        )
    return found


def _largest_entry(step_size: Any) -> float:
    """Returns the largest entry of a step size, a nest of numbers and schedules, at step 0."""
    leaves = tf.nest.flatten(step_size)
    schedules = [callable(x) and not tf.is_tensor(x) for x in leaves]
    step = tf.zeros([], tf.int64)
    pairs = zip(leaves, schedules, strict=True)
    return float(max(np.max(x(step) if is_schedule else x) for x, is_schedule in pairs))
