"""The covariance-controlled adaptive Langevin thermostat CCAdL."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import CovarianceState, RunningMean
from tfp_sgmcmc.internal.checks import one_of
from tfp_sgmcmc.internal.nest import State, map_parts
from tfp_sgmcmc.kernels.base import StepSize
from tfp_sgmcmc.kernels.linear_theory import euler_limit, splitting_limit
from tfp_sgmcmc.kernels.momentum import (
    MomentumKernel,
    drift,
    kick,
    kinetic_temperature,
    mean_decay,
    normal_momentum,
    scaled,
)
from tfp_sgmcmc.kernels.noisy_gradients import GradientNoise

SCHEMES = ("euler", "adodacbc")


class CCAdLResults(NamedTuple):
    """Results of a step of `CCAdL`: the fields of `MomentumKernel` and two more.

    Attributes:
      thermostat: xi, `[chains...]`.
      covariance_state: what the covariance estimator carries. Its `num_skipped` counts minibatches
        whose scores were not finite.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    step: tf.Tensor
    target_state: Any
    momentum: State
    kinetic_temperature: tf.Tensor
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
    coordinates. The friction by Sigma dissipates the heat that the noise of g brings, even if that
    noise depends on theta and direction. The thermostat absorbs the rest, such as errors of Sigma.
    The error is of first order in h: the momenta after a step are held at T, and theta is colder by
    a factor of about 1 + h xi / 2.

    `scheme="adodacbc"` is a symmetric splitting of the same dynamics,

    \[
    \begin{aligned}
    \mathrm A&: \theta \leftarrow \theta + \tfrac h2 m^{-1} p \qquad
    \mathrm D: \xi \leftarrow \xi + \tfrac{h}{2\mu} \bigl(\tfrac1d p^T m^{-1} p - T\bigr) \\
    \mathrm O&: p \leftarrow e^{-\xi h} p + \sqrt{A T m\, (1 - e^{-2 \xi h}) / \xi}\, z \qquad
    \text{then D and A again} \\
    \mathrm C&: p \leftarrow p - \tfrac{h^2}{4T} \Sigma m^{-1} p \qquad
    \mathrm B: p \leftarrow p + h g(\theta) \qquad \text{C again}
    \end{aligned}
    \]

    The friction by Sigma acts on both sides of the kick whose noise it dissipates. For a Gaussian
    posterior and noise of constant covariance the variances of theta are exact without noise, and
    their error is of third order in h with it, where the Euler scheme's is of first order. A step
    takes one gradient and two products with Sigma. It is stable for \( h^2 \Sigma < 4 T m \).

    The momenta of the Euler scheme are stable where all eigenvalues of
    \( \tfrac{h^2}{2T} \Sigma m^{-1} + h \xi \) are below 2. A good step keeps them well below 1.
    Above 2 the chain overflows within some steps, which `tfp_sgmcmc.diagnostics.check_finite`
    reports. Make h smaller, or minibatches larger.

    On a whitened posterior (`whiten`, about N(0, I)) with exact gradients and friction 1, the steps
    0.1, 0.5 and 1 of `"adodacbc"` leave variances exact, and give 0.05, 0.26 and 0.54 effective
    samples a step. The Euler scheme's step 0.1 makes variances too small by 5.3 % and gives 0.047.
    At 0.5 and 1 no xi holds its momenta at T: xi grows until the chain overflows.

    Examples:
      With `target` and `sample` as in `StochasticGradientKernel`:

      >>> samples, results = sample(sgmcmc.CCAdL(target, step_size=0.003, friction=30.))
      >>> bool(abs(tf.reduce_mean(samples) - x.mean()) < 0.02)
      True
      >>> results.thermostat.shape
      TensorShape([2000])

    Args:
      target_log_prob_fn: a target that gives scores, or a callable (exact gradients, Sigma = 0).
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: A, in the same form. It sets the noise that is drawn and the first xi.
      covariance: Sigma: `"full"`, `"block"`, `"diag"`, `"low_rank"`, an estimator of
        `tfp_sgmcmc.covariance`, or `"auto"`: full, but in `fit` diag with more than 1000 weights.
        By default past minibatches are averaged with decay 0.99.
      thermal_mass: mu, in the form of `step_size`. For small steps xi has the variance T / (mu d).
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: numbers or arrays that broadcast with the state parts. None starts at rest.
      scheme: `"euler"`, the paper's, or `"adodacbc"`.

    Raises:
      ValueError: the step size, friction, mass or temperature is not positive and finite, the
        covariance or the scheme is unknown, the target gives no scores, or the momentum is not
        finite. At bootstrap: the state is not finite or has one part for `"block"`; scores are
        fewer than two.
      TypeError: the target is not callable. At bootstrap: the state is not floating.

    References:
      X. Shang, Z. Zhu, B. Leimkuhler and A. J. Storkey. Covariance-controlled adaptive Langevin
      thermostat for large-scale Bayesian sampling. NIPS, 2015. Algorithm 1. The paper averages the
      covariance with \( \kappa_t = 1/t \) and the current minibatch, which is
      `covariance.Full(RunningMean(), include_current=True)`. Section 5 names a symmetric splitting
      as an open problem.

      B. Leimkuhler and X. Shang. Adaptive thermostats for noisy gradient systems. SIAM Journal on
      Scientific Computing 38(2), 2016. The splitting without C, as in `SGNHT`.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        friction: StepSize = 1.0,
        covariance: Any = "auto",
        thermal_mass: StepSize = 1.0,
        mass: Any = 1.0,
        temperature: StepSize = 1.0,
        initial_momentum: Any = None,
        scheme: Literal["euler", "adodacbc"] = "euler",
    ):
        super().__init__(locals(), positive=["thermal_mass"])
        one_of("scheme", scheme, SCHEMES)
        self._noise = GradientNoise(self._target, covariance, RunningMean(0.99))

    def largest_stable_step(
        self, largest_curvature: Any, step: int = 0, results: Any = None
    ) -> float | np.ndarray:
        r"""Returns the root of \( h^2 (\lambda + s / T m) + 2 h \xi = 4 \).

        s is the largest eigenvalue of Sigma. A step has the trace
        \( 2 - h f - h^2 \lambda \) and the determinant \( 1 - h f \), where
        \( f = \xi + h s / (2 T m) \). Without `results`, xi is the friction and Sigma counts as
        zero; the limit with Sigma is lower. The smallest mass is used with s, so steps somewhat
        above the limit can be stable.

        The limit of `"adodacbc"` is \( 2 / \sqrt{\max(\lambda, s / T m)} \), at any xi. Where C
        multiplies p by u and O by c, a step has the trace
        \( 1 + u^2 c - u (1 + c) h^2 \lambda / 2 \) and the determinant \( u^2 c \), and u must be
        positive.
        """
        is_split = self._parameters["scheme"] != "euler"
        xi = self._used("thermostat", "friction", step, results)
        if results is None:
            return (
                splitting_limit(largest_curvature)
                if is_split
                else euler_limit(largest_curvature, xi)
            )
        sigma = self._noise.past(results.momentum, results.covariance_state)
        noise, _ = sigma.power_iteration(tf.nest.map_structure(tf.ones_like, results.momentum), 30)
        smallest = min(np.min(m) for m in tf.nest.flatten(self._parameters["mass"]))
        extra = noise.numpy() / (smallest * np.asarray(results.temperature))
        if is_split:
            return splitting_limit(np.maximum(largest_curvature, extra))
        return euler_limit(largest_curvature + extra, xi)

    def _init_results(self, state: State) -> CCAdLResults:
        figures, friction = self._start(state, "thermal_mass")
        covariance_state = self._noise.init(state, friction.shape.rank)
        return CCAdLResults(**figures, thermostat=friction, covariance_state=covariance_state)

    def _update(
        self, state: State, results: CCAdLResults, seed: tf.Tensor
    ) -> tuple[State, CCAdLResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature, mu = self._numbers(
            results.step, state, chain_ndims, "thermal_mass"
        )
        mass, xi, p = self._mass(state), results.thermostat, results.momentum

        noise = normal_momentum(state, mass, tf.sqrt(2 * friction * temperature * h), noise_seed)

        def heat(xi: tf.Tensor, p: State, h: tf.Tensor) -> tf.Tensor:
            return xi + h / mu * (kinetic_temperature(p, mass, chain_ndims) - temperature)

        def dissipated(p: State, h2: tf.Tensor) -> State:
            velocity = map_parts(tf.divide, p, mass)
            return map_parts(
                lambda p, s: p - scaled(h2 / (2 * temperature), s), p, sigma.multiply(velocity)
            )

        if self._parameters["scheme"] == "euler":
            theta = drift(state, p, mass, h)
            estimate, sigma, covariance_state = self._noise.estimate(
                theta, batch_seed, results.target_state, results.covariance_state
            )
            p = map_parts(
                lambda p, g, q, s: q + scaled(h, g) - scaled(h * xi, p) + s,
                p, estimate.gradient, dissipated(p, h**2), noise,
            )  # fmt: skip
            xi = heat(xi, p, h)
        else:
            theta, xi = drift(state, p, mass, h / 2), heat(xi, p, h / 2)
            spread = tf.sqrt(mean_decay(2 * xi * h))
            p = map_parts(lambda p, s: scaled(tf.exp(-xi * h), p) + scaled(spread, s), p, noise)
            theta, xi = drift(theta, p, mass, h / 2), heat(xi, p, h / 2)
            estimate, sigma, covariance_state = self._noise.estimate(
                theta, batch_seed, results.target_state, results.covariance_state
            )
            p = dissipated(p, h**2 / 2)
            p = kick(p, estimate.gradient, h)
            p = dissipated(p, h**2 / 2)

        return theta, CCAdLResults(
            **self._figures(estimate, h, temperature, results),
            momentum=p,
            kinetic_temperature=kinetic_temperature(p, mass, chain_ndims),
            thermostat=xi,
            covariance_state=covariance_state,
        )
