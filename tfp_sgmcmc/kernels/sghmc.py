"""Stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import NoiseCovariance, RunningMean
from tfp_sgmcmc.kernels.base import StepSize, check_step_size
from tfp_sgmcmc.kernels.momentum import MomentumKernel, scaled
from tfp_sgmcmc.kernels.noise import GradientNoise
from tfp_sgmcmc.state import State, append_dims, map_parts, squared_norm


class SGHMCResults(NamedTuple):
    """Results of a step of `SGHMC`.

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
      friction: the A that the step used, `[chains...]`.
      num_small_friction: steps so far for which the given friction was too small, `[chains...]`.
      covariance_state: what the covariance estimator carries; `()` without a covariance.
      eigenvector: estimate of the leading eigenvector of Sigma, in the structure of the state.
    """

    target_log_prob: tf.Tensor
    gradient_norm: tf.Tensor
    step_size: tf.Tensor
    temperature: tf.Tensor
    kinetic_temperature: tf.Tensor
    momentum: State
    step: tf.Tensor
    target_state: Any
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
    friction, in units of mass by time. What the noise of g adds to the momenta is left out of the
    noise that is drawn, so with Sigma known the law is that of the same scheme with exact
    gradients. For a Gaussian posterior its error is of second order in h for theta; the momenta are
    hotter than T by a term of first order.

    There is such a draw only where \( A T \ge h \lambda_{\max}(\Sigma) / 2 \). Where A is smaller,
    that chain takes the smallest friction that will do (`small_friction="increase"`), or the step
    is refused (`"refuse"`). With `covariance=None` Sigma is taken to be zero, as is often done in
    practice: any friction will do, no scores are computed, and theta is hotter than T by a term of
    first order, about h Sigma / (2 A).

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
    ...         kernel=sgmcmc.SGHMC(target, step_size=0.003, friction=60.),
    ...         trace_fn=lambda _, results: results.num_small_friction, seed=seed)
    >>> samples, num_small_friction = run(tf.constant([0, 1]))
    >>> bool(abs(tf.reduce_mean(samples) - x.mean()) < 0.02), int(num_small_friction[-1])
    (True, 0)

    Args:
      target_log_prob_fn: a target that gives scores, such as `MinibatchLogProb`; a plain callable
        is taken with its exact gradient, and Sigma = 0.
      step_size: h: a positive number, `[chains...]` tensor or schedule.
      friction: A, likewise.
      covariance: Sigma: `"full"`, `"block"`, `"diag"`, `"low_rank"`, or an estimator of
        `tfp_sgmcmc.covariance`, which by default averages past minibatches with decay 0.99; None
        for Sigma = 0.
      mass: m: a positive number, or arrays that broadcast with the state parts.
      temperature: T, positive: a number, `[chains...]` tensor or schedule.
      initial_momentum: arrays that broadcast with the state parts; None starts at rest.
      small_friction: `"increase"` or `"refuse"`: what to do in a chain whose friction is too small.
        A refused step raises `tf.errors.InvalidArgumentError`, which has both numbers; under XLA,
        which cannot raise, the chain stands still instead. Both are counted in the results.
        (Sigma of the first few minibatches is rough, and its largest eigenvalue too large.)

    Raises:
      ValueError: a step size, friction, mass or temperature that is not positive and finite, an
        unknown option, a target without scores; at bootstrap, a state or momentum with NaN or
        infinity, fewer than two scores, `"block"` for one part.
      TypeError: a target that is not callable; at bootstrap, a state that is not floating.

    #### References

    T. Chen, E. B. Fox and C. Guestrin. Stochastic gradient Hamiltonian Monte Carlo. ICML, 2014.
    Equation 13, which has V for Sigma, C for A and \( \hat B = \tfrac h2 \hat V \).
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
        small_friction: Literal["increase", "refuse"] = "increase",
    ):
        super().__init__(locals())
        check_step_size(friction, "friction")
        if small_friction not in ("increase", "refuse"):
            raise ValueError(
                f"small_friction is {small_friction!r}; 'increase' or 'refuse' is expected."
            )
        self._noise = None
        if covariance is not None:
            self._noise = GradientNoise(self._target, covariance, RunningMean(0.99))

    def _init_results(self, state: State) -> SGHMCResults:
        figures = self._first_figures(state, "friction", "temperature")
        zeros, step = figures["target_log_prob"], figures["step"]
        chain_ndims = zeros.shape.rank
        return SGHMCResults(
            **figures,
            friction=self._number("friction", step, state, chain_ndims) + zeros,
            num_small_friction=tf.zeros_like(zeros, tf.int32),
            covariance_state=self._noise.init(state, chain_ndims) if self._noise else (),
            eigenvector=tf.nest.map_structure(tf.ones_like, state) if self._noise else (),
        )

    def _update(
        self, state: State, results: SGHMCResults, seed: tf.Tensor
    ) -> tuple[State, SGHMCResults]:
        batch_seed, noise_seed = random.split(seed, 2)
        chain_ndims = results.target_log_prob.shape.rank
        h, friction, temperature = (
            self._number(name, results.step, state, chain_ndims)
            for name in ("step_size", "friction", "temperature")
        )
        mass = self._mass(state)
        z = random.normal_like(state, noise_seed)

        theta = map_parts(lambda x, p, m: x + scaled(h, p / m), state, results.momentum, mass)
        if self._noise is None:
            estimate = self._target.estimate(
                theta, batch_seed, results.target_state, with_scores=False
            )
            friction = friction + tf.zeros_like(estimate.log_prob)
            too_small = tf.zeros_like(friction, tf.bool)
            covariance_state, eigenvector = (), ()
            noise = map_parts(lambda z: scaled(tf.sqrt(2 * h * friction * temperature), z), z)
        else:
            estimate, sigma, covariance_state = self._noise.estimate(
                theta, batch_seed, results.target_state, results.covariance_state
            )
            largest, eigenvector = _largest_eigenvalue(
                sigma, results.eigenvector, estimate.gradient, chain_ndims
            )
            smallest_friction = h * largest / (2 * temperature)
            too_small = friction < smallest_friction
            if self._refuses:  # no operation under XLA
                tf.debugging.assert_greater_equal(
                    friction + tf.zeros_like(largest),
                    smallest_friction,
                    "friction (x) is below step_size * largest eigenvalue of Sigma / "
                    "(2 temperature) (y): SGHMC has no noise to draw there. A larger friction, a "
                    "smaller step_size or small_friction='increase' is expected.",
                )
            friction = tf.maximum(friction, smallest_friction)
            noise = _draw(sigma, 2 * h * friction * temperature, -(h**2), largest, z, chain_ndims)
        p = map_parts(
            lambda p, g, m, s: p + scaled(h, g) - scaled(h * friction, p / m) + s,
            results.momentum, estimate.gradient, mass, noise,
        )  # fmt: skip
        if self._refuses:
            theta, p = (
                map_parts(lambda old, new: tf.where(append_dims(too_small, new), old, new), *pair)
                for pair in ((state, theta), (results.momentum, p))
            )

        return theta, SGHMCResults(
            **self._figures(estimate, h, temperature, p, results),
            friction=friction,
            num_small_friction=results.num_small_friction + tf.cast(too_small, tf.int32),
            covariance_state=covariance_state,
            eigenvector=eigenvector,
        )

    @property
    def _refuses(self) -> bool:
        return self._parameters["small_friction"] == "refuse"


def _largest_eigenvalue(
    sigma: NoiseCovariance, eigenvector: State, gradient: State, chain_ndims: int
) -> tuple[tf.Tensor, State]:
    """Largest eigenvalue of Sigma, `[chains...]`, and its eigenvector, which begins at the last.

    The gradient has a part in every direction that Sigma has, so that none is lost for good.
    """
    norm = tf.sqrt(squared_norm(gradient, chain_ndims))
    fresh = tf.math.divide_no_nan(tf.constant(0.1, norm.dtype), norm)
    start = map_parts(lambda v, g: v + scaled(fresh, g), eigenvector, gradient)
    return sigma.power_iteration(start, num_iterations=8)


def _draw(
    sigma: NoiseCovariance, shift: Any, scale: Any, largest: tf.Tensor, z: State, chain_ndims: int
) -> State:
    """S z with S S^T = shift I + scale Sigma, `scale` negative.

    Power iteration finds the largest eigenvalue from below: a bound above it by a tenth is one
    almost always. Where it is none, S z is longer than any S z could be, and zero is returned.
    """
    noise = sigma.sqrt_multiply(shift, scale, 1.1 * largest, z)
    longest = 1.01 * shift * squared_norm(z, chain_ndims)
    sound = squared_norm(noise, chain_ndims) <= longest
    return map_parts(lambda x: tf.where(append_dims(sound, x), x, 0.0), noise)
