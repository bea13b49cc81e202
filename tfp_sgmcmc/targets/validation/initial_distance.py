"""A check that chains that gradient noise slows down do not start far from the posterior."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import GradientEstimate, Target
from tfp_sgmcmc.targets.laplace.curvature import one_chain

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
    kernel: Any, targets: Sequence[Target], state: State, ratio: float = 1.0, stacklevel: int = 4
) -> None:
    """Warns if `estimate_initial_distance`, with the same arguments, finds a far and slow start."""
    found = estimate_initial_distance(kernel, targets, state, ratio)
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
    kernel: Any, targets: Sequence[Target], state: State, ratio: float = 1.0
) -> InitialDistance | None:
    r"""Estimates how far `state` is from the posterior, and how slowly a kernel gets there.

    It takes the first chain. Along the direction \( u = g / |g| \) of the gradient, with the
    curvature \( a = u^T (-H) u \) and the noise \( s = u^T \Sigma u \), the distance is
    \( |g| / \sqrt a \), and the kernel's `relaxation_steps(a, s)` is the number of steps. g and
    s come from 32 minibatches, a from the first eight.

    Args:
      kernel: a kernel; the result is None for one without `relaxation_steps`.
      targets: targets that draw the 32 minibatches in turn.
      state: the start.
      ratio: the noise of the kernel's gradients relative to the targets' noise.

    Returns:
      None if the gradient is within its noise, so that `state` may be at the mode, or if the log
      posterior is not concave along the gradient, so that the distance is unknown.
    """
    if not hasattr(kernel, "relaxation_steps"):
        return None
    chains = tuple(int(n) for n in targets[0].chain_shape(state))
    ndims, state = len(chains), one_chain(state, chains, 0)
    carried = {id(target): target.bootstrap(state) for target in targets}

    # One graph for each target, because graphs of several replicas take long to trace.
    def graph_of(target: Target) -> Any:
        return traced(
            lambda seed, own, *probe: target.estimate(state, seed, own, *(probe or (None,)), False)
        )

    graphs = {id(target): graph_of(target) for target in targets}

    def estimate(i: int, *probe: State) -> GradientEstimate:
        key = id(targets[i % len(targets)])
        found = graphs[key](tf.constant([0, i]), carried[key], *probe)
        carried[key] = found.target_state
        return found

    gradients = np.array([_vector(estimate(i).gradient, ndims) for i in range(_NUM_MINIBATCHES)])
    gradient = gradients.mean(axis=0)
    square, error = gradient @ gradient, gradients.var(axis=0, ddof=1).sum() / _NUM_MINIBATCHES
    if not square - error > error:  # NaN included
        return None
    u = gradient / math.sqrt(square)
    dtype = tf.nest.flatten(state)[0].dtype
    probe = unflatten_events(tf.constant(u, dtype, [1] * ndims + [u.size]), state, ndims)
    products = [_vector(estimate(i, probe).hessian_product, ndims) for i in range(_NUM_PRODUCTS)]
    a, s = -float(np.mean(products, axis=0) @ u), ratio * float(np.var(gradients @ u, ddof=1))
    if not 0 < a < math.inf:
        return None
    metric = float(_vector(kernel.metric_product(probe, state, None), ndims) @ u)
    num_steps = (float(kernel.relaxation_steps(metric * a, metric * x)) for x in (s, s / 10))
    return InitialDistance(math.sqrt((square - error) / a), *num_steps)


def _vector(nest: State, chain_ndims: int) -> np.ndarray:
    return flatten_events(nest, chain_ndims).numpy().astype(np.float64).ravel()
