"""Selects states at equal distances in time from a chain whose step size decays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics.weighted import checked_step_sizes
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal.checks import function, integer, positive
from tfp_sgmcmc.internal.nest import State

_ROUNDING = 1 + 1e-6  # allows for steps in single precision


def indices_by_distance(step_sizes: Any, distance: float) -> np.ndarray:
    """Returns which states to keep so that equal sums of step sizes lie between them.

    State t is kept if the step to it takes the sum of the step sizes over a multiple of `distance`.
    The kept states have equal weights.

    Examples:
      >>> indices_by_distance([0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.2], distance=0.5)
      array([1, 2, 4, 6])

    Args:
      step_sizes: epsilon, `[T]`.
      distance: the mixing distance, at least as large as the largest step.

    Returns:
      Increasing indices into the chain.

    Raises:
      ValueError: the distance is not positive, or is smaller than a step.

    References:
      M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
      2011. Section 5.3.1.
    """
    weights = checked_step_sizes(step_sizes)
    if weights.ndim != 1:
        raise ValueError(f"step_sizes must have shape [T]. Received: {weights.shape}.")
    distance = positive("distance", distance)
    if not weights.max() <= distance * _ROUNDING:
        raise ValueError(
            f"distance must be at least the largest step, {weights.max()}. Received: {distance}."
        )
    passed = np.floor(np.cumsum(weights) / distance * _ROUNDING)
    return np.flatnonzero(np.diff(passed, prepend=0.0))


def travel(
    travelled: tf.Tensor, step_size: tf.Tensor, distance: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sum of step sizes after a step, and whether it passed a multiple of `distance`.

    The sum is in double precision. A step larger than the distance counts as the distance.
    """
    after = travelled + tf.minimum(tf.cast(step_size, tf.float64), distance)
    before, now = (tf.floor(x / distance * _ROUNDING) for x in (travelled, after))
    return after, now > before


class MixingDistanceState(NamedTuple):
    """The state and result of `MixingDistanceReducer`.

    Attributes:
      samples: the kept states, in parts `[size, ...]`; zeros from `num_kept` on.
      num_kept: number of states kept.
      travelled: sum of all step sizes, in double precision.
    """

    samples: State
    num_kept: tf.Tensor
    travelled: tf.Tensor


class MixingDistanceReducer(tfp.experimental.mcmc.Reducer):
    """Keeps only the states that `indices_by_distance` selects.

    It finalises to its state. A step larger than the distance counts as the distance.

    Examples:
      >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
      >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2)
      >>> kernel = sgmcmc.SGLD(target, sgmcmc.schedules.PolynomialDecay(a=0.5))
      >>> found, _, _ = tfp.experimental.mcmc.sample_fold(
      ...     20, tf.zeros([3]), kernel=kernel,
      ...     reducer=sgmcmc.diagnostics.MixingDistanceReducer(distance=1., size=100), seed=[0, 1])
      >>> found.samples[:found.num_kept].shape  # the steps add up to 3.7
      TensorShape([3, 3])

    Args:
      distance: the mixing distance, at least as large as the largest step.
      size: largest number of states kept; later states are dropped.
      step_size_fn: kernel results -> epsilon, one number for all chains.

    Raises:
      ValueError: `distance` is not positive, `size` is below 1, or chains differ in step size.
    """

    def __init__(
        self,
        distance: float,
        size: int,
        step_size_fn: Callable[[Any], Any] = lambda results: results.step_size,
    ):
        self._distance, self._size = positive("distance", distance), integer("size", size, 1)
        self._step_size_fn = function("step_size_fn", step_size_fn, "kernel results -> step size")

    def initialize(
        self, initial_chain_state: State, initial_inner_kernel_results: Any = None
    ) -> MixingDistanceState:
        """Returns the reducer's state before the first step; the initial state is not kept."""
        epsilon = self._step_size_fn(initial_inner_kernel_results)
        checks.numbers("The value of step_size_fn", epsilon, "a finite number of at least 0")
        if tf.nest.is_nested(epsilon) or tf.convert_to_tensor(epsilon).shape.rank:
            raise ValueError(
                f"The step size must be one number for all chains and parts. Received: {epsilon}."
            )
        samples = tf.nest.map_structure(
            lambda x: tf.zeros(tf.concat([[self._size], tf.shape(x)], axis=0), x.dtype),
            tf.nest.map_structure(tf.convert_to_tensor, initial_chain_state),
        )
        return MixingDistanceState(samples, tf.zeros([], tf.int32), tf.zeros([], tf.float64))

    def one_step(
        self,
        new_chain_state: State,
        current_reducer_state: MixingDistanceState,
        previous_kernel_results: Any = None,
    ) -> MixingDistanceState:
        """Keeps a state if the step to it took the sum over a multiple of the distance."""
        own = current_reducer_state
        epsilon = self._step_size_fn(previous_kernel_results)
        travelled, is_due = travel(own.travelled, epsilon, self._distance)

        def write() -> State:
            return tf.nest.map_structure(
                lambda kept, x: tf.tensor_scatter_nd_update(kept, [[own.num_kept]], [x]),
                own.samples,
                new_chain_state,
            )

        keeps = is_due & (own.num_kept < self._size)
        samples = tf.cond(keeps, write, lambda: own.samples)
        return MixingDistanceState(samples, own.num_kept + tf.cast(keeps, tf.int32), travelled)
