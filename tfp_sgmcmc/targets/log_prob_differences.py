"""Differences of a log posterior between states, estimated from one minibatch for all of them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, call_with_state, static_or_dynamic_shape
from tfp_sgmcmc.targets.base import Target
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb


def comparable_target(target: Target) -> Target:
    """Returns the target that `log_prob_differences` accepts: `target`, or the one that it wraps.

    Raises ValueError unless it is exact, or a `MinibatchLogProb` with at least two examples in a
    minibatch, which estimate the variance.
    """
    base = getattr(target, "target", target)
    if isinstance(base, MinibatchLogProb):
        if base.batch_size < 2:
            raise ValueError(
                "batch_size must be at least 2, so that the variance of the minibatch's estimates "
                "can be estimated. Received: 1."
            )
        return base
    if base.num_scores == 0 and base.noise_scale == 0:
        return base
    raise ValueError(
        "The target must be a MinibatchLogProb, a target that wraps one as its attribute `target`, "
        "or a FullDataLogProb: comparing log posteriors takes log likelihoods of single examples. "
        f"Received: a {type(target).__name__}."
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
