"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import one_of
from tfp_sgmcmc.internal.nest import State, map_parts
from tfp_sgmcmc.kernels.base import OverdampedKernel, StepSize, check_positive
from tfp_sgmcmc.kernels.linear_theory import overdamped_law
from tfp_sgmcmc.preconditioners import GradientInfo, as_preconditioner


class SGLDResults(NamedTuple):
    """Results of a step of `SGLD`, with the fields of `StochasticGradientKernel` and one more.

    Attributes:
      preconditioner_state: what the preconditioner carries between steps.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: Any
    temperature: Any
    step: tf.Tensor
    target_state: Any
    preconditioner_state: Any


class SGLD(OverdampedKernel):
    r"""Stochastic gradient Langevin dynamics, preconditioned and tempered.

    \[
    \theta \leftarrow \theta
      + \frac{\epsilon_t}{2} \left( M g(\theta) + T \operatorname{div} M \right)
      + \sqrt{\epsilon_t T}\, M^{1/2} z, \qquad z \sim N(0, I)
    \]

    g is the target's gradient estimate (a sum over all N examples, not divided by N), M the
    preconditioner (the identity by default), \( (\operatorname{div} M)_i = \sum_j \partial M_{ij} /
    \partial \theta_j \), T the temperature. Without a Metropolis test, the chain samples
    \( p(\theta \mid x)^{1/T} \) only in the limit of small steps. At a finite step the
    discretisation and the noise of g make its variance too large.

    With `noise="three_point"` the entries of z are 0 with probability 2/3 and \( \pm\sqrt 3 \) with
    probability 1/6 each, which is cheaper. They have the moments of a normal up to the fifth, so
    the scheme keeps its weak order, one, with every preconditioner. For a Gaussian posterior of
    variance 1/a the draws have the same covariance. In place of 0 their standardised sixth cumulant
    is \( -6 (1 - \rho^2)^3 / (1 - \rho^6) \), \( \rho = 1 - \epsilon a / 2 \): of second order in
    epsilon.

    On a whitened posterior (`whiten`, about N(0, I)) with exact gradients, the steps 0.1, 0.5 and 1
    make variances too large by 2.6 %, 14 % and 33 %, and give 0.026, 0.14 and 0.33 effective
    samples a step.

    Examples:
      With `x` and `target` as in the example of `MinibatchLogProb`, the mean of 1,000 numbers:

      >>> result = sgmcmc.sample_chain(
      ...     sgmcmc.SGLD(target, step_size=1e-4), tf.zeros([]), 2000,
      ...     num_burnin_steps=500, seed=0, progress_bar=False)
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True

    Args:
      target_log_prob_fn: a target such as `MinibatchLogProb`, or a callable (exact gradients).
      step_size: epsilon: a positive number or tensor that broadcasts with the state parts, a
        schedule (a callable from step to value), or a nest of these in the structure of the state.
      temperature: T, in the same form, at least 0. 0 gives gradient ascent.
      preconditioner: M: a `Preconditioner`, or a positive number or array (scalar or diagonal).
      noise: `"normal"` or `"three_point"`: the law of the entries of z.

    Raises:
      ValueError: the step size is not positive and finite, the temperature is negative, or the
        noise is unknown. At bootstrap: the state is not finite, or an argument does not fit it.
      TypeError: the target is not callable. At bootstrap: the state is not floating.

    References:
      M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
      2011. Equations 4 and 8.

      P. E. Kloeden and E. Platen. Numerical solution of stochastic differential equations.
      Springer, 1992. Section 14.1: what weak order one asks of the noise.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        temperature: StepSize = 1.0,
        preconditioner: Any = None,
        noise: Literal["normal", "three_point"] = "normal",
    ):
        super().__init__(locals())
        one_of("noise", noise, ["normal", "three_point"])
        check_positive("temperature", temperature, zero_allowed=True)
        self._preconditioner = as_preconditioner(preconditioner)

    def metric_product(self, vector: State, state: State, results: Any) -> State:
        """Returns M v, with the preconditioner M at `state`.

        A preconditioner that learns from gradients gets one more: the next step's for the seed 0.
        """
        learnt, info = results.preconditioner_state, None
        if tf.nest.flatten(learnt):
            probe = vector if self._preconditioner.needs_curvature else None
            estimate = self._target.estimate(
                state, random.as_seed(0), results.target_state, probe, with_scores=False
            )
            info = GradientInfo(
                estimate.gradient, self._target.num_examples, probe, estimate.hessian_product
            )
        chain_ndims = results.target_log_prob.shape.rank
        matrix, _ = self._preconditioner.evaluate(state, chain_ndims, learnt, info)
        return matrix.multiply(vector)

    def noise_temperature(self, noise: Any, results: SGLDResults) -> float:
        r"""Returns the draws' temperature over T, \( 1 + \epsilon s / (4 T) \), by gradient noise.

        This is `kernels.linear_theory.overdamped_law` for independent noise and small steps, the
        same along directions of any curvature. With several step sizes it takes their mean.

        Args:
          noise: s, the mean of \( g^T M g / D \) over the noise g of gradients.
          results: the kernel's results.
        """
        sizes, temperatures = (
            np.mean([np.mean(x) for x in tf.nest.flatten(part)])
            for part in (results.step_size, results.temperature)
        )
        if temperatures == 0:
            return np.inf
        return float(overdamped_law(sizes, 0.0, noise / temperatures).temperature)

    def _init_results(self, state: State) -> SGLDResults:
        figures = self._start(state)
        preconditioner_state = self._preconditioner.init(state)
        self._preconditioner.evaluate(  # raises here for what does not fit the state
            state,
            figures["target_log_prob"].shape.rank,
            preconditioner_state,
            GradientInfo(state, self._target.num_examples, state, state),
        )
        return SGLDResults(**figures, preconditioner_state=preconditioner_state)

    def _update(
        self, state: State, results: SGLDResults, seed: tf.Tensor
    ) -> tuple[State, SGLDResults]:
        batch_seed, noise_seed, probe_seed = random.split(seed, 3)
        probe = None
        if self._preconditioner.needs_curvature:
            probe = random.rademacher_like(state, probe_seed)
        estimate = self._target.estimate(
            state, batch_seed, results.target_state, probe, with_scores=False
        )
        chain_ndims = estimate.log_prob.shape.rank
        matrix, preconditioner_state = self._preconditioner.evaluate(
            state,
            chain_ndims,
            results.preconditioner_state,
            GradientInfo(
                estimate.gradient, self._target.num_examples, probe, estimate.hessian_product
            ),
        )
        epsilon, temperature = self._settings(results.step, state)

        drift = matrix.multiply(estimate.gradient)
        if matrix.divergence is not None:
            drift = map_parts(lambda d, t, c: d + t * c, drift, temperature, matrix.divergence)
        is_normal = self._parameters["noise"] == "normal"
        draw = random.normal_like if is_normal else random.three_point_like
        noise = matrix.sqrt_multiply(draw(state, noise_seed))
        state = map_parts(
            lambda theta, eps, t, d, z: theta + eps / 2 * d + tf.sqrt(eps * t) * z,
            state, epsilon, temperature, drift, noise,
        )  # fmt: skip

        return state, SGLDResults(
            **self._figures(estimate, epsilon, temperature, results),
            preconditioner_state=preconditioner_state,
        )
