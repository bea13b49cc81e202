"""The covariance-controlled adaptive Langevin thermostat CCAdL."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import CovarianceState, RunningMean
from tfp_sgmcmc.internal.checks import integer, one_of, optional
from tfp_sgmcmc.internal.nest import State, map_parts
from tfp_sgmcmc.kernels import linear_theory
from tfp_sgmcmc.kernels.base import StepSize
from tfp_sgmcmc.kernels.momentum import (
    MomentumKernel,
    drift,
    kick,
    kinetic_temperature,
    mean_decay,
    midpoint_temperature,
    normal_momentum,
    scaled,
)
from tfp_sgmcmc.kernels.noisy_gradients import GradientNoise

SCHEMES = ("midpoint", "euler", "adodacbc")
_SEED = (20151, 8)  # of minibatches that only show Sigma


class CCAdLResults(NamedTuple):
    """Results of a step of `CCAdL`: the fields of `MomentumKernel` and two more.

    Attributes:
      kinetic_temperature: of the momenta after the step, or for `"midpoint"` what its thermostat
        holds at T, p^T m^-1 (p + h/2 g) / d.
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
    \theta &\leftarrow \theta + \tfrac h2 m^{-1} p \\
    \xi &\leftarrow \xi + \tfrac h\mu
      \bigl(\tfrac1d p^T m^{-1} (p + \tfrac h2 g(\theta)) - T\bigr),
      \qquad \lambda^2 = \tanh(\xi h / 2) \\
    \bar p &= m \bigl((1 + \lambda^2) m + \tfrac{h^2}{4T} \Sigma\bigr)^{-1}
      \bigl(p + \tfrac h2 g(\theta) + \sqrt{A T m \lambda^2 / \xi}\, z\bigr) \\
    p &\leftarrow 2 \bar p - p \\
    \theta &\leftarrow \theta + \tfrac h2 m^{-1} p
    \end{aligned}
    \]

    g is the target's gradient estimate, with covariance Sigma; m the mass, A the friction (an
    inverse time) and the first value of xi, mu the thermal mass, d the number of coordinates. The
    friction by Sigma dissipates the heat that the noise of g brings, even if that noise depends on
    theta and direction. The thermostat absorbs the rest, such as errors of Sigma.

    \( \bar p \) is the mean of p before and after. This is the step of `NOGIN` with a friction that
    a thermostat moves. It is stable at every Sigma for \( h^2 a < 4 m \), where a is the largest
    curvature. With a Gaussian posterior, noise of constant covariance and a heavy thermostat, theta
    has the exact law at every such step. A step solves with Sigma, so the average of Sigma must be
    long (see `covariance`). Where Sigma is large, a step is as short as one of NOGIN.

    `scheme="euler"` is the paper's,

    \[
    \begin{aligned}
    \theta &\leftarrow \theta + h m^{-1} p \\
    p &\leftarrow p + h g(\theta) - \tfrac{h^2}{2T} \Sigma m^{-1} p - h \xi p
      + \sqrt{2 A T h\, m}\, z \\
    \xi &\leftarrow \xi + \tfrac h\mu \bigl(\tfrac1d p^T m^{-1} p - T\bigr)
    \end{aligned}
    \]

    Its error is of first order in h: the momenta after a step are held at T, and theta is colder by
    a factor of about 1 + h xi / 2. Its momenta are stable where all eigenvalues of
    \( \tfrac{h^2}{2T} \Sigma m^{-1} + h \xi \) are below 2. A good step keeps them well below 1.
    Above 2 the chain overflows within some steps, which `tfp_sgmcmc.diagnostics.check_finite`
    reports. `preflight` and `fit` warn beforehand.

    `scheme="adodacbc"` is a symmetric splitting with explicit friction,

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
    their error is of third order in h with it. A step takes one gradient and two products with
    Sigma. It is stable for \( h^2 \Sigma < 4 T m \).

    On a whitened posterior (`whiten`, about N(0, I)) with exact gradients and friction 1, the steps
    0.1, 0.5 and 1 of `"midpoint"` and `"adodacbc"` leave variances exact, and give 0.05, 0.26 and
    0.54 effective samples a step. The Euler scheme's step 0.1 makes variances too small by 5.3 %
    and gives 0.047. At 0.5 and 1 no xi holds its momenta at T: xi grows until the chain overflows.

    Examples:
      With `x` and `target` as in the example of `MinibatchLogProb`, the mean of 1,000 numbers:

      >>> result = sgmcmc.sample_chain(
      ...     sgmcmc.CCAdL(target, step_size=0.003, friction=30.), tf.zeros([]), 2000,
      ...     num_burnin_steps=500, trace_fn=lambda _, results: results.thermostat, seed=0,
      ...     progress_bar=False)
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True
      >>> result.trace.shape  # the thermostat
      (2000,)

    Args:
      target_log_prob_fn: a target that gives scores, or a callable (exact gradients, Sigma = 0).
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: A, in the same form. It sets the noise that is drawn and the first xi.
      covariance: Sigma: `"full"`, `"block"`, `"diag"`, `"low_rank"`, an estimator of
        `tfp_sgmcmc.covariance`, or `"auto"`: full, but in `fit` diag with more than 1000 weights.
        By default past minibatches are averaged as in `NOGIN`, and with decay 0.99 in the explicit
        schemes.
      thermal_mass: mu, in the form of `step_size`. For small steps xi has the variance T / (mu d).
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: numbers or arrays that broadcast with the state parts. None starts at rest.
      scheme: `"midpoint"`, stable at every Sigma; `"euler"`, the paper's; or `"adodacbc"`.
      num_estimation_steps: number of steps at the start that average Sigma and do not move the
        state. None stands for `NOGIN`'s rule, and for 0 in the explicit schemes.

    Raises:
      ValueError: the step size, friction, mass or temperature is not positive and finite, the
        covariance or the scheme is unknown, num_estimation_steps is negative, the target gives no
        scores, or the momentum is not finite. At bootstrap: the state is not finite or has one
        part for `"block"`; scores are fewer than two.
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
        scheme: Literal["midpoint", "euler", "adodacbc"] = "midpoint",
        num_estimation_steps: int | None = None,
    ):
        super().__init__(locals(), positive=["thermal_mass"])
        one_of("scheme", scheme, SCHEMES)
        optional(integer, "num_estimation_steps", num_estimation_steps, 0)
        average = None if scheme == "midpoint" else RunningMean(0.99)
        self._noise = GradientNoise(self._target, covariance, average)

    def largest_stable_step(
        self,
        largest_curvature: Any,
        step: int = 0,
        results: Any = None,
        largest_noise: Any = None,
    ) -> float | np.ndarray:
        r"""Returns \( 2 / \sqrt\lambda \), at any Sigma and xi, for `"midpoint"`.

        The limit of `"euler"` is the root of \( h^2 (\lambda + s / T m) + 2 h \xi = 4 \).
        s is the largest eigenvalue of Sigma. A step has the trace
        \( 2 - h f - h^2 \lambda \) and the determinant \( 1 - h f \), where
        \( f = \xi + h s / (2 T m) \). s is `largest_noise`, or that of the `results`; without both
        it counts as zero, and the limit with Sigma is lower. Without `results` xi is the friction.
        The smallest mass is used with s, so steps somewhat
        above the limit can be stable.

        The limit of `"adodacbc"` is \( 2 / \sqrt{\max(\lambda, s / T m)} \), at any xi. Where C
        multiplies p by u and O by c, a step has the trace
        \( 1 + u^2 c - u (1 + c) h^2 \lambda / 2 \) and the determinant \( u^2 c \), and u must be
        positive.
        """
        if largest_noise is not None:
            largest_noise = linear_theory.at_least_zero("largest_noise", largest_noise)
        largest_curvature = linear_theory.at_least_zero("largest_curvature", largest_curvature)
        if self._parameters["scheme"] == "midpoint":
            return super().largest_stable_step(largest_curvature)
        is_split = self._parameters["scheme"] == "adodacbc"
        xi = self._used("thermostat", "friction", step, results)
        temperature = self._used("temperature", "temperature", step, results)
        if largest_noise is None and results is not None:
            largest_noise = self._largest(results.momentum, results.covariance_state)
        smallest = min(np.min(m) for m in tf.nest.flatten(self._parameters["mass"]))
        extra = (0.0 if largest_noise is None else largest_noise) / (smallest * temperature)
        if is_split:
            return linear_theory.splitting_limit(np.maximum(largest_curvature, extra))
        return linear_theory.euler_limit(largest_curvature + extra, xi)

    def largest_noise(self, state: State, scale: Any = None, num_minibatches: int = 10) -> Any:
        """Returns the largest eigenvalue of Sigma at `state`, `[chains...]`, from some minibatches.

        It is 0 for `"midpoint"`, whose limit does not depend on it. `scale` is c in Sigma = c V, by
        default the target's.
        """
        results = self.bootstrap_results(state)
        if self._parameters["scheme"] == "midpoint":
            return np.zeros(results.thermostat.shape)
        for i in range(num_minibatches):
            estimate, _, last = self._noise.estimate(state, random.fold_in(_SEED, i), results)
            results = results._replace(target_state=estimate.target_state, covariance_state=last)
        return self._largest(state, results.covariance_state, scale)

    def relaxation_steps(self, curvature: Any, noise: Any, step: int = 0) -> np.ndarray:
        r"""Returns the number of steps in which a distance falls by a factor of e.

        As `NOGIN.relaxation_steps`, by the law of the scheme in `kernels.linear_theory`, with xi at
        the friction. The arguments and exceptions are the same.
        """
        curvature, noise = linear_theory.curvature_and_noise(curvature, noise)
        h, friction, temperature = (
            self._used(name, name, step, None) for name in ("step_size", "friction", "temperature")
        )
        s = noise / temperature
        law = {
            "midpoint": linear_theory.nogin_law,
            "euler": linear_theory.euler_law,
            "adodacbc": linear_theory.split_friction_law,
        }
        return law[self._parameters["scheme"]](h, friction, curvature, s, s).relaxation_steps

    def _largest(self, state: State, last: CovarianceState, scale: Any = None) -> np.ndarray:
        sigma = self._noise.past(state, last, scale)
        return sigma.power_iteration(tf.nest.map_structure(tf.ones_like, state), 30)[0].numpy()

    def _init_results(self, state: State) -> CCAdLResults:
        figures, friction = self._start(state)
        covariance_state = self._noise.init(state, friction.shape.rank)
        return CCAdLResults(**figures, thermostat=friction, covariance_state=covariance_state)

    def _update(
        self, state: State, results: CCAdLResults, seed: tf.Tensor
    ) -> tuple[State, CCAdLResults]:
        if self._parameters["scheme"] == "midpoint":
            return self._midpoint_step(state, results, *random.split(seed, 2))
        return self._explicit_step(state, results, *random.split(seed, 2))

    def _midpoint_step(
        self, state: State, results: CCAdLResults, batch_seed: tf.Tensor, noise_seed: tf.Tensor
    ) -> tuple[State, CCAdLResults]:
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature, mu = self._numbers(results.step, state, chain_ndims)
        mass, p = self._mass(state), results.momentum

        theta = drift(state, p, mass, h / 2)
        estimate, sigma, covariance_state = self._noise.estimate(theta, batch_seed, results)
        heat = midpoint_temperature(p, estimate.gradient, mass, h, chain_ndims)
        xi = results.thermostat + h / mu * (heat - temperature)
        lambda2 = tf.tanh(xi * h / 2)
        spread = tf.sqrt(friction * temperature * tf.where(xi == 0, h / 2, lambda2 / xi))
        noise = normal_momentum(state, mass, spread, noise_seed)
        shift = map_parts(lambda m, x: scaled(1 + lambda2, m + tf.zeros_like(x)), mass, state)
        scale = h**2 / (4 * temperature)
        sigma, covariance_state = self._noise.covariance.prepare(
            covariance_state, sigma, shift, scale
        )
        middle = map_parts(lambda p, g, s: p + scaled(h / 2, g) + s, p, estimate.gradient, noise)
        middle = sigma.solve(shift, scale, middle)  # the velocity at the midpoint
        p = map_parts(lambda m, v, p: 2 * m * v - p, mass, middle, p)
        theta = drift(theta, p, mass, h / 2)

        given = self._parameters["num_estimation_steps"]
        num_steps = self._noise.estimation_steps(given, state, chain_ndims)
        theta, p, xi = _moved_after(num_steps, (theta, p, xi), state, results)
        return theta, CCAdLResults(
            **self._figures(estimate, h, temperature, results),
            momentum=p,
            kinetic_temperature=heat,
            thermostat=xi,
            covariance_state=covariance_state,
        )

    def _explicit_step(
        self, state: State, results: CCAdLResults, batch_seed: tf.Tensor, noise_seed: tf.Tensor
    ) -> tuple[State, CCAdLResults]:
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature, mu = self._numbers(results.step, state, chain_ndims)
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
            estimate, sigma, covariance_state = self._noise.estimate(theta, batch_seed, results)
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
            estimate, sigma, covariance_state = self._noise.estimate(theta, batch_seed, results)
            p = dissipated(p, h**2 / 2)
            p = kick(p, estimate.gradient, h)
            p = dissipated(p, h**2 / 2)

        if num_steps := self._parameters["num_estimation_steps"] or 0:
            theta, p, xi = _moved_after(num_steps, (theta, p, xi), state, results)
        return theta, CCAdLResults(
            **self._figures(estimate, h, temperature, results),
            momentum=p,
            kinetic_temperature=kinetic_temperature(p, mass, chain_ndims),
            thermostat=xi,
            covariance_state=covariance_state,
        )


def _moved_after(
    num_steps: int, new: tuple[State, State, tf.Tensor], state: State, results: CCAdLResults
) -> tuple[State, State, tf.Tensor]:
    """Returns `new` theta, p and xi, or the old ones in the first `num_steps` steps."""
    moves, old = results.step >= num_steps, (state, results.momentum, results.thermostat)
    return map_parts(lambda x, y: tf.where(moves, x, y), new, old)
