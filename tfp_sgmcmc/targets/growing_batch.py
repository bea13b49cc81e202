"""Growing minibatches: hybrid stochastic-deterministic gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.checks import number
from tfp_sgmcmc.internal.nest import State, convert_state, map_parts, static_or_dynamic_shape
from tfp_sgmcmc.targets.base import GradientEstimate, Target, value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb, checked_target
from tfp_sgmcmc.targets.sharded import refuse_shards


class GrowingBatchState(NamedTuple):
    """The size of the next minibatch, a real number that is rounded up when it is used."""

    size: tf.Tensor


class GrowingBatch(Target):
    r"""Wraps a `MinibatchLogProb` so that its minibatch grows with every estimate.

    \[
    n_1 = \text{initial\_size}, \qquad n_k = \min(\text{growth} \cdot n_{k-1}, N), \qquad
    g_k(\theta) = \nabla \log p(\theta)
      + \frac{N}{\lceil n_k \rceil} \sum_{i \in S_k} \nabla \log p(x_i \mid \theta)
    \]

    Early steps are cheap and noisy, and late steps use all the data. A step gathers its minibatch
    in chunks of the wrapped target's `batch_size`, with weight zero for surplus examples of the
    last chunk. Shapes are therefore static, and the cost is proportional to n_k.

    Samplers that use the covariance of the gradient noise receive as many scores from a minibatch
    as from a chunk. Score r sums the r-th examples of all chunks. If \( w_r \) of them are used
    and \( s_r \) is the sum of their scores, the sample covariance of the rows is

    \[
    \hat V = \frac{1}{m - 1} \sum_{r: w_r > 0}
      \frac{1}{w_r} (s_r - w_r \bar s)(s_r - w_r \bar s)^T,
    \qquad \bar s = \frac{1}{n_k} \sum_r s_r
    \]

    where m is the number of \( w_r > 0 \). It is unbiased for V at every size from 2 on, and
    Sigma = c V has the factor c of that size. A minibatch of one example cannot estimate V and does
    not enter its average. Steps in which a sampler estimates V (`num_estimation_steps`) make the
    minibatch grow, too. SGFS with alpha = 0 needs minibatch noise to the end and refuses a
    minibatch that grows to all examples without replacement.

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
      initial_size: n_1. Take two or more with samplers that use the covariance of the gradient
        noise and with `growth=1`.

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
        refuse_shards("GrowingBatch", target)
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
        self.num_scores = target.num_scores
        self.becomes_exact = not target.replacement and self.growth > 1

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
        # Less what rounding may have added: 1.1 * 100 is above 110.
        size = tf.cast(tf.math.ceil(target_state.size * (1 - 1e-12)), tf.int32)
        prior = value_and_gradient(self.target.log_prior, state, probe, connected=False)
        chain_shape = static_or_dynamic_shape(prior[0])
        scale = total / tf.cast(size, prior[0].dtype)

        def draw(start: tf.Tensor) -> tuple[Any, tf.Tensor]:
            positions = start + tf.range(chunk)
            indices = self.target.draw(seed, tf.minimum(positions, total - 1), chain_shape)
            return self.target.rows(indices), tf.cast(positions < size, prior[0].dtype)

        def gradient_of_chunk(start: tf.Tensor) -> Any:
            batch, used = draw(start)

            def likelihood(state: State) -> tf.Tensor:
                values = self.target.log_likelihood(state, batch, chunk, prior[0].shape)
                return scale * tf.reduce_sum(values * used, axis=-1)

            return value_and_gradient(likelihood, state, probe, connected=False)

        def scores_of_chunk(start: tf.Tensor) -> Any:
            batch, used = draw(start)
            values, scores = self.target.scores(state, batch, prior[0].shape, used)
            rows = tf.reduce_sum(tf.reshape(used, [rows_of_chunk, -1]), axis=-1)
            return tf.reduce_sum(values, axis=-1), scores, rows

        def sum_over_chunks(of_chunk: Callable[[tf.Tensor], Any], start: Any) -> Any:
            def body(first: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any]:
                return first + chunk, tf.nest.map_structure(tf.add, sums, of_chunk(first))

            return tf.while_loop(
                lambda first, _: first < size,
                body,
                (tf.zeros([], tf.int32), start),
                parallel_iterations=1,
            )[1]

        grown = tf.minimum(target_state.size * self.growth, tf.cast(total, tf.float64))
        rest = total if self.target.replacement else total - size
        estimate = GradientEstimate(
            prior[1],
            prior[0],
            target_state=GrowingBatchState(grown),
            noise_scale=scale * tf.cast(rest, scale.dtype),
        )
        if not with_scores or probe is not None:
            log_prob, gradient, product = sum_over_chunks(gradient_of_chunk, prior)
            return estimate._replace(gradient=gradient, log_prob=log_prob, hessian_product=product)
        rows_of_chunk, axis = self.target.num_scores, prior[0].shape.rank
        zeros = tf.nest.map_structure(
            lambda x: tf.zeros_like(tf.repeat(tf.expand_dims(x, axis), rows_of_chunk, axis)), state
        )
        start = (tf.zeros_like(prior[0]), zeros, tf.zeros([rows_of_chunk], scale.dtype))
        value, sums, widths = sum_over_chunks(scores_of_chunk, start)
        return estimate._replace(
            gradient=map_parts(
                lambda g, s: g + scale * tf.reduce_sum(s, axis=axis), prior[1], sums
            ),
            log_prob=prior[0] + scale * value,
            scores=tf.nest.map_structure(lambda s: _rows_of_equal_weight(s, widths, axis), sums),
            num_scores=tf.math.count_nonzero(widths),
        )


def _rows_of_equal_weight(sums: tf.Tensor, widths: tf.Tensor, axis: int) -> tf.Tensor:
    r"""Returns rows with the sample covariance of `GrowingBatch`, from sums of scores.

    The rows \( u_r = (s_r - w_r \bar s) / \sqrt{w_r} \) have the right sum of squares and are
    orthogonal to \( \sqrt{w} \). A reflection that takes this vector to a constant one keeps the
    sum of squares and makes the mean of the rows zero, which is what estimators subtract.

    Args:
      sums: \( s_r \), `[..., rows, event...]`.
      widths: \( w_r \), the number of examples in each sum, `[rows]`.
      axis: the axis of the rows.
    """

    def column(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.cast(x, sums.dtype), [-1] + [1] * (sums.shape.rank - axis - 1))

    widths = tf.cast(widths, tf.float64)
    total, root = tf.reduce_sum(widths), tf.sqrt(widths)
    rows = tf.cast(tf.size(widths), tf.float64)
    mean = tf.reduce_sum(sums, axis=axis, keepdims=True) / tf.cast(total, sums.dtype)
    centred = column(tf.math.divide_no_nan(1.0, root)) * sums - column(root) * mean
    mirror = root / tf.sqrt(total) - 1 / tf.sqrt(rows)
    mirror = column(tf.math.divide_no_nan(mirror, tf.norm(mirror)))
    reflected = centred - 2 * mirror * tf.reduce_sum(mirror * centred, axis=axis, keepdims=True)
    used = tf.cast(tf.math.count_nonzero(widths), tf.float64)
    scale = tf.where(used > 1, tf.sqrt((rows - 1) / tf.maximum(used - 1, 1)), math.nan)
    return tf.cast(scale, sums.dtype) * reflected
