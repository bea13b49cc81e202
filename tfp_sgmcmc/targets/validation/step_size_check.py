"""Checks of a kernel's step size at the curvature of its target, and of the distance of a start.

Chains that gradient noise slows down must not start far from the posterior.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, by_part, chain_of_vector, one_chain, vector_of_chain
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import GradientEstimate, Target, kept_program
from tfp_sgmcmc.targets.laplace.curvature import largest_curvature, wrapped_target
from tfp_sgmcmc.targets.streamed import StreamedLogProb

_FAR = 10.0  # deviations from the posterior, along the gradient
_MANY = 100  # steps
_SLOWER = 3.0  # times as many steps as with a tenth of the noise show that noise is the cause
_NUM_MINIBATCHES, _NUM_PRODUCTS = 32, 8


class InitialDistance(NamedTuple):
    """The distance from a state to the posterior along the gradient, and the steps that it takes.

    Attributes:
      distance: about the distance, in standard deviations of the posterior.
      num_steps: steps in which the distance falls by a factor of e, with the gradient noise at this
        state.
      num_steps_with_less_noise: the same with a tenth of the noise, as from minibatches that are
        ten times as large.
    """

    distance: float
    num_steps: float
    num_steps_with_less_noise: float

    @property
    def is_slow(self) -> bool:
        """Whether the start is far, and noise slows the chain down on its way."""
        slowed = self.num_steps > max(_MANY, _SLOWER * self.num_steps_with_less_noise)
        return self.distance > _FAR and slowed


def check_approach(
    kernel: Any, target: Target, state: State, ratio: float = 1.0, stacklevel: int = 4
) -> None:
    """Warns if `estimate_initial_distance`, with the same arguments, finds a far and slow start."""
    found = estimate_initial_distance(kernel, target, state, ratio)
    if found is not None and found.is_slow:
        warnings.warn(
            f"initial_state must be nearer to the posterior for {type(kernel).__name__} with this "
            f"gradient noise. Received: a state about {found.distance:.0f} standard deviations "
            f"away. From there it takes about {found.num_steps:.0f} steps to reduce the distance "
            "by a factor of e, at this and any other step_size. Minibatches that are ten times as "
            f"large would take {found.num_steps_with_less_noise:.0f} steps. Start from "
            "`find_center`, or take larger minibatches, or burn in with SGLD.",
            stacklevel=stacklevel,
        )


def estimate_initial_distance(
    kernel: Any, target: Target, state: State, ratio: float = 1.0
) -> InitialDistance | None:
    r"""Estimates how far `state` is from the posterior, and how slowly a kernel gets there.

    It takes the first chain. Along the direction \( u = g / |g| \) of the gradient, with the
    curvature \( a = u^T (-H) u \) and the noise \( s = u^T \Sigma u \), the distance is
    \( |g| / \sqrt a \), and the kernel's `relaxation_steps(a, s)` is the number of steps. g and
    s come from 32 minibatches, a from the first eight.

    Args:
      kernel: a kernel; the result is None for one without `relaxation_steps`.
      target: draws the minibatches.
      state: the start.
      ratio: the noise of the kernel's gradients relative to the targets' noise.

    Returns:
      None if the gradient is within its noise, so that `state` may be at the mode, or if the log
      posterior is not concave along the gradient, so that the distance is unknown.
    """
    if not hasattr(kernel, "relaxation_steps"):
        return None
    chains = tuple(int(n) for n in target.chain_shape(state))
    ndims, state = len(chains), one_chain(state, chains, 0)
    carried = target.bootstrap(state)
    graph = kept_program(
        target,
        f"estimates from {getattr(wrapped_target(target), 'batch_size', 1)} examples, "
        f"{epochs_of(target)}",
        state,
        lambda: traced(
            lambda state, seed, own, *probe: target.estimate(
                state, seed, own, *(probe or (None,)), with_scores=False
            )
        ),
    )

    def estimate(i: int, *probe: State) -> GradientEstimate:
        nonlocal carried
        found = graph(state, tf.constant([0, i]), carried, *probe)
        carried = found.target_state
        return found

    gradients = np.array(
        [vector_of_chain(estimate(i).gradient, ndims) for i in range(_NUM_MINIBATCHES)]
    )
    gradient = gradients.mean(axis=0)
    square, error = gradient @ gradient, gradients.var(axis=0, ddof=1).sum() / _NUM_MINIBATCHES
    if not square - error > error:  # NaN included
        return None
    u = gradient / math.sqrt(square)
    probe = chain_of_vector(u, state, ndims)
    products = [
        vector_of_chain(estimate(i, probe).hessian_product, ndims) for i in range(_NUM_PRODUCTS)
    ]
    a, s = -float(np.mean(products, axis=0) @ u), ratio * float(np.var(gradients @ u, ddof=1))
    if not 0 < a < math.inf:
        return None
    metric = float(vector_of_chain(kernel.metric_product(probe, state, None), ndims) @ u)
    num_steps = (float(kernel.relaxation_steps(metric * a, metric * x)) for x in (s, s / 10))
    return InitialDistance(math.sqrt((square - error) / a), *num_steps)


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

    def __repr__(self) -> str:
        shown = {k: x for k, x in self._asdict().items() if k != "largest_noise" or x}
        return f"Stability({', '.join(f'{name}={x}' for name, x in shown.items())})"

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
        second_order = getattr(target, "second_order", None)
        if second_order is not None and second_order.probabilities is not None:
            return None  # it draws each step anew, by these
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
    entries = np.concatenate([tf.reshape(x, [-1]).numpy() for x in tf.nest.flatten(used)])
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
