"""The end of burn-in: the first step below the sampling threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.diagnostics.gradient_noise import sampling_threshold
from tfp_sgmcmc.diagnostics.periodic import PeriodicReducer
from tfp_sgmcmc.internal.checks import function, integer, positive
from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.targets.base import Target


class SamplingThresholdState(NamedTuple):
    """The result of `SamplingThresholdReducer`.

    Attributes:
      alpha: the last value of alpha, `[chains...]`; infinite before the first one.
      first_step: number of the first step (counted from 1) after which alpha was below the
        threshold, `[chains...]`; 0 if there is none yet.
      num_steps: number of steps.
    """

    alpha: tf.Tensor
    first_step: tf.Tensor
    num_steps: tf.Tensor


class SamplingThresholdReducer(PeriodicReducer):
    """Finds the first step after which alpha is below a threshold, where burn-in may end.

    At every `every`-th state it draws another minibatch with scores, and computes
    `sampling_threshold` at the step size in the kernel's results. No states are kept.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> x = np.random.default_rng(0).normal(2., 1., size=[1000]).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     log_prior_fn=tfp.distributions.Normal(0., 10.).log_prob,
      ...     log_likelihood_fn=lambda theta, batch: -0.5 * (batch - theta[..., None])**2,
      ...     data=x, batch_size=50, replacement=True)
      >>> schedule = sgmcmc.schedules.PolynomialDecay(a=1e-3, b=1., gamma=0.55)
      >>> @tf.function(jit_compile=True)
      ... def run(seed):
      ...     found, _, _ = tfp.experimental.mcmc.sample_fold(
      ...         500, tf.zeros([4]), kernel=sgmcmc.SGLD(target, schedule), seed=seed,
      ...         reducer=sgmcmc.diagnostics.SamplingThresholdReducer(target, 0.3, seed=1))
      ...     return found
      >>> run(tf.constant([0, 1])).first_step.shape
      TensorShape([4])

    Args:
      target: the kernel's target, which must give scores.
      threshold: a positive number; a chain with a smaller alpha is in its sampling phase.
      preconditioner: M: None, a positive number or array, `Diagonal` or `FullMatrix`.
      seed: an integer or two, which names the minibatches.
      every: number of steps between the states that it uses.
      temperature: T.
      num_iterations: number of power iterations.
      step_size_fn: kernel results -> epsilon.

    Raises:
      ValueError: `threshold` or `every` is out of range.
      TypeError: `target` is not a target; or `sampling_threshold` raises it.
    """

    def __init__(
        self,
        target: Target,
        threshold: float,
        preconditioner: Any = None,
        *,
        seed: Any,
        every: int = 1,
        temperature: float = 1.0,
        num_iterations: int = 20,
        step_size_fn: Callable[[Any], Any] = lambda results: results.step_size,
    ):
        if not isinstance(target, Target):
            raise TypeError(f"target must be a Target. Received: a {type(target).__name__}.")
        super().__init__(target, every)
        self._threshold = positive("threshold", threshold)
        self._preconditioner, self._temperature = preconditioner, temperature
        self._seed, self._num_iterations = random.as_seed(seed), num_iterations
        self._step_size_fn = function("step_size_fn", step_size_fn, "kernel results -> step size")
        integer("num_iterations", num_iterations, 1)
        positive("temperature", temperature)

    def _start(self, state: State, zeros: tf.Tensor) -> SamplingThresholdState:
        alpha = tf.fill(zeros.shape, tf.constant(float("inf"), zeros.dtype))
        return SamplingThresholdState(
            alpha, tf.zeros(zeros.shape, tf.int64), tf.zeros([], tf.int64)
        )

    def _update(
        self, own: SamplingThresholdState, state: State, results: Any
    ) -> SamplingThresholdState:
        seeds = random.split(random.fold_in(self._seed, own.num_steps), 2)
        alpha = sampling_threshold(
            self._target.estimate(state, seeds[0], getattr(results, "target_state", ())),
            self._step_size_fn(results),
            self._preconditioner,
            seed=seeds[1],
            temperature=self._temperature,
            num_iterations=self._num_iterations,
        )
        is_first = (alpha < self._threshold) & (own.first_step == 0)
        first_step = tf.where(is_first, own.num_steps, own.first_step)
        return own._replace(alpha=alpha, first_step=first_step)
