"""The probability that a Metropolis-Hastings test on all data rejects Langevin steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.diagnostics.base import PeriodicReducer
from tfp_sgmcmc.internal.checks import unary
from tfp_sgmcmc.internal.nest import State, convert_state, map_parts
from tfp_sgmcmc.kernels.base import value_at
from tfp_sgmcmc.kernels.corrected_langevin import LangevinProposal
from tfp_sgmcmc.preconditioners import LocalMatrix
from tfp_sgmcmc.targets.base import as_target


def rejection_probability(
    target_log_prob_fn: Any,
    state: State,
    new_state: State,
    step_size: Any,
    preconditioner: Any = None,
) -> tf.Tensor:
    r"""Returns the probability that a Metropolis-Hastings test on all data would reject a step.

    \[
    1 - \min\left( 1, \frac{p(\theta')\, q(\theta \mid \theta')}{p(\theta)\, q(\theta' \mid \theta)}
    \right), \quad
    q(\cdot \mid \theta) = N\left(
    \theta + \tfrac\epsilon2 (M \nabla \log p + \operatorname{div} M), \, \epsilon M \right)
    \]

    p and its gradient are taken over all examples, so each call costs two passes over the data.
    SGLD makes no such test, and is accurate if the test would reject hardly any step. The step may
    come from a minibatch; q is the proposal with the exact gradient, as in `CorrectedLangevin`.

    In single precision, a difference of log posteriors has an error of about 1e-7 of their size,
    and so has the probability. Use `float64` if N is large.

    Examples:
      >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
      >>> normal = tfp.distributions.Normal(tf.constant(0., tf.float64), 1.)
      >>> steps = tf.constant([0., 0.5], tf.float64), tf.constant([1., -0.5], tf.float64)
      >>> found = sgmcmc.diagnostics.rejection_probability(normal.log_prob, *steps, step_size=0.8)
      >>> found.numpy().round(6)
      array([0.095163, 0.      ])

    Args:
      target_log_prob_fn: a target or a plain callable.
      state: theta, the state before the step. Its leading dimensions may count chains or steps.
      new_state: theta', the state after the step.
      step_size: epsilon: a positive number, or a nest of them in the structure of the state.
      preconditioner: M: None, a positive number or array, or a preconditioner that knows its log
        determinant and inverse.

    Returns:
      Probabilities, `[chains...]`; 1 if theta' has no finite log posterior.

    Raises:
      ValueError: the step size is not positive and finite, or the preconditioner has no log
        determinant or inverse.

    References:
      M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
      2011. Figure 2, right.
    """
    proposal = LangevinProposal(target_log_prob_fn, step_size, preconditioner)

    def at(x: State) -> tuple[tf.Tensor, State, LocalMatrix]:
        """Returns log p at x, the mean of q( . | x), and M."""
        log_prob, gradient = proposal.log_prob_and_gradient(x)
        matrix = proposal.matrix(x, log_prob)
        return log_prob, proposal.mean(x, gradient, epsilon, matrix), matrix

    def log_density(y: State, mean: State, matrix: LocalMatrix) -> tf.Tensor:
        """Returns log q(y | x), up to a constant."""
        assert matrix.inverse_quadratic is not None  # `proposal.matrix` has checked this
        residual = map_parts(lambda y, m, e: (y - m) / tf.sqrt(e), y, mean, epsilon)
        return -0.5 * (matrix.inverse_quadratic(residual) + matrix.log_det)

    state, new_state = convert_state(state), convert_state(new_state, called="new_state")
    shapes = [[tuple(x.shape) for x in tf.nest.flatten(s)] for s in (state, new_state)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"new_state must have the shapes of state, {shapes[0]}. Received: {shapes[1]}."
        )
    epsilon = value_at(step_size, tf.zeros([], tf.int64), state)
    here, there = at(state), at(new_state)
    log_ratio = (
        there[0] - here[0] + log_density(state, *there[1:]) - log_density(new_state, *here[1:])
    )
    rejected = tf.constant(-float("inf"), log_ratio.dtype)
    log_ratio = tf.where(tf.math.is_nan(log_ratio), rejected, log_ratio)
    return tf.abs(tf.math.expm1(tf.minimum(log_ratio, 0.0)))


class RejectionState(NamedTuple):
    """The state of `RejectionReducer`.

    Attributes:
      last: the chain's last state.
      total: sum of the probabilities, `[chains...]`.
      num_tested: number of probabilities in the sum.
      num_steps: number of steps.
    """

    last: State
    total: tf.Tensor
    num_tested: tf.Tensor
    num_steps: tf.Tensor


class RejectionReducer(PeriodicReducer):
    """Computes the mean of `rejection_probability` over the steps of a chain that is not kept.

    It finalises to the mean, `[chains...]`, which is NaN if no step was tested. It must see every
    step.

    Examples:
      >>> import tensorflow as tf, tensorflow_probability as tfp, tfp_sgmcmc as sgmcmc
      >>> target = sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2)
      >>> reducer = sgmcmc.diagnostics.RejectionReducer(target)
      >>> rejected, _, _ = tfp.experimental.mcmc.sample_fold(
      ...     20, tf.zeros([3]), kernel=sgmcmc.SGLD(target, 0.1), reducer=reducer, seed=[0, 1])
      >>> rejected.shape, bool(tf.reduce_all(rejected < 0.05))
      (TensorShape([3]), True)

    Args:
      target_log_prob_fn: a target or a plain callable.
      preconditioner: M, as in `rejection_probability`.
      every: number of steps between the tested ones.
      step_size_fn: kernel results -> epsilon.

    Raises:
      ValueError: `every` is below 1.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        preconditioner: Any = None,
        *,
        every: int = 1,
        step_size_fn: Callable[[Any], Any] = lambda results: results.step_size,
    ):
        super().__init__(as_target(target_log_prob_fn, full_data_expected=True), every)
        self._preconditioner = preconditioner
        self._step_size_fn = unary("step_size_fn", step_size_fn, "kernel results -> step size")

    def _start(self, state: State, zeros: tf.Tensor) -> RejectionState:
        return RejectionState(state, zeros, tf.zeros([], tf.int64), tf.zeros([], tf.int64))

    def _update(self, own: RejectionState, state: State, results: Any) -> RejectionState:
        probability = rejection_probability(
            self._target, own.last, state, self._step_size_fn(results), self._preconditioner
        )
        return self._skip(own, state)._replace(
            total=own.total + probability, num_tested=own.num_tested + 1
        )

    def _skip(self, own: RejectionState, state: State) -> RejectionState:
        return own._replace(last=state)

    def finalize(self, final_reducer_state: RejectionState) -> tf.Tensor:
        """Returns the mean, `[chains...]`."""
        total = final_reducer_state.total
        return total / tf.cast(final_reducer_state.num_tested, total.dtype)
