"""How often a Metropolis-Hastings test on all data would reject Langevin steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.kernels.settings import check_positive, value_at
from tfp_sgmcmc.preconditioners import LocalMatrix, as_preconditioner
from tfp_sgmcmc.state import State, call_with_state, map_parts
from tfp_sgmcmc.targets.base import as_target, value_and_gradient


def rejection_probability(
    target_log_prob_fn: Any,
    state: State,
    new_state: State,
    step_size: Any,
    preconditioner: Any = None,
) -> tf.Tensor:
    r"""The probability that a Metropolis-Hastings test on all data would reject a step.

    \[
    1 - \min\left( 1, \frac{p(\theta')\, q(\theta \mid \theta')}{p(\theta)\, q(\theta' \mid \theta)}
    \right), \quad
    q(\cdot \mid \theta) = N\left(
    \theta + \tfrac\epsilon2 (M \nabla \log p + \operatorname{div} M), \, \epsilon M \right)
    \]

    with p and its gradient over all examples: each call costs two passes over the data. SGLD makes
    no such test, and is right where it would reject hardly anything. The step may have been taken
    with a minibatch; q is that of a step with the exact gradient, as in `CorrectedLangevin`.

    In single precision a difference of log posteriors is known to about 1e-7 of their size, and
    with it the probability: take `float64` where N is large.

    >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
    >>> normal = tfp.distributions.Normal(tf.constant(0., tf.float64), 1.)
    >>> steps = tf.constant([0., 0.5], tf.float64), tf.constant([1., -0.5], tf.float64)
    >>> found = sgmcmc.diagnostics.rejection_probability(normal.log_prob, *steps, step_size=0.8)
    >>> found.numpy().round(6)
    array([0.095163, 0.      ])

    Args:
      target_log_prob_fn: a target or a plain callable.
      state: theta, before the step; leading chain dimensions, which may as well be those of steps.
      new_state: theta', after it.
      step_size: epsilon: a positive number, or a nest of them in the structure of the state.
      preconditioner: M: None, a positive number or array, or a preconditioner that knows its log
        determinant and inverse.

    Returns:
      Probabilities, `[chains...]`; 1 where theta' has no finite log posterior.

    Raises:
      ValueError: a step size that is not positive and finite, a preconditioner without log
        determinant or inverse.

    #### References

    M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
    2011. Figure 2, right.
    """
    target, matrices = as_target(target_log_prob_fn, True), as_preconditioner(preconditioner)
    check_positive("step_size", step_size)

    def at(x: State) -> tuple[tf.Tensor, State, LocalMatrix]:
        """log p at x, mean of q from there, M."""
        log_prob, gradient, _ = value_and_gradient(lambda s: call_with_state(target, s), x)
        matrix, _ = matrices.evaluate(x, log_prob.shape.rank)
        drift = matrix.multiply(gradient)
        if matrix.divergence is not None:
            drift = map_parts(tf.add, drift, matrix.divergence)
        return log_prob, map_parts(lambda x, e, d: x + e / 2 * d, x, epsilon, drift), matrix

    def log_density(y: State, mean: State, matrix: LocalMatrix) -> tf.Tensor:
        """log q(y | x), up to a constant."""
        if matrix.inverse_quadratic is None or matrix.log_det is None:
            raise ValueError(
                "The preconditioner gives no log determinant or no quadratic form of its inverse, "
                "which the acceptance ratio needs."
            )
        residual = map_parts(lambda y, m, e: (y - m) / tf.sqrt(e), y, mean, epsilon)
        return -0.5 * (matrix.inverse_quadratic(residual) + matrix.log_det)

    state, new_state = (tf.nest.map_structure(tf.convert_to_tensor, x) for x in (state, new_state))
    epsilon = value_at(step_size, tf.zeros([], tf.int64), state)
    here, there = at(state), at(new_state)
    log_ratio = (
        there[0] - here[0] + log_density(state, *there[1:]) - log_density(new_state, *here[1:])
    )
    log_ratio = tf.where(tf.math.is_finite(log_ratio), log_ratio, -float("inf"))
    return tf.abs(tf.math.expm1(tf.minimum(log_ratio, 0.0)))


class RejectionState(NamedTuple):
    """What `RejectionReducer` carries: the last state, and the probabilities so far.

    Attributes:
      last: the state before the next step.
      total: sum of the probabilities, `[chains...]`.
      num_tested: number of steps that it is the sum of.
      num_steps: steps seen.
    """

    last: State
    total: tf.Tensor
    num_tested: tf.Tensor
    num_steps: tf.Tensor


class RejectionReducer(tfp.experimental.mcmc.Reducer):
    """The mean of `rejection_probability` over the steps of a chain, none of which is kept.

    It finalises to the mean, `[chains...]`; NaN where no step was tested. It must see every step.

    >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
    >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2)
    >>> reducer = sgmcmc.diagnostics.RejectionReducer(target)
    >>> rejected, _, _ = tfp.experimental.mcmc.sample_fold(
    ...     20, tf.zeros([3]), kernel=sgmcmc.SGLD(target, 0.1), reducer=reducer, seed=[0, 1])
    >>> rejected.shape, bool(tf.reduce_all(rejected < 0.05))
    (TensorShape([3]), True)

    Args:
      target_log_prob_fn: as of `rejection_probability`.
      preconditioner: likewise.
      every: tests every so many-th step.
      step_size_fn: kernel results -> epsilon.

    Raises:
      ValueError: `every` below 1.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        preconditioner: Any = None,
        *,
        every: int = 1,
        step_size_fn: Callable[[Any], Any] = lambda results: results.step_size,
    ):
        self._target = as_target(target_log_prob_fn, full_data_expected=True)
        self._preconditioner, self._every = preconditioner, integer("every", every, 1)
        self._step_size_fn = step_size_fn

    def initialize(
        self, initial_chain_state: State, initial_inner_kernel_results: Any = None
    ) -> RejectionState:
        """The reducer's state before the first step."""
        del initial_inner_kernel_results
        state = tf.nest.map_structure(tf.convert_to_tensor, initial_chain_state)
        total = tf.zeros(self._target.chain_shape(state), tf.nest.flatten(state)[0].dtype)
        zero = tf.zeros([], tf.int64)
        return RejectionState(state, total, zero, zero)

    def one_step(
        self,
        new_chain_state: State,
        current_reducer_state: RejectionState,
        previous_kernel_results: Any = None,
    ) -> RejectionState:
        """Tests the step to a new state, if it is its turn."""
        own = current_reducer_state
        step = own.num_steps + 1
        is_tested = step % self._every == 0

        def test() -> tf.Tensor:
            epsilon = self._step_size_fn(previous_kernel_results)
            return own.total + rejection_probability(
                self._target, own.last, new_chain_state, epsilon, self._preconditioner
            )

        total = tf.cond(is_tested, test, lambda: own.total)
        num_tested = own.num_tested + tf.cast(is_tested, tf.int64)
        last = tf.nest.map_structure(tf.identity, new_chain_state)
        return RejectionState(last, total, num_tested, step)

    def finalize(self, final_reducer_state: RejectionState) -> tf.Tensor:
        """The mean, `[chains...]`."""
        total = final_reducer_state.total
        return total / tf.cast(final_reducer_state.num_tested, total.dtype)
