"""Where burn-in may end: the first step at which the sampling threshold is reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.diagnostics.gradient_noise import sampling_threshold
from tfp_sgmcmc.state import State
from tfp_sgmcmc.targets.base import Target


class SamplingThresholdState(NamedTuple):
    """What `SamplingThresholdReducer` finds.

    Attributes:
      alpha: when last looked at, `[chains...]`; infinite before.
      first_step: number of the first step (counted from 1) after which alpha was below the
        threshold, `[chains...]`; 0 where it has not been.
      num_steps: steps seen.
    """

    alpha: tf.Tensor
    first_step: tf.Tensor
    num_steps: tf.Tensor


class SamplingThresholdReducer(tfp.experimental.mcmc.Reducer):
    """Finds the first step after which alpha is below a threshold: where burn-in may end.

    At every `every`-th state it draws a minibatch of its own, with scores, and computes
    `sampling_threshold` at the step size of the kernel's results. Nothing of the chain is kept.

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
    ...         500, tf.zeros([4]), kernel=sgmcmc.SGLD(target, schedule),
    ...         reducer=sgmcmc.diagnostics.SamplingThresholdReducer(target, 0.3, seed=1), seed=seed)
    ...     return found
    >>> run(tf.constant([0, 1])).first_step.shape
    TensorShape([4])

    Args:
      target: the kernel's; gives scores.
      threshold: alpha below which a step samples, positive.
      preconditioner: M: None, a positive number or array, `Diagonal` or `FullMatrix`.
      seed: an integer, or two; names the minibatches.
      every: looks at every so many-th state.
      temperature: T.
      num_iterations: of the power iteration.
      step_size_fn: kernel results -> epsilon.

    Raises:
      ValueError: `threshold` or `every` out of range.
      TypeError: `target` is not a target; as `sampling_threshold`.
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
            raise TypeError(f"target is a {type(target).__name__}; a target is expected.")
        if not threshold > 0:
            raise ValueError(f"threshold is {threshold}; a positive number is expected.")
        self._target, self._threshold = target, threshold
        self._every = integer("every", every, 1)
        self._preconditioner, self._temperature = preconditioner, temperature
        self._seed, self._num_iterations = random.as_seed(seed), num_iterations
        self._step_size_fn = step_size_fn

    def initialize(
        self, initial_chain_state: State, initial_inner_kernel_results: Any = None
    ) -> SamplingThresholdState:
        """The reducer's state before the first step."""
        del initial_inner_kernel_results
        state = tf.nest.map_structure(tf.convert_to_tensor, initial_chain_state)
        shape = self._target.chain_shape(state)
        alpha = tf.fill(shape, tf.constant(float("inf"), tf.nest.flatten(state)[0].dtype))
        zero = tf.zeros([], tf.int64)
        return SamplingThresholdState(alpha, tf.zeros(shape, tf.int64), zero)

    def one_step(
        self,
        new_chain_state: State,
        current_reducer_state: SamplingThresholdState,
        previous_kernel_results: Any = None,
    ) -> SamplingThresholdState:
        """Looks at a new state, if it is its turn."""
        last = current_reducer_state
        step = last.num_steps + 1

        def look() -> tf.Tensor:
            seeds = random.split(random.fold_in(self._seed, step), 2)
            state = tf.nest.map_structure(tf.convert_to_tensor, new_chain_state)
            own = getattr(previous_kernel_results, "target_state", ())
            estimate = self._target.estimate(state, seeds[0], own)
            return sampling_threshold(
                estimate,
                self._step_size_fn(previous_kernel_results),
                self._preconditioner,
                seed=seeds[1],
                temperature=self._temperature,
                num_iterations=self._num_iterations,
            )

        alpha = tf.cond(step % self._every == 0, look, lambda: last.alpha)
        found = (alpha < self._threshold) & (last.first_step == 0)
        return SamplingThresholdState(alpha, tf.where(found, step, last.first_step), step)
