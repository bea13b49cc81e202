"""Estimates of differences: of gradients from an anchor, and of log posteriors between states.

The base class of targets with an anchor knows the gradient there. Log posteriors of several states
are compared by one minibatch for all of them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.nest import State, call_with_state, convert_state, static_or_dynamic_shape
from tfp_sgmcmc.targets import linear_model_scores
from tfp_sgmcmc.targets.base import GradientEstimate, Target, value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb, checked_target
from tfp_sgmcmc.targets.scores import combine_scores


class Anchor(NamedTuple):
    """A state with the sum of all N log likelihoods at it.

    The sum is `[chains...]`, and its gradient has the structure and shapes of the state.
    """

    state: State
    log_likelihood: tf.Tensor
    gradient: State


def anchor_at(target: MinibatchLogProb, state: State) -> Anchor:
    """Returns the anchor at `state`, by a pass over the data in chunks of bounded memory."""
    return Anchor(state, *target.sum_over_chunks(state, target.chunk_size))


# The anchor of an estimate, the wrapped target's state, and a function from the wrapped target's
# next state to this target's next state.
NextAnchor = tuple[Anchor, Any, Callable[[Any], Any]]


class AnchoredTarget(Target):
    """Base class of targets whose minibatches estimate differences from an anchor.

    Scores are the differences between the examples' gradients at the state and at the anchor. V is
    their covariance, and c the wrapped target's. Differences estimate the log posterior, too.
    """

    def __init__(self, target: MinibatchLogProb):
        self.target = checked_target(target)
        self.num_examples, self.num_scores = target.num_examples, target.num_scores
        self.noise_scale = target.noise_scale

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return self.target(*args, **kwargs)

    def chain_shape(self, state: State) -> Any:
        return self.target.chain_shape(state)

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        state = convert_state(state)
        anchor, inner, carry = self._next_anchor(state, target_state)
        indices, inner = self.target.next_indices(seed, inner)
        estimate = self._estimate_from(anchor, state, indices, probe, with_scores)
        return estimate._replace(target_state=carry(inner))

    @abc.abstractmethod
    def _next_anchor(self, state: State, target_state: Any) -> NextAnchor:
        """Returns the anchor of the estimate at `state`, and the states to carry on."""

    def _estimate_from(
        self,
        anchor: Anchor,
        state: State,
        indices_of: Callable[..., Any],
        probe: State,
        with_scores: bool,
    ) -> GradientEstimate:
        """Returns the estimate from a minibatch, with an empty `target_state`.

        `indices_of` is the first result of the wrapped target's `next_indices`.
        """
        base, n = self.target, self.target.batch_size
        prior, gradient, product = value_and_gradient(base.log_prior, state, probe, connected=False)
        shape = static_or_dynamic_shape(prior)
        noise_scale = tf.constant(self.noise_scale, prior.dtype)
        log_prob = prior + anchor.log_likelihood
        gradient = tf.nest.map_structure(tf.add, gradient, anchor.gradient)
        chains = anchor.log_likelihood.shape

        if with_scores and probe is None:

            def differences(base: Any) -> Any:
                batch = base.rows(indices_of(base, shape))
                return tf.nest.map_structure(
                    tf.subtract,
                    base.scores(state, batch, prior.shape),
                    base.scores(anchor.state, batch, chains),
                )

            values, scores = base.gathered(differences, prior.shape.rank)
            log_prob, gradient, scores = combine_scores(
                log_prob, gradient, values, scores, self.num_examples, n
            )
            return GradientEstimate(gradient, log_prob, scores, noise_scale=noise_scale)

        if probe is None and base.linear_model is not None:
            scale = self.num_examples / n
            value, slope = base.summed(
                lambda part: linear_model_scores.differences(
                    part, state, anchor.state, part.rows(indices_of(part, shape))
                )
            )
            gradient = tf.nest.map_structure(lambda g, s: g + scale * s, gradient, slope)
            return GradientEstimate(gradient, log_prob + scale * value, noise_scale=noise_scale)

        def scaled_sums(part: Any) -> Any:
            batch = part.rows(indices_of(part, shape))

            def at(place: State, chains: Any, probe: State = None) -> Any:
                def log_likelihood(s: State) -> tf.Tensor:
                    return part.scaled_sum(s, batch, chains, self.num_examples)

                return value_and_gradient(log_likelihood, place, probe, connected=False)

            return at(state, prior.shape, probe), at(anchor.state, chains)[:2]

        (here, slope, curvature), (there, slope_there) = base.summed(scaled_sums)
        gradient = tf.nest.map_structure(lambda g, a, b: g + (a - b), gradient, slope, slope_there)
        product = tf.nest.map_structure(tf.add, product, curvature)
        return GradientEstimate(
            gradient, log_prob + (here - there), (), product, noise_scale=noise_scale
        )


def comparable_target(target: Target) -> Target:
    """Returns the target that `log_prob_differences` accepts: `target`, or the one that it wraps.

    Raises ValueError unless it is exact, or a `MinibatchLogProb` with at least two examples in a
    minibatch, which estimate the variance.
    """
    base = getattr(target, "target", target)
    if isinstance(base, MinibatchLogProb):
        if base.num_scores is not None and base.num_scores < 2:
            raise ValueError(
                "batch_size must be at least 2, and two for each shard of a ShardedLogProb, so "
                "that the variance of the minibatch's estimates can be estimated. Received: "
                f"{base.batch_size}."
            )
        return base
    if base.num_scores == 0 and base.noise_scale == 0:
        return base
    raise ValueError(
        "The target must be a MinibatchLogProb, a target that wraps one as its attribute `target`, "
        "or a FullDataLogProb: comparing log posteriors takes log likelihoods of single examples. "
        f"Received: {a_type(target)}."
    )


def log_prob_differences(
    target: Target, states: State, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    r"""Estimates \( \log p(\theta_{r+1} \mid x) - \log p(\theta_r \mid x) \) and its variance.

    \[
    D_r = \log \frac{p(\theta_{r+1})}{p(\theta_r)} + \frac N n \sum_{i \in S} d_{ri}, \quad
    d_{ri} = \log \frac{p(x_i \mid \theta_{r+1})}{p(x_i \mid \theta_r)}, \qquad
    \operatorname{var} D_r \approx c \operatorname{var}_{i \in S}(d_{ri})
    \]

    All states of a chain see the same examples S, so the estimate is as noisy as the difference of
    two log likelihoods, which is small for states near each other. c is the target's
    `noise_scale`, and the variance in S has the divisor n - 1. For two draws of a nearly Gaussian
    posterior of d parameters, tempered by T, var D is about 2 d T (N - n) / n.

    `comparable_target` returned `target`. `states` has R states along the first axis of every part.
    Both results are `[R - 1, chains...]`. The variances of an exact target are zero.
    """

    def difference(x: tf.Tensor) -> tf.Tensor:
        return x[1:] - x[:-1]

    if not isinstance(target, MinibatchLogProb):
        exact = difference(call_with_state(target, states))
        return exact, tf.zeros_like(exact)
    n = target.batch_size
    log_prior = target.log_prior(states)
    shape = static_or_dynamic_shape(log_prior)

    def terms_of(part: Any) -> tf.Tensor:
        size = part.batch_size
        indices = part.draw(seed, tf.range(size), shape[1:])
        if indices.shape.rank > 1:  # each chain has a minibatch, the same for all of its states
            indices = tf.broadcast_to(indices, tf.concat([shape, [size]], axis=0))
        values = part.log_likelihood(states, part.rows(indices), size, log_prior.shape)
        return difference(part.weighted(values))

    terms = target.gathered(terms_of, log_prior.shape.rank)
    assert target.noise_scale is not None  # every MinibatchLogProb has one
    scale = target.num_examples / n
    differences = difference(log_prior) + scale * tf.reduce_sum(terms, axis=-1)
    variances = tf.math.reduce_variance(terms, axis=-1) * (n / (n - 1) * target.noise_scale)
    return differences, variances
