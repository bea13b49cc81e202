"""A check that a kernel's step size is stable at the curvature of its target."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, by_part
from tfp_sgmcmc.targets.laplace.curvature import largest_curvature
from tfp_sgmcmc.targets.streamed import StreamedLogProb


class Stability(NamedTuple):
    """The step size of a kernel, and the largest one that is stable at a state.

    Attributes:
      largest_curvature: the largest eigenvalue of M H at the state, where H is minus the Hessian of
        the log posterior, and M the kernel's metric.
      largest_stable_step: the kernel's `largest_stable_step` at this curvature.
      step_size: the largest entry of the step size. The metric contains the ratios of smaller
        entries to it.
      largest_noise: the largest eigenvalue of the covariance of the gradient noise, for a kernel
        whose `largest_stable_step` falls with it and has not yet seen it; otherwise 0.
    """

    largest_curvature: float
    largest_stable_step: Any
    step_size: float
    largest_noise: float = 0.0

    @property
    def is_stable(self) -> bool:
        """Whether no entry of the step size is above the largest stable one."""
        return not np.any(self.step_size > np.asarray(self.largest_stable_step))


class Epochs(NamedTuple):
    """The order in which a target draws by epochs, and the number of steps in an epoch."""

    reshuffle: str
    num_steps: float


def epochs_of(target: Any) -> Epochs | None:
    """Returns the epochs of a target, or of the one that it wraps; None if it has no epochs."""
    while target is not None and not hasattr(target, "reshuffle"):
        target = getattr(target, "target", None)
    if target is None or target.reshuffle == "step":
        return None
    return Epochs(target.reshuffle, target.num_examples / target.batch_size)


def check_step(kernel: Any, target: Any, state: State) -> Stability | None:
    """Warns if the kernel's step size is unstable at `state`, and returns the compared numbers.

    Returns None for a kernel without `largest_stable_step`, and, with a warning, for a log
    posterior without second derivatives.
    """
    try:
        found = judge_step(kernel, target, state)
    except (LookupError, NotImplementedError) as error:
        warnings.warn(
            "The step size was not compared with the largest stable one, because the log posterior "
            f"must have second derivatives for that. Received: {error}",
            stacklevel=4,
        )
        return None
    if found is not None and not found.is_stable:
        limit = float(np.min(found.largest_stable_step))
        noise, cure = "", ""
        if found.largest_noise:
            noise = f", and the largest eigenvalue of Sigma {found.largest_noise:.4g}"
            cure = ", or scheme='midpoint', for which Sigma sets no limit"
        warnings.warn(
            f"step_size must be below {limit:.3g} for {type(kernel).__name__} at this state, where "
            f"the largest curvature of the log posterior is {found.largest_curvature:.4g}{noise}. "
            f"Received: {found.step_size:.3g} at step 0. With such a step a chain leaves the mode, "
            "or stays finite with draws that are far too wide. Make the step smaller, or pass a "
            f"preconditioner or mass that fits the curvature{cure}. If this state is far from the "
            "mode, where the curvature can be another, start from `find_center` instead.",
            stacklevel=4,
        )
    epochs = epochs_of(target)
    is_stream = isinstance(target, StreamedLogProb)  # whose noise `preflight` judges as a whole
    if found is not None and epochs is not None and epochs.num_steps > 1 and not is_stream:
        _check_epochs(found, epochs)
    return found


def _check_epochs(found: Stability, epochs: Epochs) -> None:
    """Warns if an epoch is too long for its noise to cancel in the direction of most curvature.

    By the exact law of Gaussian targets the noise cancels where K h sqrt(lambda) < 1 with momenta
    and K epsilon lambda / 2 < 1 without: K steps are less than half of the largest stable one.
    Where friction makes the stable step smaller, the warning comes earlier.
    """
    length = 2 * epochs.num_steps * found.step_size / float(np.min(found.largest_stable_step))
    if length <= 1:
        return
    warnings.warn(
        f"The gradient noise of reshuffle={epochs.reshuffle!r} is not small: an epoch is "
        f"{length:.3g} times as long as the time scale of the stiffest direction at this state, "
        "and the noise cancels only where it is shorter. With K steps an epoch, the length is "
        "K h sqrt(lambda) for a sampler with momenta and K epsilon lambda / 2 for one without. "
        f"Received: K = {epochs.num_steps:.4g}, step_size = {found.step_size:.3g}, and lambda = "
        f"{found.largest_curvature:.4g}. Along stiff directions the draws are about as wide as "
        "with independent minibatches. Use a smaller step, a larger batch_size, or control "
        "variates.",
        stacklevel=5,
    )


def judge_step(kernel: Any, target: Any, state: State, results: Any = None) -> Stability | None:
    """Compares a kernel's step size with the largest stable one at `state`.

    The step size, friction and preconditioner are those in the kernel's `results`, or the initial
    ones if `results` is None. Returns None for a kernel without `largest_stable_step`, or one that
    is stable at every step. Raises LookupError or NotImplementedError if the log posterior has no
    second derivatives.
    """
    if not (hasattr(kernel, "largest_stable_step") and hasattr(kernel, "metric_product")):
        return None
    is_start, noise = results is None, {}
    if is_start:
        results = kernel.bootstrap_results(state)
        if hasattr(kernel, "largest_noise"):
            noise = {"largest_noise": float(np.max(kernel.largest_noise(state)))}

    def metric(v: State) -> State:
        return kernel.metric_product(v, state, results)

    def limit(curvature: float) -> Any:
        return kernel.largest_stable_step(curvature, results=None if is_start else results, **noise)

    if np.all(np.isinf(limit(1e30))):  # stable at every curvature
        return None
    used = results.step_size
    entries = np.concatenate([np.ravel(x) for x in tf.nest.flatten(used)])
    largest = float(entries.max())
    curvature = largest_curvature(target, state, metric=metric)
    if np.all(entries == largest) or not np.all(np.isfinite(limit(curvature))):
        return Stability(curvature, limit(curvature), largest, **noise)
    try:
        steps = by_part("step_size", used, state)
    except (TypeError, ValueError):  # step sizes of chains or replicas, not of entries
        return Stability(curvature, limit(curvature), largest, **noise)
    # Where the limit falls as curvature^-a, an entry h of the step size acts like the largest one
    # with its curvature times (h / largest)^(1/a).
    fall = np.log2(np.min(limit(curvature)) / np.min(limit(2 * curvature)))
    roots = tf.nest.map_structure(lambda h: (h / h.dtype.as_numpy_dtype(largest)) ** 0.5, steps)

    def scale(v: State) -> State:
        return tf.nest.map_structure(lambda r, x: r ** (1 / fall) * x, roots, v)

    curvature = largest_curvature(target, state, metric=lambda v: scale(metric(scale(v))))
    return Stability(curvature, limit(curvature), largest, **noise)
