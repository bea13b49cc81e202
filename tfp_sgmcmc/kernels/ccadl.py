"""The covariance-controlled adaptive Langevin thermostat CCAdL."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import CovarianceState, RunningMean
from tfp_sgmcmc.kernels.base import StepSize, check_step_size
from tfp_sgmcmc.kernels.momentum import MomentumKernel, scaled
from tfp_sgmcmc.kernels.noise import GradientNoise
from tfp_sgmcmc.state import State, map_parts


class CCAdLResults(NamedTuple):
    """Results of a step of `CCAdL`.

    Attributes:
      target_log_prob: the minibatch estimate of the log posterior at the state that the step
        reached, `[chains...]`.
      gradient_norm: Euclidean norm of the gradient estimate there, `[chains...]`.
      step_size: the h that the step used.
      temperature: the T that the step used.
      kinetic_temperature: p^T m^-1 p / d after the step, `[chains...]`.
      momentum: p, in the structure of the state.
      step: number of steps taken.
      target_state: what the target carries between steps.
      thermostat: xi, `[chains...]`.
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
    thermostat: tf.Tensor
    covariance_state: CovarianceState


class CCAdL(MomentumKernel):
    r"""Covariance-controlled adaptive Langevin: a thermostat, and friction against known noise.

    \[
    \begin{aligned}
    \theta &\leftarrow \theta + h m^{-1} p \\
    p &\leftarrow p + h g(\theta) - \tfrac{h^2}{2T} \Sigma m^{-1} p - h \xi p
      + \sqrt{2 A T h\, m}\, z \\
    \xi &\leftarrow \xi + \tfrac h\mu \bigl(\tfrac1d p^T m^{-1} p - T\bigr)
    \end{aligned}
    \]

    g is the target's gradient estimate, with covariance Sigma, at the new theta; m the mass, A the
    friction (an inverse time) and the first value of xi, mu the thermal mass, d the number of
    coordinates. The friction by Sigma dissipates what the noise of g adds to the momenta, also
    where it depends on theta and direction; the thermostat takes up the rest, such as errors of
    Sigma. The error is of first order in h: the momenta that are held at T, those after a step, are
    hotter than theta by a factor of about 1 + h xi / 2, so theta is colder than T by that much.

    The momenta are stable where all eigenvalues of \( \tfrac{h^2}{2T} \Sigma m^{-1} + h \xi \) are
    below 2, and the step is a good one where they are well below 1. Beyond that the chain overflows
    within some steps, of which `tfp_sgmcmc.diagnostics.check_finite` tells: make h smaller, or
    minibatches larger.

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
    ...         num_results=2000, num_burnin_steps=500, current_state=tf.zeros([]),
    ...         kernel=sgmcmc.CCAdL(target, step_size=0.003, friction=30.),
    ...         trace_fn=lambda _, results: results.thermostat, seed=seed)
    >>> samples, thermostat = run(tf.constant([0, 1]))
    >>> bool(abs(tf.reduce_mean(samples) - x.mean()) < 0.02), thermostat.shape
    (True, TensorShape([2000]))

    Args:
      target_log_prob_fn: a target that gives scores, such as `MinibatchLogProb`; a plain callable
        is taken with its exact gradient, and Sigma = 0.
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: A, likewise: the noise that is drawn, and the first xi.
      covariance: Sigma: `"full"`, `"block"`, `"diag"`, `"low_rank"`, or an estimator of
        `tfp_sgmcmc.covariance`, which by default averages past minibatches with decay 0.99.
      thermal_mass: mu: a positive number, `[chains...]` tensor or schedule. xi has the variance
        T / (mu d) in the limit of small steps.
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: arrays that broadcast with the state parts; None starts at rest.

    Raises:
      ValueError: a step size, friction, mass or temperature that is not positive and finite, an
        unknown covariance, a target without scores; at bootstrap, a state or momentum with NaN or
        infinity, fewer than two scores, `"block"` for one part.
      TypeError: a target that is not callable; at bootstrap, a state that is not floating.

    #### References

    X. Shang, Z. Zhu, B. Leimkuhler and A. J. Storkey. Covariance-controlled adaptive Langevin
    thermostat for large-scale Bayesian sampling. NIPS, 2015. Algorithm 1, whose average of the
    covariance, \( \kappa_t = 1/t \) with the current minibatch, is
    `covariance.Full(RunningMean(), include_current=True)`.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        friction: StepSize = 1.0,
        covariance: Any = "full",
        thermal_mass: StepSize = 1.0,
        mass: Any = 1.0,
        temperature: StepSize = 1.0,
        initial_momentum: Any = None,
    ):
        super().__init__(locals())
        check_step_size(friction, "friction")
        check_step_size(thermal_mass, "thermal_mass")
        self._noise = GradientNoise(self._target, covariance, RunningMean(0.99))

    def _init_results(self, state: State) -> CCAdLResults:
        figures = self._first_figures(state, "friction", "temperature", "thermal_mass")
        zeros, step = figures["target_log_prob"], figures["step"]
        chain_ndims = zeros.shape.rank
        return CCAdLResults(
            **figures,
            thermostat=self._number("friction", step, state, chain_ndims) + zeros,
            covariance_state=self._noise.init(state, chain_ndims),
        )

    def _update(
        self, state: State, results: CCAdLResults, seed: tf.Tensor
    ) -> tuple[State, CCAdLResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature, mu = (
            self._number(name, results.step, state, chain_ndims)
            for name in ("step_size", "friction", "temperature", "thermal_mass")
        )
        mass, xi, p = self._mass(state), results.thermostat, results.momentum

        velocity = map_parts(tf.divide, p, mass)
        theta = map_parts(lambda x, v: x + scaled(h, v), state, velocity)
        estimate, sigma, covariance_state = self._noise.estimate(
            theta, batch_seed, results.target_state, results.covariance_state
        )
        p = map_parts(
            lambda p, g, s, z, m: (
                p
                + scaled(h, g)
                - scaled(h**2 / (2 * temperature), s)
                - scaled(h * xi, p)
                + scaled(tf.sqrt(2 * friction * temperature * h), z * m**0.5)
            ),
            p, estimate.gradient, sigma.multiply(velocity),
            random.normal_like(state, noise_seed), mass,
        )  # fmt: skip
        figures = self._figures(estimate, h, temperature, p, results)
        xi = xi + h / mu * (figures["kinetic_temperature"] - temperature)
        return theta, CCAdLResults(**figures, thermostat=xi, covariance_state=covariance_state)
