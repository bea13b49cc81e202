"""The noisy gradient integrator NOGIN."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import CovarianceState
from tfp_sgmcmc.internal.checks import boolean, integer, optional
from tfp_sgmcmc.internal.nest import State, map_parts
from tfp_sgmcmc.kernels.base import StepSize
from tfp_sgmcmc.kernels.linear_theory import curvature_and_noise, nogin_law
from tfp_sgmcmc.kernels.momentum import (
    MomentumKernel,
    drift,
    midpoint_temperature,
    normal_momentum,
    scaled,
)
from tfp_sgmcmc.kernels.noisy_gradients import GradientNoise, largest_eigenvalue, remaining_noise


class NOGINResults(NamedTuple):
    r"""Results of a step of `NOGIN`: the fields of `MomentumKernel` and three more.

    Attributes:
      target_log_prob: the minibatch's estimate in the middle of the step, where g is taken.
      kinetic_temperature: \( p^T m^{-1} (p + \tfrac h2 g) / d \) in the middle of the step, before
        its noise, `[chains...]`. For a Gaussian posterior its mean is T at every step size and with
        every noise, because the noise of g averages out. The mean of \( p^T m^{-1} p / d \) is
        higher.
      covariance_state: what the covariance estimator carries. Its `num_skipped` counts minibatches
        whose scores were not finite.
      num_small_friction: number of steps so far whose friction `matrix_lambda` had to raise,
        `[chains...]`.
      eigenvector: with `matrix_lambda`, the estimate of the leading eigenvector of Sigma.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    step: tf.Tensor
    target_state: Any
    momentum: State
    kinetic_temperature: tf.Tensor
    covariance_state: CovarianceState
    num_small_friction: tf.Tensor
    eigenvector: State


