"""SGLD that takes the noise of its gradients off the noise that it injects."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import CovarianceState, RunningMean
from tfp_sgmcmc.kernels.base import StepSize, StochasticGradientKernel, check_step_size, value_at
from tfp_sgmcmc.kernels.noise import GradientNoise
from tfp_sgmcmc.state import State, map_parts, squared_norm


class ModifiedSGLDResults(NamedTuple):
    """Results of a step of `ModifiedSGLD`.

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
      covariance_state: what the covariance estimator carries; its `num_skipped` counts minibatches
        whose scores were not finite.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: Any
    temperature: Any
    step: tf.Tensor
    target_state: Any
    covariance_state: CovarianceState


class ModifiedSGLD(StochasticGradientKernel):
    r"""Modified SGLD (mSGLD): SGLD without the first-order error that noisy gradients cause.

    \[
    \theta \leftarrow \theta + \frac{\epsilon_t}{2} g(\theta)
      + \sqrt{\epsilon_t T} \left( I - \frac{\epsilon_t}{8 T} \Sigma \right) z,
    \qquad z \sim N(0, I)
    \]

    g is the target's gradient estimate with covariance Sigma, T the temperature. The noise of g
    adds \( \epsilon^2 \Sigma / 4 \) to the variance of a step, and the injected noise has that less
    to first order, so that along an eigenvector of Sigma with eigenvalue s both make up

    \[
    \epsilon T (1 + u^2), \quad u = \frac{\epsilon s}{8 T},
    \qquad \text{in the place of SGLD's } \epsilon T (1 + 2u) .
    \]

    What gradient noise adds to the variance of the samples is then of second order in epsilon.
    What discretisation adds is SGLD's, of first order. Above u = 1 the correction is past its
    range (it injects more noise than at u = 1, where it injects none), and above u = 2 the samples
    are worse than SGLD's: take a smaller step or a larger minibatch.

    With steps of their own for the parts, \( \epsilon \Sigma \) stands for
    \( E^{1/2} \Sigma E^{1/2} \), E the diagonal matrix of the steps.

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
    ...         kernel=sgmcmc.ModifiedSGLD(target, step_size=1e-4),
    ...         trace_fn=None, seed=seed)
    >>> samples = run(tf.constant([0, 1]))
    >>> bool(abs(tf.reduce_mean(samples) - x.mean()) < 0.02)
    True

    Args:
      target_log_prob_fn: a target that gives scores, such as `MinibatchLogProb`; a plain callable
        is taken with its exact gradient, and Sigma = 0, which is SGLD.
      step_size: epsilon: a positive number or tensor that broadcasts with the state parts, a
        schedule (a callable from step to value), or a nest of these in the structure of the state.
      covariance: Sigma: `"full"`, `"block"`, `"diag"`, `"low_rank"`, or an estimator of
        `tfp_sgmcmc.covariance`, which by default averages past minibatches with decay 0.99.
      temperature: T, positive: a number, a tensor that broadcasts with the state parts, or a
        schedule.

    Raises:
      ValueError: a step size or temperature that is not positive and finite, an unknown
        covariance, a target without scores; at bootstrap, a state with NaN or infinity, fewer than
        two scores, `"block"` for one part.
      TypeError: a target that is not callable; at bootstrap, a state that is not floating.

    #### References

    S. J. Vollmer, K. C. Zygalakis and Y. W. Teh. Exploration of the (non-)asymptotic bias and
    variance of stochastic gradient Langevin dynamics. Journal of Machine Learning Research 17(159),
    2016. There h is epsilon, T is 1.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        covariance: Any = "full",
        temperature: StepSize = 1.0,
    ):
        super().__init__(locals())
        check_step_size(temperature, "temperature")
        self._noise = GradientNoise(self._target, covariance, RunningMean(0.99))

    def _init_results(self, state: State) -> ModifiedSGLDResults:
        step = tf.zeros([], tf.int64)
        zeros = tf.zeros(self._target.chain_shape(state), tf.nest.flatten(state)[0].dtype)
        temperature = value_at(self._parameters["temperature"], step, state, "temperature")
        return ModifiedSGLDResults(
            target_log_prob=zeros,
            gradient_norm=zeros,
            step_size=self._reported("step_size", value_at(self.step_size, step, state)),
            temperature=self._reported("temperature", temperature),
            step=step,
            target_state=self._target.bootstrap(state),
            covariance_state=self._noise.init(state, zeros.shape.rank),
        )

    def _update(
        self, state: State, results: ModifiedSGLDResults, seed: tf.Tensor
    ) -> tuple[State, ModifiedSGLDResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        estimate, sigma, covariance_state = self._noise.estimate(
            state, batch_seed, results.target_state, results.covariance_state
        )
        epsilon = value_at(self.step_size, results.step, state)
        temperature = value_at(self._parameters["temperature"], results.step, state, "temperature")

        noise = map_parts(
            lambda z, eps, t: tf.sqrt(eps / t) * z,
            random.normal_like(state, noise_seed), epsilon, temperature,
        )  # fmt: skip
        state = map_parts(
            lambda theta, eps, t, g, x, s: theta + eps / 2 * g + t * x - eps / 8 * s,
            state, epsilon, temperature, estimate.gradient, noise, sigma.multiply(noise),
        )  # fmt: skip

        return state, ModifiedSGLDResults(
            target_log_prob=estimate.log_prob,
            gradient_norm=tf.sqrt(squared_norm(estimate.gradient, estimate.log_prob.shape.rank)),
            step_size=self._reported("step_size", epsilon),
            temperature=self._reported("temperature", temperature),
            step=results.step + 1,
            target_state=estimate.target_state,
            covariance_state=covariance_state,
        )
