"""Underdamped Langevin dynamics by splitting: BAOAB, OBABO and ABOBA."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import one_of
from tfp_sgmcmc.internal.nest import State, map_parts
from tfp_sgmcmc.kernels.base import StepSize, setting_at
from tfp_sgmcmc.kernels.linear_theory import splitting_law
from tfp_sgmcmc.kernels.momentum import MomentumKernel, drift, kick, kinetic_temperature, scaled


class UnderdampedLangevinResults(NamedTuple):
    """Results of a step of `UnderdampedLangevin`: the fields of `MomentumKernel`.

    Attributes:
      target_log_prob: the minibatch's estimate where g is taken: the state that the step reached,
        or for `"aboba"` the one in the middle of the step.
      kinetic_temperature: p^T m^-1 p / d before the next (`"baoab"`) or this (otherwise) step's O,
        `[chains...]`. For a Gaussian posterior with exact gradients its mean is T at every step
        size. Gradient noise raises it.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    step: tf.Tensor
    target_state: Any
    momentum: State
    kinetic_temperature: tf.Tensor


class UnderdampedLangevin(MomentumKernel):
    r"""Underdamped Langevin dynamics, split into drift (A), kick (B) and friction with noise (O).

    \[
    A_h:\ \theta \leftarrow \theta + h m^{-1} p, \qquad
    B_h:\ p \leftarrow p + h g(\theta), \qquad
    O_h:\ p \leftarrow e^{-\text{friction}\, h} p
      + \sqrt{T (1 - e^{-2\, \text{friction}\, h})\, m}\; z
    \]

    A step is, from left to right, \( A_{h/2} O_h A_{h/2} B_h \) for `"baoab"`,
    \( A_h B_{h/2} O_h B_{h/2} \) for `"obabo"`, and \( A_{h/2} B_{h/2} O_h B_{h/2} A_{h/2} \) for
    `"aboba"`, both B with the same g. They take one gradient a step. In the first two theta is the
    same as in \( B_{h/2} A_{h/2} O_h A_{h/2} B_{h/2} \) and
    \( O_{h/2} B_{h/2} A_h B_{h/2} O_{h/2} \), whose neighbouring half steps are merged here. The
    momenta in the results are half a kick ahead of these schemes, and for `"obabo"` also half an O.
    `"aboba"` is `NOGIN` without gradient noise, with the same momenta.

    g is the target's gradient estimate, z standard normal, m the mass. With exact gradients the
    error is of second order in h. For a Gaussian posterior it is zero in theta for `"baoab"` and
    `"aboba"`. The
    noise of minibatches makes the variance too large by an error of first order in h. Use exact or
    variance-reduced gradients, or `NOGIN`, which corrects it.

    With `noise="three_point"` the entries of z are 0 with probability 2/3 and \( \pm\sqrt 3 \) with
    probability 1/6 each, which is cheaper. They have the moments of a normal up to the fifth, so
    all schemes keep their weak order, two. For a Gaussian posterior the draws have the same
    covariance, and their sixth cumulant is of second order in h instead of 0. (Random signs have
    only the first three moments, and would lower the order to one.)

    On a whitened posterior (`whiten`, about N(0, I)) with exact gradients and friction 1, the steps
    0.1, 0.5 and 1 of `"baoab"` and `"aboba"` leave variances exact, and give 0.05, 0.26 and 0.54
    effective samples a step. Those of `"obabo"` make variances too large by 0.25 %, 6.7 % and 33 %,
    and give 0.05, 0.27 and 0.72.

    Examples:
      With `x` and `target` as in the example of `MinibatchLogProb`, the mean of 1,000 numbers:

      >>> exact = sgmcmc.FullDataLogProb(target)
      >>> kernel = sgmcmc.UnderdampedLangevin(exact, step_size=0.04, friction=10.)
      >>> result = sgmcmc.sample_chain(
      ...     kernel, tf.zeros([]), 2000,
      ...     num_burnin_steps=500, trace_fn=lambda _, results: results.kinetic_temperature, seed=0,
      ...     progress_bar=False)
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True
      >>> bool(abs(result.trace.mean() - 1) < 0.2)
      True

    Args:
      target_log_prob_fn: a target such as `MinibatchLogProb`, or a callable (exact gradients).
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: positive, in units of inverse time.
      scheme: `"baoab"`, `"obabo"` or `"aboba"`.
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: numbers or arrays that broadcast with the state parts. None starts at rest.
      noise: `"normal"` or `"three_point"`: the law of the entries of z.

    Raises:
      ValueError: the step size, friction, mass or temperature is not positive and finite, the
        scheme or noise is unknown, or the momentum is not finite. At bootstrap: the state is not
        finite, or an argument does not fit it.
      TypeError: the target is not callable. At bootstrap: the state is not floating.

    References:
      B. Leimkuhler and C. Matthews. Rational construction of stochastic numerical methods for
      molecular sampling. Applied Mathematics Research eXpress, 2013.

      P. E. Kloeden and E. Platen. Numerical solution of stochastic differential equations.
      Springer, 1992. Section 14.2: what weak order two asks of the noise.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        friction: StepSize = 1.0,
        scheme: Literal["baoab", "obabo", "aboba"] = "baoab",
        mass: Any = 1.0,
        temperature: StepSize = 1.0,
        initial_momentum: Any = None,
        noise: Literal["normal", "three_point"] = "normal",
    ):
        super().__init__(locals())
        one_of("scheme", scheme, ["baoab", "obabo", "aboba"])
        one_of("noise", noise, ["normal", "three_point"])

    def noise_temperature(self, noise: Any, results: UnderdampedLangevinResults) -> float:
        r"""Returns the draws' temperature over T, by gradient noise.

        It is \( 1 + h^2 s / (4 T \tanh(\text{friction}\, h / 2)) \), by
        `kernels.linear_theory.splitting_law` for independent noise and small curvature.

        Args:
          noise: s, the mean of \( g^T m^{-1} g / D \) over the noise g of gradients.
          results: the kernel's results.
        """
        friction = np.mean(setting_at(self._parameters["friction"], results.step))
        h, temperature = np.mean(results.step_size), np.mean(results.temperature)
        return float(splitting_law(h, friction, 0.0, noise / temperature).temperature)

    def _init_results(self, state: State) -> UnderdampedLangevinResults:
        return UnderdampedLangevinResults(**self._start(state)[0])

    def _update(
        self, state: State, results: UnderdampedLangevinResults, seed: tf.Tensor
    ) -> tuple[State, UnderdampedLangevinResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature = self._numbers(results.step, state, chain_ndims)
        is_normal = self._parameters["noise"] == "normal"
        draw = random.normal_like if is_normal else random.three_point_like
        mass, z = self._mass(state), draw(state, noise_seed)
        decay = tf.exp(-friction * h)
        spread = tf.sqrt(-temperature * tf.math.expm1(-2 * friction * h))

        def o(p: State) -> State:
            return map_parts(
                lambda p, m, z: scaled(decay, p) + scaled(spread, z * m**0.5), p, mass, z
            )

        p, scheme = results.momentum, self._parameters["scheme"]
        if scheme == "baoab":
            theta = drift(state, p, mass, h / 2)
            p = o(p)
            theta = drift(theta, p, mass, h / 2)
        else:
            theta = drift(state, p, mass, h if scheme == "obabo" else h / 2)
        estimate = self._target.estimate(theta, batch_seed, results.target_state, with_scores=False)
        if scheme == "baoab":
            before_o = p = kick(p, estimate.gradient, h)
        else:
            before_o = kick(p, estimate.gradient, h / 2)
            p = kick(o(before_o), estimate.gradient, h / 2)
            if scheme == "aboba":
                theta = drift(theta, p, mass, 0.5 * h)

        return theta, UnderdampedLangevinResults(
            **self._figures(estimate, h, temperature, results),
            momentum=p,
            kinetic_temperature=kinetic_temperature(before_o, mass, chain_ndims),
        )
