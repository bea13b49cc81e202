"""The stochastic gradient Nose-Hoover thermostat, also known as adaptive Langevin dynamics."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.kernels.base import StepSize, check_step_size
from tfp_sgmcmc.kernels.momentum import MomentumKernel, kinetic_temperature, scaled
from tfp_sgmcmc.state import State, map_parts

SCHEMES = ("euler", "adodab")
THERMOSTATS = ("scalar", "per_part", "per_coordinate")


class SGNHTResults(NamedTuple):
    """Results of a step of `SGNHT`.

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
      thermostat: xi: `[chains...]`; that for each part of the state where there is one a part;
        structure and shapes of the state where there is one a coordinate.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    kinetic_temperature: tf.Tensor
    momentum: State
    step: tf.Tensor
    target_state: Any
    thermostat: State


class SGNHT(MomentumKernel):
    r"""Stochastic gradient Nose-Hoover thermostat: a friction that finds the noise's level itself.

    \[
    \begin{aligned}
    \theta &\leftarrow \theta + h m^{-1} p \\
    p &\leftarrow p + h g(\theta) - h \xi p + \sqrt{2 A T h\, m}\, z \\
    \xi &\leftarrow \xi + \tfrac h\mu \bigl(\tfrac1d p^T m^{-1} p - T\bigr)
    \end{aligned}
    \]

    g is the target's gradient estimate at the new theta, m the mass, A the friction (an inverse
    time) and the first value of xi, mu the thermal mass, d the number of coordinates. Where the
    momenta are hotter than T, xi grows: it comes to A + s where the noise of g has the constant
    covariance (2 s T / h) m, and the law of theta is then right for small h, with nothing known of
    s. Noise of another shape, or that depends on theta, is not dissipated rightly. The momenta that
    are held at T, those after a step, are hotter than theta by a factor of about 1 + h xi / 2.

    `scheme="adodab"` is a symmetric splitting of the same dynamics,

    \[
    \begin{aligned}
    \mathrm A&: \theta \leftarrow \theta + \tfrac h2 m^{-1} p \qquad
    \mathrm D: \xi \leftarrow \xi + \tfrac{h}{2\mu} \bigl(\tfrac1d p^T m^{-1} p - T\bigr) \\
    \mathrm O&: p \leftarrow e^{-\xi h} p + \sqrt{A T m\, (1 - e^{-2 \xi h}) / \xi}\, z \\
    \mathrm D&, \mathrm A \text{ again}; \qquad \mathrm B: p \leftarrow p + h g(\theta)
    \end{aligned}
    \]

    whose error for such noise is of second order in h; that of the Euler scheme is of first. It is
    the BADODAB of Leimkuhler and Shang, whose half steps B before and after share one gradient:
    theta has the same values, and p is given after the whole B, where it is hotter by a term of
    first order.

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
    ...         kernel=sgmcmc.SGNHT(target, step_size=0.003, friction=30., scheme="adodab"),
    ...         trace_fn=lambda _, results: results.thermostat, seed=seed)
    >>> samples, thermostat = run(tf.constant([0, 1]))
    >>> bool(abs(tf.reduce_mean(samples) - x.mean()) < 0.02), thermostat.shape
    (True, TensorShape([2000]))

    Args:
      target_log_prob_fn: a target, such as `MinibatchLogProb`; a plain callable is taken with its
        exact gradient.
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: A, likewise: the noise that is drawn, and the first xi.
      scheme: `"euler"` or `"adodab"`.
      thermostat: `"scalar"`, one xi a chain; `"per_part"`, one for each part of the state; or
        `"per_coordinate"`: each holds the temperature of what it acts on, of d coordinates.
      thermal_mass: mu: a positive number, `[chains...]` tensor or schedule. xi has the variance
        T / (mu d) in the limit of small steps.
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: arrays that broadcast with the state parts; None starts at rest.

    Raises:
      ValueError: a step size, friction, mass or temperature that is not positive and finite, an
        unknown option; at bootstrap, a state or momentum with NaN or infinity.
      TypeError: a target that is not callable; at bootstrap, a state that is not floating.

    #### References

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
        super().__init__(locals())
        check_step_size(friction, "friction")
        check_step_size(thermal_mass, "thermal_mass")
        for name, value, known in (
            ("scheme", scheme, SCHEMES),
            ("thermostat", thermostat, THERMOSTATS),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; one of {', '.join(known)} is expected.")

    def _init_results(self, state: State) -> SGNHTResults:
        figures = self._first_figures(state, "friction", "temperature", "thermal_mass")
        chain_ndims = figures["target_log_prob"].shape.rank
        friction = self._number("friction", figures["step"], state, chain_ndims)
        thermostat = tf.nest.map_structure(
            lambda k: scaled(friction, tf.ones_like(k)),
            self._temperatures(state, self._mass(state), chain_ndims),
        )
        return SGNHTResults(**figures, thermostat=thermostat)

    def _update(
        self, state: State, results: SGNHTResults, seed: tf.Tensor
    ) -> tuple[State, SGNHTResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature, mu = (
            self._number(name, results.step, state, chain_ndims)
            for name in ("step_size", "friction", "temperature", "thermal_mass")
        )
        mass, xi, p = self._mass(state), results.thermostat, results.momentum
        noise = map_parts(
            lambda z, m: scaled(tf.sqrt(2 * friction * temperature * h), z * m**0.5),
            random.normal_like(state, noise_seed), mass,
        )  # fmt: skip

        def move(theta: State, p: State, h: tf.Tensor) -> State:
            return map_parts(lambda x, p, m: x + scaled(h, p / m), theta, p, mass)

        def heat(xi: State, p: State, h: tf.Tensor) -> State:
            return map_parts(
                lambda x, k: x + scaled(h / mu, k) - scaled(h * temperature / mu, tf.ones_like(k)),
                xi, self._temperatures(p, mass, chain_ndims),
            )  # fmt: skip

        if self._parameters["scheme"] == "euler":
            theta = move(state, p, h)
            estimate = self._target.estimate(
                theta, batch_seed, results.target_state, with_scores=False
            )
            p = map_parts(
                lambda p, g, x, s: p + scaled(h, g) - scaled(h, scaled(x, p)) + s,
                p, estimate.gradient, self._by_part(xi, state), noise,
            )  # fmt: skip
            xi = heat(xi, p, h)
        else:
            theta, xi = move(state, p, h / 2), heat(xi, p, h / 2)
            decay = map_parts(lambda x: scaled(h, x), self._by_part(xi, state))
            p = map_parts(
                lambda p, y, s: scaled(tf.exp(-y), p) + scaled(tf.sqrt(_mean_decay(2 * y)), s),
                p, decay, noise,
            )  # fmt: skip
            theta, xi = move(theta, p, h / 2), heat(xi, p, h / 2)
            estimate = self._target.estimate(
                theta, batch_seed, results.target_state, with_scores=False
            )
            p = map_parts(lambda p, g: p + scaled(h, g), p, estimate.gradient)

        return theta, SGNHTResults(
            **self._figures(estimate, h, temperature, p, results), thermostat=xi
        )

    def _temperatures(self, p: State, mass: State, chain_ndims: int) -> State:
        """The kinetic temperature that each thermostat holds."""
        if self._parameters["thermostat"] == "scalar":
            return kinetic_temperature(p, mass, chain_ndims)
        if self._parameters["thermostat"] == "per_part":
            return map_parts(lambda p, m: kinetic_temperature(p, m, chain_ndims), p, mass)
        return map_parts(lambda p, m: p**2 / m, p, mass)

    def _by_part(self, xi: State, state: State) -> State:
        """The xi that acts on each part of the state."""
        if self._parameters["thermostat"] == "scalar":
            return tf.nest.map_structure(lambda _: xi, state)
        return xi


def _mean_decay(x: tf.Tensor) -> tf.Tensor:
    """(1 - exp(-x)) / x, the mean of exp(-x t) over 0 < t < 1, for x of either sign or zero."""
    divisor = tf.where(x == 0, tf.ones_like(x), x)
    return tf.where(x == 0, tf.ones_like(x), -tf.math.expm1(-x) / divisor)
