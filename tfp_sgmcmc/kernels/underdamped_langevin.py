"""Underdamped Langevin dynamics by splitting: BAOAB and OBABO."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.kernels.base import StepSize, check_step_size
from tfp_sgmcmc.kernels.momentum import MomentumKernel, kinetic_temperature, scaled
from tfp_sgmcmc.state import State, map_parts


class UnderdampedLangevinResults(NamedTuple):
    """Results of a step of `UnderdampedLangevin`.

    Attributes:
      target_log_prob: the estimate of the log posterior where the step took its gradient,
        `[chains...]`.
      gradient_norm: Euclidean norm of the gradient estimate there, `[chains...]`.
      step_size: the h that the step used.
      temperature: the T that the step used.
      kinetic_temperature: p^T m^-1 p / d of the momenta that the next (`"baoab"`) or this
        (`"obabo"`) step's O finds, `[chains...]`. Its mean is T for a Gaussian posterior with exact
        gradients, at every step size; gradient noise raises it.
      momentum: p, in the structure of the state.
      step: number of steps taken.
      target_state: what the target carries between steps.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    kinetic_temperature: tf.Tensor
    momentum: State
    step: tf.Tensor
    target_state: Any


class UnderdampedLangevin(MomentumKernel):
    r"""Underdamped Langevin dynamics, split into drift (A), kick (B) and friction with noise (O).

    \[
    A_h:\ \theta \leftarrow \theta + h m^{-1} p, \qquad
    B_h:\ p \leftarrow p + h g(\theta), \qquad
    O_h:\ p \leftarrow e^{-\text{friction}\, h} p
      + \sqrt{T (1 - e^{-2\, \text{friction}\, h})\, m}\; z
    \]

    A step is, from left to right, `"baoab"`: \( A_{h/2} O_h A_{h/2} B_h \); `"obabo"`:
    \( A_h B_{h/2} O_h B_{h/2} \), both B with the same g. They take one gradient a step and give
    the theta of \( B_{h/2} A_{h/2} O_h A_{h/2} B_{h/2} \) and of \( O_{h/2} B_{h/2} A_h B_{h/2}
    O_{h/2} \), whose neighbouring half steps are merged here. The momenta in the results are ahead
    of those schemes' own: by half a kick, and for `"obabo"` by half an O besides.

    g is the target's gradient estimate, z standard normal, m the mass. With exact gradients the
    error is of second order in h, and for a Gaussian posterior `"baoab"` has none in theta. The
    noise of minibatches is not corrected for, and makes the variance too large by an error of first
    order in h: use `NOGIN` for that, or exact or variance-reduced gradients here.

    #### Example

    >>> import tensorflow as tf, tensorflow_probability as tfp
    >>> import tfp_sgmcmc as sgmcmc
    >>> target = sgmcmc.FullDataLogProb(lambda theta: -0.5 * theta**2)
    >>> @tf.function(jit_compile=True)
    ... def run(seed):
    ...     return tfp.mcmc.sample_chain(
    ...         num_results=1000, num_burnin_steps=100, current_state=tf.zeros([100]),
    ...         kernel=sgmcmc.UnderdampedLangevin(target, step_size=1.5),
    ...         trace_fn=lambda _, results: results.kinetic_temperature, seed=seed)
    >>> samples, temperature = run(tf.constant([0, 1]))
    >>> bool(abs(tf.math.reduce_variance(samples) - 1) < 0.03), temperature.shape
    (True, TensorShape([1000, 100]))

    Args:
      target_log_prob_fn: a target, such as `MinibatchLogProb`; a plain callable is taken with its
        exact gradient.
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: positive, in units of inverse time.
      scheme: `"baoab"` or `"obabo"`.
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: arrays that broadcast with the state parts; None starts at rest.

    Raises:
      ValueError: a step size, friction, mass or temperature that is not positive and finite, an
        unknown scheme, a momentum with NaN or infinity; at bootstrap, a state with NaN or infinity,
        arguments that do not fit the state.
      TypeError: a target that is not callable; at bootstrap, a state that is not floating.

    #### References

    B. Leimkuhler and C. Matthews. Rational construction of stochastic numerical methods for
    molecular sampling. Applied Mathematics Research eXpress, 2013.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        friction: StepSize = 1.0,
        scheme: Literal["baoab", "obabo"] = "baoab",
        mass: Any = 1.0,
        temperature: StepSize = 1.0,
        initial_momentum: Any = None,
    ):
        super().__init__(locals())
        check_step_size(friction, "friction")
        if scheme not in ("baoab", "obabo"):
            raise ValueError(f"scheme is {scheme!r}; 'baoab' or 'obabo' is expected.")

    def _init_results(self, state: State) -> UnderdampedLangevinResults:
        return UnderdampedLangevinResults(**self._first_figures(state, "friction", "temperature"))

    def _update(
        self, state: State, results: UnderdampedLangevinResults, seed: tf.Tensor
    ) -> tuple[State, UnderdampedLangevinResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature = (
            self._number(name, results.step, state, chain_ndims)
            for name in ("step_size", "friction", "temperature")
        )
        mass, z = self._mass(state), random.normal_like(state, noise_seed)
        decay = tf.exp(-friction * h)
        spread = tf.sqrt(-temperature * tf.math.expm1(-2 * friction * h))

        def a(theta: State, p: State, h: tf.Tensor) -> State:
            return map_parts(lambda x, p, m: x + scaled(h, p / m), theta, p, mass)

        def b(p: State, g: State, h: tf.Tensor) -> State:
            return map_parts(lambda p, g: p + scaled(h, g), p, g)

        def o(p: State) -> State:
            return map_parts(
                lambda p, m, z: scaled(decay, p) + scaled(spread, z * m**0.5), p, mass, z
            )

        p, is_baoab = results.momentum, self._parameters["scheme"] == "baoab"
        if is_baoab:
            theta = a(state, p, h / 2)
            p = o(p)
            theta = a(theta, p, h / 2)
        else:
            theta = a(state, p, h)
        estimate = self._target.estimate(theta, batch_seed, results.target_state, with_scores=False)
        if is_baoab:
            before_o = p = b(p, estimate.gradient, h)
        else:
            before_o = b(p, estimate.gradient, h / 2)
            p = b(o(before_o), estimate.gradient, h / 2)

        figures = self._figures(estimate, h, temperature, p, results)
        figures["kinetic_temperature"] = kinetic_temperature(before_o, mass, chain_ndims)
        return theta, UnderdampedLangevinResults(**figures)