class NOGIN(MomentumKernel):
    r"""NOGIN: underdamped Langevin dynamics in which gradient noise is part of the thermal noise.

    \[
    \begin{aligned}
    \theta &\leftarrow \theta + \tfrac h2 m^{-1} p \\
    p &\leftarrow p + \tfrac h2 g(\theta) + \lambda \sqrt{T m}\, z \\
    p &\leftarrow \bigl((1 - \lambda^2) m - \tfrac{h^2}{4T} \Sigma\bigr)
      \bigl((1 + \lambda^2) m + \tfrac{h^2}{4T} \Sigma\bigr)^{-1} p \\
      &\quad = 2 m \bigl((1 + \lambda^2) m + \tfrac{h^2}{4T} \Sigma\bigr)^{-1} p - p,
      \qquad \lambda^2 = \tanh(\text{friction}\, h / 2) \\
    p &\leftarrow p + \tfrac h2 g(\theta) + \lambda \sqrt{T m}\, z
      \quad \text{(the same g and z)} \\
    \theta &\leftarrow \theta + \tfrac h2 m^{-1} p
    \end{aligned}
    \]

    g is the target's gradient estimate with covariance Sigma, z standard normal, m the mass. With
    a Gaussian posterior and Gaussian noise of constant covariance, the law of theta is exact at
    every stable step: \( h^2 a < 4 m \) for all curvatures a, at any friction and Sigma. In general
    its error is of second order in h for any noise of known covariance. The momenta at the ends of
    a step are hotter than T: in a direction of curvature a, their law is
    \( N(0,\, T m / (1 - \tfrac{h^2 a}{4 m})) \).

    Along a direction of curvature a and noise s of a Gaussian posterior, the integrated
    autocorrelation time of theta is \( (s + 4 T m \lambda^2 / h^2) / (a T) \) steps. Noise adds
    \( s / (a T) \): where scores have the covariance that the curvature implies, \( a = N V \),
    this takes one pass over the data for each effective sample, for every n. Minibatches below the
    size at which this term dominates therefore bring nothing. Control variates reduce s.

    Where Sigma is large, a step moves theta by about \( 2 T \Sigma^{-1} g \), whatever h is. Far
    from the posterior Sigma can be a hundred times its value there. A linear regression that
    started 133 posterior standard deviations away took 1,300 steps, at any h. A Sigma that forgets
    faster hardly helps, as it is Sigma that slows the chain and not its age: decay 0.9 in place of
    0.99 took 950 steps. `preflight` warns of such a start. Start at the mode, which `find_center`
    finds.

    At mass 1, an average over K scores s leaves the error e in
    \( L = \lambda^2 + \tfrac{h^2}{4 T} \Sigma \). With \( G = (1 + L)^{-1} \), noise exceeds what
    friction dissipates by \( 8\, G\, \mathrm E[e G e]\, G \) to second order. The relative heat is
    about \( 2 \kappa\, \mathrm{tr}(G L) / K \leq 2 \kappa D / K \), where \( \kappa \) is
    \( \mathrm E[q^2] / \mathrm E[q]^2 \) of \( q = s^T G s \): 1 + 2/D for Gaussian scores, and 20
    in a logistic regression on MNIST (D = 129), where few examples carry the scores. By default K
    is 1000 D. After 200 passes with n = 30, 100 and 300 the variances there were off by 7.8, 8.3
    and 8.8 %, mostly Monte Carlo error; with K = 100 D and n = 30 by 17 %. A long average is
    slower to forget a distant start. In a linear regression with D = 20 and n = 20, 30 standard
    deviations away, the default took 14 % more steps to the posterior than K = 100 D, and 43 %
    more without `power`.

    With `matrix_lambda`, \( \lambda \sqrt{T m}\, z \) is a draw from
    \( N(0, \tanh(\text{friction}\, h / 2)\, T m - \tfrac{h^2}{4} \Sigma) \). The noise of
    a half kick, g's and z's together, then has the same covariance \( \Sigma_h \) at every theta,
    and the step in the middle is \( p \leftarrow e^{-\text{friction}\, h} p \), without a solve.
    Gradient noise takes the place of drawn noise and does not slow the chain: its correlation times
    are those of exact gradients. The friction must be so large that the covariance is positive. In
    a chain where it is not, the smallest possible friction is used, and the results count it.

    On a whitened posterior (`whiten`, about \( N(0, I) \)) with exact gradients and friction 1,
    the steps 0.1, 0.5 and 1 leave variances exact, and give 0.05, 0.26 and 0.54 effective samples
    a step.

    Examples:
      With `x` and `target` as in the example of `MinibatchLogProb`, the mean of 1,000 numbers:

      >>> result = sgmcmc.sample_chain(
      ...     sgmcmc.NOGIN(target, step_size=0.03, friction=10.), tf.zeros([]), 2000,
      ...     num_burnin_steps=500, seed=0, progress_bar=False)
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True

    Args:
      target_log_prob_fn: a target that gives scores, or a callable (exact gradients, Sigma = 0).
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: positive, in units of inverse time.
      covariance: Sigma: `"full"`, `"block"`, `"diag"`, `"low_rank"`, an estimator of
        `tfp_sgmcmc.covariance`, or `"auto"`: full, but in `fit` diag with more than 1000 weights.
        By default past minibatches are averaged by `RunningMean(decay, power=2)` with decay 0.99,
        or 1 - n / (500 D) if that is more, because NOGIN solves with Sigma and a noisy Sigma heats
        it (see above). D and n are as for `num_estimation_steps`.
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: numbers or arrays that broadcast with the state parts. None starts at rest.
      num_estimation_steps: number of steps at the start that average Sigma and do not move the
        state. None stands for 10 D / n, at least 10, where D is the number of entries (1 for
        "diag"; of the largest part for "block") and n the number of scores of a minibatch.
        The first Sigma, from n examples, is zero in most directions if n is less than D, and their
        noise heats the momenta. With D = 129, n = 10, h = 0.03 and 0 steps that threw a logistic
        regression by 50 posterior standard deviations in ten steps.
      matrix_lambda: whether lambda is a matrix that keeps the covariance of all noise constant. The
        mass is then one number.

    Raises:
      ValueError: the step size, friction, mass or temperature is not positive and finite, the mass
        is not one number with matrix_lambda, num_estimation_steps is negative, the covariance is
        unknown, the target gives no scores, or the momentum is not finite. At bootstrap: the state
        is not finite, or has one part for `"block"`; there are fewer than two scores.
      TypeError: the target is not callable. At bootstrap: the state is not floating.

    References:
      C. Matthews and J. Weare. Langevin Markov chain Monte Carlo with stochastic gradients.
      arXiv:1805.08863, 2018. Algorithm 1, and section 3.4 for a lambda that is a matrix.
    """

    def __init__(
        self,
        target_log_prob_fn: Any,
        step_size: StepSize,
        friction: StepSize = 1.0,
        covariance: Any = "auto",
        mass: Any = 1.0,
        temperature: StepSize = 1.0,
        initial_momentum: Any = None,
        num_estimation_steps: int | None = None,
        matrix_lambda: bool = False,
    ):
        super().__init__(locals())
        is_number = not tf.nest.is_nested(mass) and np.size(mass) == 1
        if boolean("matrix_lambda", matrix_lambda) and not is_number:
            raise ValueError(
                f"mass must be one number with matrix_lambda=True. Received: mass={mass}."
            )
        optional(integer, "num_estimation_steps", num_estimation_steps, 0)
        self._noise = GradientNoise(self._target, covariance, average=None)

    def relaxation_steps(self, curvature: Any, noise: Any, step: int = 0) -> np.ndarray:
        r"""Returns the number of steps in which a distance falls by a factor of e.

        Along a direction of curvature a and gradient noise s, at mass 1, this is
        \( -1 / \log \rho \) with the spectral radius of `kernels.linear_theory.nogin_law`: about
        s / (2 a T) where noise dominates, at any h. It is infinite for an unstable step. With
        `matrix_lambda` noise adds no friction, up to where it raises it.

        Args:
          curvature: a, a number or an array of them.
          noise: s, a number or an array of them that are not negative.
          step: the step at which schedules are evaluated.

        Raises:
          TypeError: an argument is not a number.
          ValueError: NaN or infinity, or a negative noise.
        """
        curvature, noise = curvature_and_noise(curvature, noise)
        h, friction, temperature = (
            self._used(name, name, step, None) for name in ("step_size", "friction", "temperature")
        )
        known = noise = noise / temperature
        if self._parameters["matrix_lambda"]:  # it takes the place of the friction
            known = np.maximum(noise - 4 * np.tanh(friction * h / 2) / h**2, 0.0)
        return nogin_law(h, friction, curvature, noise, known=known).relaxation_steps

    def _init_results(self, state: State) -> NOGINResults:
        figures, friction = self._start(state)
        is_matrix = self._parameters["matrix_lambda"]
        return NOGINResults(
            **figures,
            covariance_state=self._noise.init(state, friction.shape.rank),
            num_small_friction=tf.zeros_like(friction, tf.int32),
            eigenvector=tf.nest.map_structure(tf.ones_like, state) if is_matrix else (),
        )

    def _update(
        self, state: State, results: NOGINResults, seed: tf.Tensor
    ) -> tuple[State, NOGINResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature = self._numbers(results.step, state, chain_ndims)
        mass = self._mass(state)
        lambda2 = tf.tanh(friction * h / 2)

        theta = drift(state, results.momentum, mass, h / 2)
        shift = map_parts(lambda m, x: scaled(1 + lambda2, m + tf.zeros_like(x)), mass, state)
        scale = h**2 / (4 * temperature)
        estimate, sigma, covariance_state = self._noise.estimate(theta, batch_seed, results)
        eigenvector, too_small = (), False
        if self._parameters["matrix_lambda"]:
            m = tf.cast(tf.reshape(tf.nest.flatten(mass)[0], []), h.dtype)
            largest, eigenvector = largest_eigenvalue(
                sigma, results.eigenvector, estimate.gradient, chain_ndims
            )
            smallest = scale * largest / m
            too_small, lambda2 = lambda2 < smallest, tf.maximum(lambda2, smallest)
            z, spread = random.normal_like(state, noise_seed), lambda2 * temperature * m
            noise = remaining_noise(sigma, spread, -(h**2) / 4, largest, z, chain_ndims)
        else:
            sigma, covariance_state = self._noise.covariance.prepare(
                covariance_state, sigma, shift, scale
            )
            noise = normal_momentum(state, mass, tf.sqrt(lambda2 * temperature), noise_seed)
        heat = midpoint_temperature(results.momentum, estimate.gradient, mass, h, chain_ndims)
        kick = map_parts(lambda g, s: scaled(h / 2, g) + s, estimate.gradient, noise)
        p = map_parts(tf.add, results.momentum, kick)
        if self._parameters["matrix_lambda"]:
            p = map_parts(lambda p, k: scaled((1 - lambda2) / (1 + lambda2), p) + k, p, kick)
        else:
            damped = sigma.solve(shift, scale, p)
            p = map_parts(lambda p, x, m, k: 2 * m * x - p + k, p, damped, mass, kick)
        theta = drift(theta, p, mass, h / 2)
        given = self._parameters["num_estimation_steps"]
        moves = results.step >= self._noise.estimation_steps(given, state, chain_ndims)
        theta, p = map_parts(
            lambda new, old: tf.where(moves, new, old), (theta, p), (state, results.momentum)
        )

        return theta, NOGINResults(
            **self._figures(estimate, h, temperature, results),
            momentum=p,
            kinetic_temperature=heat,
            covariance_state=covariance_state,
            num_small_friction=results.num_small_friction + tf.cast(too_small, tf.int32),
            eigenvector=eigenvector,
        )
