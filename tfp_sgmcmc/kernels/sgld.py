"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.kernels.base import StepSize, StochasticGradientKernel, check_step_size, value_at
from tfp_sgmcmc.preconditioners import GradientInfo, as_preconditioner
from tfp_sgmcmc.state import State, map_parts, squared_norm


class SGLDResults(NamedTuple):
    """Results of a step of `SGLD`.

    Attributes:
      target_log_prob: the minibatch estimate of the log posterior at the state that the step left,
        `[chains...]`.
      gradient_norm: Euclidean norm of the gradient estimate there, `[chains...]`.
      step_size: the epsilon that the step used; a scalar, or one for each state part where they
        were given so.
      temperature: the T that the step used; a scalar, or one for each state part where they were
        given so.
      step: number of steps taken.
      target_state: what the target carries between steps.
      preconditioner_state: what the preconditioner carries between steps.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: Any
    temperature: Any
    step: tf.Tensor
    target_state: Any
    preconditioner_state: Any


class SGLD(StochasticGradientKernel):
    r"""Stochastic gradient Langevin dynamics, preconditioned and tempered.

    \[
    \theta \leftarrow \theta
      + \frac{\epsilon_t}{2} \left( M g(\theta) + T \operatorname{div} M \right)
      + \sqrt{\epsilon_t T}\, M^{1/2} z, \qquad z \sim N(0, I)
    \]

    g is the target's gradient estimate (a sum over all N examples; nothing is divided by N), M the
    preconditioner (the identity by default), \( (\operatorname{div} M)_i = \sum_j \partial M_{ij} /
    \partial \theta_j \), T the temperature. There is no Metropolis test: the chain samples
    \( p(\theta \mid x)^{1/T} \) in the limit of small steps only; at a finite step its variance
    is too large, by the discretisation and by the noise of g.

    #### Example

    >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
    >>> import tfp_sgmcmc as sgmcmc
    >>> tfd = tfp.distributions
    >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
    >>> target = sgmcmc.MinibatchLogProb(
    ...     log_prior_fn=tfd.Normal(0., 10.).log_prob,
    ...     log_likelihood_fn=lambda theta, batch: tfd.Normal(theta[..., None], 1.).log_prob(batch),
    ...     data=x, batch_size=50)
    >>> @tf.function(jit_compile=True)
    ... def run(seed):
    ...     return tfp.mcmc.sample_chain(
    ...         num_results=2000, num_burnin_steps=200, current_state=tf.zeros([]),
    ...         kernel=sgmcmc.SGLD(target, step_size=1e-4),
    ...         trace_fn=lambda _, results: results.gradient_norm, seed=seed)
    >>> samples, gradient_norm = run(tf.constant([0, 1]))
    >>> bool(abs(tf.reduce_mean(samples) - x.mean()) < 0.02), gradient_norm.shape
    (True, TensorShape([2000]))

    Args:
      target_log_prob_fn: a target, such as `MinibatchLogProb`; a plain callable is taken with its
        exact gradient.
      step_size: epsilon: a positive number or tensor that broadcasts with the state parts, a
        schedule (a callable from step to value), or a nest of these in the structure of the state.
      temperature: T, at least 0, a number or a schedule; 0 is gradient ascent.
      preconditioner: M: a `tfp_sgmcmc.preconditioners.Preconditioner`, or a positive number or
        array as scalar or diagonal matrix.

    Raises:
      ValueError: a step size that is not positive and finite, a negative temperature; at
        bootstrap, a state with NaN or infinity.
      TypeError: a target that is not callable; at bootstrap, a state that is not floating.

    #### References

    M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
    2011. Equations 4 and 8.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        temperature: StepSize = 1.0,
        preconditioner: Any = None,
    ):
        super().__init__(locals())
        check_step_size(temperature, "temperature", zero_allowed=True)
        self._preconditioner = as_preconditioner(preconditioner)

    def _init_results(self, state: State) -> SGLDResults:
        step = tf.zeros([], tf.int64)
        zeros = tf.zeros(self._target.chain_shape(state), tf.nest.flatten(state)[0].dtype)
        temperature = value_at(self._parameters["temperature"], step, state, "temperature")
        preconditioner_state = self._preconditioner.init(state)
        self._preconditioner.evaluate(  # raises here for what does not fit the state
            state,
            zeros.shape.rank,
            preconditioner_state,
            GradientInfo(state, self._target.num_examples, state, state),
        )
        return SGLDResults(
            target_log_prob=zeros,
            gradient_norm=zeros,
            step_size=self._reported("step_size", value_at(self.step_size, step, state)),
            temperature=self._reported("temperature", temperature),
            step=step,
            target_state=self._target.bootstrap(state),
            preconditioner_state=preconditioner_state,
        )

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
        epsilon = value_at(self.step_size, results.step, state)
        temperature = value_at(self._parameters["temperature"], results.step, state, "temperature")

        drift = matrix.multiply(estimate.gradient)
        if matrix.divergence is not None:
            drift = map_parts(lambda d, t, c: d + t * c, drift, temperature, matrix.divergence)
        noise = matrix.sqrt_multiply(random.normal_like(state, noise_seed))
        state = map_parts(
            lambda theta, eps, t, d, z: theta + eps / 2 * d + tf.sqrt(eps * t) * z,
            state, epsilon, temperature, drift, noise,
        )  # fmt: skip

        norm = tf.sqrt(squared_norm(estimate.gradient, chain_ndims))
        return state, SGLDResults(
            target_log_prob=estimate.log_prob,
            gradient_norm=norm,
            step_size=self._reported("step_size", epsilon),
            temperature=self._reported("temperature", temperature),
            step=results.step + 1,
            target_state=estimate.target_state,
            preconditioner_state=preconditioner_state,
        )
