"""Chains whose step size decays: weighted expectations, and states at equal distances in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics.base import real_array
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal.checks import integer, positive, unary
from tfp_sgmcmc.internal.nest import State, append_dims

_ROUNDING = 1 + 1e-6  # allows for steps in single precision


def weighted_expectation(values: Any, step_sizes: Any) -> Any:
    r"""Computes the expectation of f from a chain, with each state weighted by its step size.

    \[ E[f] \approx \sum_t \epsilon_t f(\theta_t) \Big/ \sum_t \epsilon_t \]

    States that are a small step apart are nearly copies of each other. Time is the sum of the step
    sizes, and this is the mean over time. The variance of the plain mean is
    \( \sum_t \epsilon_t \sum_t \epsilon_t^{-1} / T^2 \geq 1 \) times as large, in the limit of
    small steps and long chains.

    Examples:
      >>> weighted_expectation([1., 2., 4.], step_sizes=[2., 1., 1.])
      2.0

    Args:
      values: f at each state: a nest of arrays `[T, ...]`.
      step_sizes: epsilon, `[T]`, or `[T, chains...]` if the steps differ between chains.

    Returns:
      A nest of arrays `[...]`, in double precision.

    Raises:
      ValueError: step sizes are negative or not finite, or their shape does not fit the values.

    References:
      M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
      2011. Equation 11.
    """
    weights = checked_step_sizes(step_sizes)

    def mean(x: Any) -> Any:
        x = real_array("values", x)
        if x.shape[: weights.ndim] != weights.shape:
            raise ValueError(
                f"The shape of values must begin with the shape of step_sizes, {weights.shape}. "
                f"Received: {x.shape}."
            )
        w = weights.reshape(weights.shape + (1,) * (x.ndim - weights.ndim))
        result = np.sum(w * x, axis=0) / np.sum(w, axis=0)
        return float(result) if result.ndim == 0 else result

    return tf.nest.map_structure(mean, _arrays(values))


def effective_number_of_steps(step_sizes: Any) -> Any:
    r"""Computes the number of equal weights that the step sizes are worth.

    \[ \Bigl( \sum_t \epsilon_t \Bigr)^2 \Big/ \sum_t \epsilon_t^2 \]

    Correlations between states, which this does not contain, lower the effective number further.

    Examples:
      >>> effective_number_of_steps([1., 1., 1., 1.]), effective_number_of_steps([3., 1.])
      (4.0, 1.6)

    Args:
      step_sizes: epsilon, `[T]` or `[T, chains...]`.

    Returns:
      A number, or `[chains...]`.

    Raises:
      ValueError: step sizes are negative or not finite.

    References:
      L. Kish. Survey Sampling. Wiley, 1965. Section 11.7.
    """
    weights = checked_step_sizes(step_sizes)
    result = np.sum(weights, axis=0) ** 2 / np.sum(weights**2, axis=0)
    return float(result) if result.ndim == 0 else result


class WeightedMean(NamedTuple):
    """The state of `WeightedExpectationReducer`.

    Attributes:
      mean: the weighted mean of f.
      total: sum of the step sizes: a scalar or `[chains...]`.
      total_squares: sum of their squares.
    """

    mean: Any
    total: tf.Tensor
    total_squares: tf.Tensor


class WeightedExpectationReducer(tfp.experimental.mcmc.Reducer):
    """Computes the `weighted_expectation` of a chain that is not kept.

    It finalises to the expectation, in the structure of f. Its state holds the two sums from which
    `effective_number_of_steps` follows.

    Examples:
      >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
      >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2)
      >>> kernel = sgmcmc.SGLD(target, sgmcmc.schedules.PolynomialDecay(a=0.5))
      >>> reducer = sgmcmc.diagnostics.WeightedExpectationReducer(
      ...     lambda x: {"mean": x, "square": x**2})
      >>> found, _, _ = tfp.experimental.mcmc.sample_fold(
      ...     20, tf.zeros([3]), kernel=kernel, reducer=reducer, seed=[0, 1])
      >>> found["square"].shape
      TensorShape([3])

    Args:
      fn: f, state -> a nest of tensors; None means the state itself.
      step_size_fn: kernel results -> epsilon, a scalar or `[chains...]`.
    """

    def __init__(
        self,
        fn: Callable[[State], Any] | None = None,
        step_size_fn: Callable[[Any], Any] = lambda results: results.step_size,
    ):
        self._fn = (lambda state: state) if fn is None else unary("fn", fn, "state -> values")
        self._step_size_fn = unary("step_size_fn", step_size_fn, "kernel results -> step size")

    def initialize(
        self, initial_chain_state: State, initial_inner_kernel_results: Any = None
    ) -> WeightedMean:
        """Returns the reducer's state before the first step; the initial state does not count."""
        mean = tf.nest.map_structure(tf.zeros_like, self._values(initial_chain_state))
        total = tf.zeros_like(self._step_size(initial_inner_kernel_results, mean))
        return WeightedMean(mean, total, total)

    def one_step(
        self,
        new_chain_state: State,
        current_reducer_state: WeightedMean,
        previous_kernel_results: Any = None,
    ) -> WeightedMean:
        """Adds a state: mean += epsilon / total (f - mean)."""
        own, values = current_reducer_state, self._values(new_chain_state)
        epsilon = self._step_size(previous_kernel_results, values)
        total = own.total + epsilon
        share = tf.math.divide_no_nan(epsilon, total)
        mean = tf.nest.map_structure(
            lambda m, f: m + append_dims(tf.cast(share, m.dtype), m) * (f - m), own.mean, values
        )
        return WeightedMean(mean, total, own.total_squares + epsilon**2)

    def finalize(self, final_reducer_state: WeightedMean) -> Any:
        """Returns the expectation, NaN without any weight."""
        has_weight = final_reducer_state.total > 0
        return tf.nest.map_structure(
            lambda m: tf.where(append_dims(has_weight, m), m, np.nan), final_reducer_state.mean
        )

    def _values(self, state: State) -> Any:
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        dtype = tf.nest.flatten(state)[0].dtype

        def floating(x: Any) -> tf.Tensor:  # a mean of integers or of truth values is none of them
            x = tf.convert_to_tensor(x)
            return x if x.dtype.is_floating else tf.cast(x, dtype)

        return tf.nest.map_structure(floating, self._fn(state))

    def _step_size(self, results: Any, like: Any) -> tf.Tensor:
        epsilon = self._step_size_fn(results)
        checks.numbers("The value of step_size_fn", epsilon, "a finite number of at least 0")
        if tf.nest.is_nested(epsilon):
            raise ValueError(
                "step_size_fn must return one step size for all parts of the state. Received: "
                f"{epsilon}."
            )
        return tf.cast(epsilon, tf.nest.flatten(like)[0].dtype)


def checked_step_sizes(step_sizes: Any, name: str = "step_sizes") -> np.ndarray:
    """Returns step sizes `[T]` or `[T, chains...]` in double precision, or raises ValueError."""
    weights = real_array(name, step_sizes)
    if not weights.ndim or not len(weights):
        raise ValueError(f"{name} must hold one number for each state. Received: {weights}.")
    if not np.all((weights >= 0) & np.isfinite(weights)) or not np.all(weights.sum(axis=0) > 0):
        raise ValueError(f"{name} must be finite, not negative, not all 0. Received: {weights}.")
    return weights


def _arrays(values: Any) -> Any:
    """Returns a list of numbers as an array, so that it does not count as a nest."""
    if isinstance(values, list) and all(np.ndim(x) == 0 for x in values):
        return np.asarray(values)
    return values


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
        self._step_size_fn = unary("step_size_fn", step_size_fn, "kernel results -> step size")

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
