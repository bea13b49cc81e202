"""Expectations from chains whose step size decays, weighted by the step sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics.arrays import real_array
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal.checks import function
from tfp_sgmcmc.internal.nest import State, append_dims


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
        self._fn = (lambda state: state) if fn is None else function("fn", fn, "state -> values")
        self._step_size_fn = function("step_size_fn", step_size_fn, "kernel results -> step size")

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
        """Returns the expectation."""
        return final_reducer_state.mean

    def _values(self, state: State) -> Any:
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        return tf.nest.map_structure(tf.convert_to_tensor, self._fn(state))

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
