"""The noisy gradient integrator NOGIN."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.covariance import CovarianceState, RunningMean
from tfp_sgmcmc.kernels.base import StepSize, check_step_size
from tfp_sgmcmc.kernels.momentum import MomentumKernel, degrees_of_freedom, scaled
from tfp_sgmcmc.kernels.noise import GradientNoise
from tfp_sgmcmc.state import State, map_parts, sum_events


class NOGINResults(NamedTuple):
    """Results of a step of `NOGIN`.

    Attributes:
      target_log_prob: the minibatch estimate of the log posterior at the middle of the step, where
        the gradient was taken, `[chains...]`.
      gradient_norm: Euclidean norm of the gradient estimate there, `[chains...]`.
      step_size: the h that the step used.
      temperature: the T that the step used.
      kinetic_temperature: p^T m^-1 (p + h/2 g) / d in the middle of the step, before its noise,
        `[chains...]`. Its mean is T for a Gaussian posterior, at every step size and with every
        noise (g's own is averaged out of it), which that of p^T m^-1 p / d is not.
      momentum: p, in the structure of the state.
      step: number of steps taken.
      target_state: what the target carries between steps.
      covariance_state: what the covariance estimator carries; its `num_skipped` counts minibatches
        whose scores were not finite.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    kinetic_temperature: tf.Tensor
    momentum: State
    step: tf.Tensor
    target_state: Any
    covariance_state: CovarianceState


class NOGIN(MomentumKernel):
    r"""NOGIN: underdamped Langevin dynamics in which gradient noise is part of the thermal noise.

    \[
    \begin{aligned}
    \theta &\leftarrow \theta + \tfrac h2 m^{-1} p \\
    p &\leftarrow p + \tfrac h2 g(\theta) + \lambda \sqrt{T m}\, z \\
    p &\leftarrow \bigl((1 - \lambda^2) m - \tfrac{h^2}{4T} \Sigma\bigr)
      \bigl((1 + \lambda^2) m + \tfrac{h^2}{4T} \Sigma\bigr)^{-1} p
      = 2 m \bigl((1 + \lambda^2) m + \tfrac{h^2}{4T} \Sigma\bigr)^{-1} p - p \\
    p &\leftarrow p + \tfrac h2 g(\theta) + \lambda \sqrt{T m}\, z
      \quad \text{(the same g and z)} \\
    \theta &\leftarrow \theta + \tfrac h2 m^{-1} p
    \end{aligned}
    \qquad \lambda^2 = \tanh(\text{friction}\, h / 2)
    \]

    g is the target's gradient estimate with covariance Sigma, z standard normal, m the mass. With
    a Gaussian posterior and Gaussian noise of constant covariance the law of theta is exact at
    every stable step; in general its error is of second order in h, whatever the noise, while it
    is known well. The momenta at the ends of a step are hotter than T for that: in a direction of
    curvature a, their law is N(0, T m / (1 - h^2 a / 4 m)).

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
    ...         kernel=sgmcmc.NOGIN(target, step_size=0.03, friction=10.),
    ...         trace_fn=None, seed=seed)
    >>> samples = run(tf.constant([0, 1]))
    >>> bool(abs(tf.reduce_mean(samples) - x.mean()) < 0.02)
    True

    Args:
      target_log_prob_fn: a target that gives scores, such as `MinibatchLogProb`; a plain callable
        is taken with its exact gradient, and Sigma = 0.
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: positive, in units of inverse time.
      covariance: Sigma: `"full"`, `"block"`, `"diag"`, `"low_rank"`, or an estimator of
        `tfp_sgmcmc.covariance`, which by default averages past minibatches with decay 0.99.
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: arrays that broadcast with the state parts; None starts at rest.
      num_estimation_steps: steps at the start that average Sigma and move nothing. The first Sigma
        is that of n examples; where n is less than the number D of entries, it knows nothing of
        most directions, and their noise goes into the momenta undamped: with D = 129, n = 10 and
        h = 0.03 it threw a logistic regression by 50 posterior standard deviations in ten steps.
        As many steps as bring ten examples an entry, 10 D / n, are enough.

    Raises:
      ValueError: a step size, friction, mass or temperature that is not positive and finite, a
        negative num_estimation_steps, an unknown covariance, a target without scores; at
        bootstrap, a state or momentum with NaN or infinity, fewer than two scores, `"block"` for
        one part.
      TypeError: a target that is not callable; at bootstrap, a state that is not floating.

    #### References

    C. Matthews and J. Weare. Langevin Markov chain Monte Carlo with stochastic gradients.
    arXiv:1805.08863, 2018. Algorithm 1.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        friction: StepSize = 1.0,
        covariance: Any = "full",
        mass: Any = 1.0,
        temperature: StepSize = 1.0,
        initial_momentum: Any = None,
        num_estimation_steps: int = 0,
    ):
        super().__init__(locals())
        check_step_size(friction, "friction")
        integer("num_estimation_steps", num_estimation_steps, 0)
        self._noise = GradientNoise(self._target, covariance, RunningMean(0.99))

    def _init_results(self, state: State) -> NOGINResults:
        figures = self._first_figures(state, "friction", "temperature")
        chain_ndims = figures["target_log_prob"].shape.rank
        return NOGINResults(**figures, covariance_state=self._noise.init(state, chain_ndims))

    def _update(
        self, state: State, results: NOGINResults, seed: tf.Tensor
    ) -> tuple[State, NOGINResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature = (
            self._number(name, results.step, state, chain_ndims)
            for name in ("step_size", "friction", "temperature")
        )
        mass = self._mass(state)
        lambda2 = tf.tanh(friction * h / 2)

        theta = map_parts(lambda x, p, m: x + scaled(h / 2, p / m), state, results.momentum, mass)
        shift = map_parts(lambda m, x: scaled(1 + lambda2, m + tf.zeros_like(x)), mass, state)
        scale = h**2 / (4 * temperature)
        estimate, sigma, covariance_state = self._noise.estimate(
            theta, batch_seed, results.target_state, results.covariance_state, (shift, scale)
        )
        energy = map_parts(
            lambda p, g, m: p * (p + scaled(h / 2, g)) / m,
            results.momentum, estimate.gradient, mass,
        )  # fmt: skip
        kick = map_parts(
            lambda g, z, m: scaled(h / 2, g) + scaled(tf.sqrt(lambda2 * temperature), z * m**0.5),
            estimate.gradient, random.normal_like(state, noise_seed), mass,
        )  # fmt: skip
        p = map_parts(tf.add, results.momentum, kick)
        damped = sigma.solve(shift, scale, p)
        p = map_parts(lambda p, x, m, k: 2 * m * x - p + k, p, damped, mass, kick)
        theta = map_parts(lambda x, p, m: x + scaled(h / 2, p / m), theta, p, mass)
        moves = results.step >= self._parameters["num_estimation_steps"]
        theta, p = (
            map_parts(lambda new, old: tf.where(moves, new, old), new, old)
            for new, old in ((theta, state), (p, results.momentum))
        )

        figures = self._figures(estimate, h, temperature, p, results)
        figures["kinetic_temperature"] = sum_events(energy, chain_ndims) / degrees_of_freedom(
            state, chain_ndims
        )
        return theta, NOGINResults(**figures, covariance_state=covariance_state)
