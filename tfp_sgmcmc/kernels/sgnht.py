"""The stochastic gradient Nose-Hoover thermostat, also known as adaptive Langevin dynamics."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import one_of
from tfp_sgmcmc.internal.nest import State, map_parts
from tfp_sgmcmc.kernels.base import StepSize, check_results
from tfp_sgmcmc.kernels.linear_theory import euler_limit
from tfp_sgmcmc.kernels.momentum import (
    MomentumKernel,
    drift,
    kick,
    kinetic_temperature,
    mean_decay,
    normal_momentum,
    scaled,
)

SCHEMES = ("euler", "adodab")
THERMOSTATS = ("scalar", "per_part", "per_coordinate")


class SGNHTResults(NamedTuple):
    """Results of a step of `SGNHT`: the fields of `MomentumKernel` and one more.

    Attributes:
      thermostat: xi, `[chains...]`, one of these for each part, or one number for each coordinate
        in the structure and shapes of the state.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    step: tf.Tensor
    target_state: Any
    momentum: State
    kinetic_temperature: tf.Tensor
    thermostat: State


class SGNHT(MomentumKernel):
    r"""Stochastic gradient Nose-Hoover thermostat, whose friction adapts to the gradient noise.

    \[
    \begin{aligned}
    \theta &\leftarrow \theta + h m^{-1} p \\
    p &\leftarrow p + h g(\theta) - h \xi p + \sqrt{2 A T h\, m}\, z \\
    \xi &\leftarrow \xi + \tfrac h\mu \bigl(\tfrac1d p^T m^{-1} p - T\bigr)
    \end{aligned}
    \]

    g is the target's gradient estimate at the new theta, m the mass, A the friction (an inverse
    time) and the first value of xi, mu the thermal mass, d the number of coordinates. xi grows
    while the momenta are hotter than T. If the noise of g has the constant covariance
    (2 s T / h) m, xi settles at A + s, and the law of theta is right for small h although s is
    unknown. Noise of another shape, or noise that depends on theta, is dissipated wrongly. The
    momenta after a step are held at T, and theta is colder by a factor of about 1 + h xi / 2.

    `scheme="adodab"` is a symmetric splitting of the same dynamics,

    \[
    \begin{aligned}
    \mathrm A&: \theta \leftarrow \theta + \tfrac h2 m^{-1} p \qquad
    \mathrm D: \xi \leftarrow \xi + \tfrac{h}{2\mu} \bigl(\tfrac1d p^T m^{-1} p - T\bigr) \\
    \mathrm O&: p \leftarrow e^{-\xi h} p + \sqrt{A T m\, (1 - e^{-2 \xi h}) / \xi}\, z \\
    \mathrm D&, \mathrm A \text{ again}; \qquad \mathrm B: p \leftarrow p + h g(\theta)
    \end{aligned}
    \]

    whose error for such noise is of second order in h. The Euler scheme's is of first order. theta
    is the same as in the BADODAB of Leimkuhler and Shang, whose neighbouring half steps B share one
    gradient and are merged here. p, after the whole B, is hotter by a term of first order.

    On a whitened posterior (`whiten`, about N(0, I)) with exact gradients and friction 1, the steps
    0.1, 0.5 and 1 of `"adodab"` leave variances exact, and give 0.05, 0.26 and 0.54 effective
    samples a step. The Euler scheme's step 0.1 makes variances too small by 5.3 % and gives 0.047.
    At 0.5 and 1 no xi holds its momenta at T: xi grows until the chain overflows.

    Examples:
      With `x` and `target` as in the example of `MinibatchLogProb`, the mean of 1,000 numbers:

      >>> kernel = sgmcmc.SGNHT(target, step_size=0.003, friction=30., scheme="adodab")
      >>> result = sgmcmc.sample_chain(
      ...     kernel, tf.zeros([]), 2000,
      ...     num_burnin_steps=500, trace_fn=lambda _, results: results.thermostat, seed=0,
      ...     progress_bar=False)
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True
      >>> result.trace.shape  # the thermostat
      (2000,)

    Args:
      target_log_prob_fn: a target such as `MinibatchLogProb`, or a callable (exact gradients).
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: A, in the same form. It sets the noise that is drawn and the first xi.
      scheme: `"euler"` or `"adodab"`.
      thermostat: `"scalar"`, one xi for each chain; `"per_part"`, one for each part of the state;
        or `"per_coordinate"`. Each xi holds the temperature of the d coordinates that it acts on.
      thermal_mass: mu, in the form of `step_size`. xi settles in about mu (A + s) / h steps, so 1
        suits a whitened posterior, and 1 / lambda one whose largest curvature is lambda. For small
        steps xi has the variance T / (mu d).
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: numbers or arrays that broadcast with the state parts. None starts at rest.

    Raises:
      ValueError: the step size, friction, mass or temperature is not positive and finite, an option
        is unknown, or the momentum is not finite. At bootstrap: the state is not finite, or an
        argument does not fit it.
      TypeError: the target is not callable. At bootstrap: the state is not floating.

    References:
      N. Ding, Y. Fang, R. Babbush, C. Chen, R. D. Skeel and H. Neven. Bayesian sampling using
      stochastic gradient thermostats. NIPS, 2014. Algorithm 2 (with theta moved first).

      B. Leimkuhler and X. Shang. Adaptive thermostats for noisy gradient systems. SIAM Journal on
      Scientific Computing 38(2), 2016. The method BADODAB.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        friction: StepSize = 1.0,
        scheme: Literal["euler", "adodab"] = "euler",
        thermostat: Literal["scalar", "per_part", "per_coordinate"] = "scalar",
        thermal_mass: StepSize = 1.0,
        mass: Any = 1.0,
        temperature: StepSize = 1.0,
        initial_momentum: Any = None,
    ):
        super().__init__(locals(), positive=["thermal_mass"])
        one_of("scheme", scheme, SCHEMES)
        one_of("thermostat", thermostat, THERMOSTATS)

    def largest_stable_step(
        self, largest_curvature: Any, step: int = 0, results: Any = None
    ) -> float | np.ndarray:
        r"""Returns the root of \( h^2 \lambda + 2 h \xi = 4 \), or \( 2 / \sqrt\lambda \) (ADODAB).

        A step of the Euler scheme has the trace \( 2 - h \xi - h^2 \lambda \) and the determinant
        \( 1 - h \xi \); see `MomentumKernel` for `"adodab"`. xi is the friction, or with `results`
        the largest thermostat of each chain.
        """
        if self._parameters["scheme"] == "adodab":
            return super().largest_stable_step(largest_curvature)
        if results is None:
            return euler_limit(largest_curvature, self._used("", "friction", step, None))
        check_results(results, "results", "thermostat")
        chain_ndims = results.target_log_prob.shape.rank
        largest = [
            np.max(xi, axis=tuple(range(chain_ndims, xi.shape.rank)))
            for xi in tf.nest.flatten(results.thermostat)
        ]
        return euler_limit(largest_curvature, np.max(largest, axis=0))

    def _init_results(self, state: State) -> SGNHTResults:
        figures, friction = self._start(state)
        like = self._temperatures(state, self._mass(state), friction.shape.rank)
        thermostat = tf.nest.map_structure(lambda k: scaled(friction, tf.ones_like(k)), like)
        return SGNHTResults(**figures, thermostat=thermostat)

    def _update(
        self, state: State, results: SGNHTResults, seed: tf.Tensor
    ) -> tuple[State, SGNHTResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature, mu = self._numbers(results.step, state, chain_ndims)
        mass, xi, p = self._mass(state), results.thermostat, results.momentum
        noise = normal_momentum(state, mass, tf.sqrt(2 * friction * temperature * h), noise_seed)

        def heat(xi: State, p: State, h: tf.Tensor) -> State:
            return map_parts(
                lambda x, k: x + scaled(h / mu, k) - scaled(h * temperature / mu, tf.ones_like(k)),
                xi, self._temperatures(p, mass, chain_ndims),
            )  # fmt: skip

        if self._parameters["scheme"] == "euler":
            theta = drift(state, p, mass, h)
            estimate = self._target.estimate(
                theta, batch_seed, results.target_state, with_scores=False
            )
            p = map_parts(
                lambda p, g, x, s: p + scaled(h, g) - scaled(h, scaled(x, p)) + s,
                p, estimate.gradient, self._by_part(xi, state), noise,
            )  # fmt: skip
            xi = heat(xi, p, h)
        else:
            theta, xi = drift(state, p, mass, h / 2), heat(xi, p, h / 2)
            decay = map_parts(lambda x: scaled(h, x), self._by_part(xi, state))
            p = map_parts(
                lambda p, y, s: scaled(tf.exp(-y), p) + scaled(tf.sqrt(mean_decay(2 * y)), s),
                p, decay, noise,
            )  # fmt: skip
            theta, xi = drift(theta, p, mass, h / 2), heat(xi, p, h / 2)
            estimate = self._target.estimate(
                theta, batch_seed, results.target_state, with_scores=False
            )
            p = kick(p, estimate.gradient, h)

        return theta, SGNHTResults(
            **self._figures(estimate, h, temperature, results),
            momentum=p,
            kinetic_temperature=kinetic_temperature(p, mass, chain_ndims),
            thermostat=xi,
        )

    def _temperatures(self, p: State, mass: State, chain_ndims: int) -> State:
        """Returns the kinetic temperature that each thermostat holds."""
        if self._parameters["thermostat"] == "scalar":
            return kinetic_temperature(p, mass, chain_ndims)
        if self._parameters["thermostat"] == "per_part":
            return map_parts(lambda p, m: kinetic_temperature(p, m, chain_ndims), p, mass)
        return map_parts(lambda p, m: p**2 / m, p, mass)

    def _by_part(self, xi: State, state: State) -> State:
        """Returns the xi that acts on each part of the state."""
        if self._parameters["thermostat"] == "scalar":
            return tf.nest.map_structure(lambda _: xi, state)
        return xi
