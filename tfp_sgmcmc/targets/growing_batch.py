"""Growing minibatches: hybrid stochastic-deterministic gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import number
from tfp_sgmcmc.state import State, convert_state, static_or_dynamic_shape
from tfp_sgmcmc.targets.base import GradientEstimate, Target, value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb, checked_target


class GrowingBatchState(NamedTuple):
    """The size of the next minibatch: a real number, so that 1.1 x 1 grows; used rounded up."""

    size: tf.Tensor


class GrowingBatch(Target):
    r"""Wraps a `MinibatchLogProb` so that its minibatch grows with every estimate.

    \[
    n_1 = \text{initial\_size}, \qquad n_k = \min(\text{growth} \cdot n_{k-1}, N), \qquad
    g_k(\theta) = \nabla \log p(\theta)
      + \frac{N}{\lceil n_k \rceil} \sum_{i \in S_k} \nabla \log p(x_i \mid \theta)
    \]

    Early steps are cheap and noisy; late steps use all the data. A step gathers its minibatch in
    chunks of the wrapped target's `batch_size`, with weight zero for surplus examples of the last.
    Shapes are therefore static, and the cost is proportional to n_k.

    Examples:
      With `target` as in `MinibatchLogProb`:

      >>> kernel = sgmcmc.SGLD(sgmcmc.GrowingBatch(target, growth=1.1), step_size=1e-3)
      >>> results = kernel.bootstrap_results(tf.zeros([]))
      >>> for i in range(3):
      ...     _, results = kernel.one_step(tf.zeros([]), results, seed=i)
      >>> round(float(results.target_state.size), 3)  # the size at the fourth step
      1.331

    Args:
      target: a `MinibatchLogProb` with `reshuffle="step"`; its `batch_size` is the chunk.
      growth: factor from one step to the next, at least 1.
      initial_size: n_1.

    Raises:
      ValueError: `growth` is below 1; `initial_size` is not in 1 .. N; the target has epochs.
      TypeError: the target is not a `MinibatchLogProb`, or is wrapped already; a size or factor is
        not a number.

    References:
      Q. He and J. Xin. Hybrid deterministic-stochastic gradient Langevin dynamics for Bayesian
      learning. Communications in Information and Systems, 2013. Equation 2.5.
    """

    def __init__(self, target: MinibatchLogProb, growth: float = 1.1, initial_size: float = 1.0):
        self.target = checked_target(target)
        if target.reshuffle != "step":
            raise ValueError(
                "target must have reshuffle='step', because a growing minibatch is drawn anew at "
                f"each step. Received: reshuffle={target.reshuffle!r}."
            )
        self.num_examples = total = target.num_examples
        self.growth = number("growth", growth, "a factor of at least 1", lambda x: x >= 1)
        self.initial_size = number(
            "initial_size", initial_size, f"in 1 .. N = {total}", lambda x: 1 <= x <= total
        )

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return self.target(*args, **kwargs)

    def chain_shape(self, state: State) -> Any:
        return self.target.chain_shape(state)

    def bootstrap(self, state: State) -> GrowingBatchState:
        self.target.bootstrap(state)
        return GrowingBatchState(tf.constant(self.initial_size, tf.float64))

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        state = convert_state(state)
        seed = random.as_seed(seed)
        target_state = target_state or self.bootstrap(state)
        total, chunk = self.num_examples, self.target.batch_size
        size = tf.cast(tf.math.ceil(target_state.size), tf.int32)
        prior = value_and_gradient(self.target.log_prior, state, probe, connected=False)
        chain_shape = static_or_dynamic_shape(prior[0])
        scale = total / tf.cast(size, prior[0].dtype)

        def body(start: tf.Tensor, estimate: Any) -> tuple[tf.Tensor, Any]:
            positions = start + tf.range(chunk)
            used = tf.cast(positions < size, prior[0].dtype)
            batch = self.target.rows(
                self.target.draw(seed, tf.minimum(positions, total - 1), chain_shape)
            )

            def likelihood(state: State) -> tf.Tensor:
                values = self.target.log_likelihood(state, batch, chunk, prior[0].shape)
                return scale * tf.reduce_sum(values * used, axis=-1)

            part = value_and_gradient(likelihood, state, probe, connected=False)
            return start + chunk, tf.nest.map_structure(tf.add, estimate, part)

        _, (log_prob, gradient, product) = tf.while_loop(
            lambda start, _: start < size,
            body,
            (tf.zeros([], tf.int32), prior),
            parallel_iterations=1,
        )
        grown = tf.minimum(target_state.size * self.growth, tf.cast(total, tf.float64))
        rest = total if self.target.replacement else total - size
        noise_scale = scale * tf.cast(rest, scale.dtype)
        return GradientEstimate(
            gradient, log_prob, (), product, GrowingBatchState(grown), noise_scale
        )
