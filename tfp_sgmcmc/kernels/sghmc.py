"""Stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import RunningMean
from tfp_sgmcmc.internal.checks import one_of
from tfp_sgmcmc.internal.nest import State, append_dims, map_parts
from tfp_sgmcmc.kernels.base import StepSize
from tfp_sgmcmc.kernels.linear_theory import euler_limit
from tfp_sgmcmc.kernels.momentum import MomentumKernel, drift, kinetic_temperature, scaled
from tfp_sgmcmc.kernels.noisy_gradients import GradientNoise, largest_eigenvalue, remaining_noise


class SGHMCResults(NamedTuple):
    """Results of a step of `SGHMC`: the fields of `MomentumKernel` and four more.

    Attributes:
      friction: the A that the step used, `[chains...]`.
      num_small_friction: number of steps with too small a friction so far, `[chains...]`.
      covariance_state: what the covariance estimator carries; `()` without a covariance.
      eigenvector: estimate of the leading eigenvector of Sigma, in the structure of the state.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    step: tf.Tensor
    target_state: Any
    momentum: State
    kinetic_temperature: tf.Tensor
    friction: tf.Tensor
    num_small_friction: tf.Tensor
    covariance_state: Any
    eigenvector: State


class SGHMC(MomentumKernel):
    r"""Stochastic gradient Hamiltonian Monte Carlo: friction and noise that allow for Sigma.

    \[
    \begin{aligned}
    \theta &\leftarrow \theta + h m^{-1} p \\
    p &\leftarrow p + h g(\theta) - h A m^{-1} p
      + N\bigl(0,\ 2 h (A T I - \tfrac h2 \Sigma)\bigr)
    \end{aligned}
    \]

    g is the target's gradient estimate with covariance Sigma, at the new theta; m the mass; A the
    friction, in units of mass by time. The drawn noise is smaller by the noise that g adds to the
    momenta. If Sigma is known, the law is therefore the same as with exact gradients. For a
    Gaussian posterior theta has an error of second order in h. The momenta are hotter than T by a
    term of first order.

    The noise exists only if \( A T \ge h \lambda_{\max}(\Sigma) / 2 \). In a chain with a smaller
    A, the smallest possible friction is used (`small_friction="increase"`), or the step is refused
    (`"refuse"`). With `covariance=None` Sigma is taken as zero, as is often done. Any friction is
    then possible, no scores are computed, and theta is hotter than T by about h Sigma / (2 A).

    On a whitened posterior (`whiten`, about N(0, I)) with exact gradients and friction 1, the steps
    0.1, 0.5 and 1 make variances too large by 0.26 %, 9.1 % and 100 %, and give 0.05, 0.27 and 1
    effective samples a step.

    Examples:
      With `x` and `target` as in the example of `MinibatchLogProb`, the mean of 1,000 numbers:

      >>> result = sgmcmc.sample_chain(
      ...     sgmcmc.SGHMC(target, step_size=0.003, friction=60.), tf.zeros([]), 2000,
      ...     num_burnin_steps=500, trace_fn=lambda _, results: results.num_small_friction, seed=0,
      ...     progress_bar=False)
      >>> bool(abs(result.states.mean() - x.mean()) < 0.02)
      True
      >>> int(result.trace[-1])  # steps whose friction was too small for the noise
      0

    Args:
      target_log_prob_fn: a target that gives scores, or a callable (exact gradients, Sigma = 0).
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: A, in the same form.
      covariance: Sigma: `"full"`, `"block"`, `"diag"`, `"low_rank"`, an estimator of
        `tfp_sgmcmc.covariance`, or `"auto"`: full, but in `fit` diag with more than 1000 weights
        (by default past minibatches, decay 0.99). None: Sigma = 0.
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: numbers or arrays that broadcast with the state parts. None starts at rest.
      small_friction: what to do in a chain whose friction is too small, `"increase"` or `"refuse"`.
        Refusing raises `tf.errors.InvalidArgumentError` with both numbers. XLA cannot raise, so the
        chain stands still there. The results count both. (The first few minibatches overestimate
        the largest eigenvalue of Sigma.)

    Raises:
      ValueError: the step size, friction, mass or temperature is not positive and finite, an option
        is unknown, the target gives no scores, or the momentum is not finite. At bootstrap: the
        state is not finite, or has one part for `"block"`; there are fewer than two scores.
      TypeError: the target is not callable. At bootstrap: the state is not floating.

    References:
      T. Chen, E. B. Fox and C. Guestrin. Stochastic gradient Hamiltonian Monte Carlo. ICML, 2014.
      Equation 13, where Sigma is called V, A is C, and \( \hat B = \tfrac h2 \hat V \).
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
        small_friction: Literal["increase", "refuse"] = "increase",
    ):
        super().__init__(locals())
        self._small_friction = one_of("small_friction", small_friction, ["increase", "refuse"])
        self._noise = None
        if covariance is not None:
            self._noise = GradientNoise(self._target, covariance, RunningMean(0.99))

    def largest_stable_step(
        self, largest_curvature: Any, step: int = 0, results: Any = None
    ) -> float | np.ndarray:
        r"""Returns the root of \( h^2 \lambda + 2 h A / m = 4 \).

        A step has the trace \( 2 - h A / m - h^2 \lambda \) and the determinant \( 1 - h A / m \).
        The smallest mass is used, so steps somewhat above the limit can be stable if masses differ.
        Sigma raises A where it is too small. With `results` A is the one that the step used.
        """
        friction = self._used("friction", "friction", step, results)
        smallest = min(np.min(m) for m in tf.nest.flatten(self._parameters["mass"]))
        return euler_limit(largest_curvature, friction / smallest)

    def _init_results(self, state: State) -> SGHMCResults:
        figures, friction = self._start(state)
        return SGHMCResults(
            **figures,
            friction=friction,
            num_small_friction=tf.zeros_like(friction, tf.int32),
            covariance_state=self._noise.init(state, friction.shape.rank) if self._noise else (),
            eigenvector=tf.nest.map_structure(tf.ones_like, state) if self._noise else (),
        )

    def _update(
        self, state: State, results: SGHMCResults, seed: tf.Tensor
    ) -> tuple[State, SGHMCResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature = self._numbers(results.step, state, chain_ndims)
        mass = self._mass(state)
        z, refuses = random.normal_like(state, noise_seed), self._small_friction == "refuse"

        theta = drift(state, results.momentum, mass, h)
        if self._noise is None:
            estimate = self._target.estimate(
                theta, batch_seed, results.target_state, with_scores=False
            )
            friction = friction + tf.zeros_like(estimate.log_prob)
            too_small = tf.zeros_like(friction, tf.bool)
            covariance_state, eigenvector = (), ()
            noise = map_parts(lambda z: scaled(tf.sqrt(2 * h * friction * temperature), z), z)
        else:
            estimate, sigma, covariance_state = self._noise.estimate(theta, batch_seed, results)
            largest, eigenvector = largest_eigenvalue(
                sigma, results.eigenvector, estimate.gradient, chain_ndims
            )
            smallest_friction = h * largest / (2 * temperature)
            too_small = friction < smallest_friction
            if refuses:  # no operation under XLA
                tf.debugging.assert_greater_equal(
                    friction + tf.zeros_like(largest),
                    smallest_friction,
                    "friction (x) must be at least step_size * largest eigenvalue of Sigma / "
                    "(2 temperature) (y), because SGHMC has no noise to draw below that. Use a "
                    "larger friction, a smaller step_size or small_friction='increase'.",
                )
            friction = tf.maximum(friction, smallest_friction)
            noise = remaining_noise(
                sigma, 2 * h * friction * temperature, -(h**2), largest, z, chain_ndims
            )
        p = map_parts(
            lambda p, g, m, s: p + scaled(h, g) - scaled(h * friction, p / m) + s,
            results.momentum, estimate.gradient, mass, noise,
        )  # fmt: skip
        if refuses:
            theta, p = (
                map_parts(lambda old, new: tf.where(append_dims(too_small, new), old, new), *pair)
                for pair in ((state, theta), (results.momentum, p))
            )

        return theta, SGHMCResults(
            **self._figures(estimate, h, temperature, results),
            momentum=p,
            kinetic_temperature=kinetic_temperature(p, mass, chain_ndims),
            friction=friction,
            num_small_friction=results.num_small_friction + tf.cast(too_small, tf.int32),
            covariance_state=covariance_state,
            eigenvector=eigenvector,
        )
