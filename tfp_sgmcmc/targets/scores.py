"""Scores: gradients of single examples' log likelihoods, and what takes their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.state import State
from tfp_sgmcmc.targets.base import value_and_gradient


def mapped_scores(
    log_likelihood_fn: Callable[[State, Any], tf.Tensor],
    state: State,
    batch: Any,
    num_rows: int | tf.Tensor,
    chain_ndims: int,
    batch_ndims: int,
    map_fn: Callable[[Callable[[Any], Any], Any], Any] = tf.vectorized_map,
) -> tuple[tf.Tensor, State]:
    """Sums of log likelihoods over equal groups of a minibatch, and their gradients.

    Args:
      log_likelihood_fn: `(state, batch) -> [chains..., m]`, the log likelihoods of m examples.
      state: where; leading chain dimensions.
      batch: leaves `[n, ...]`, or `[chains..., n, ...]` where each chain has its own.
      num_rows: number of groups; n of them are single examples.
      chain_ndims: number of chain dimensions of `state`.
      batch_ndims: number of chain dimensions of `batch`.
      map_fn: function, elements -> its values, as of `tf.vectorized_map`.

    Returns:
      Sums, `[chains..., num_rows]`, and gradients, `[chains..., num_rows, event...]` a part.
    """

    def in_groups(x: tf.Tensor) -> tf.Tensor:
        shape = [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]
        size = shape[batch_ndims] // num_rows
        x = tf.reshape(x, [*shape[:batch_ndims], num_rows, size, *shape[batch_ndims + 1 :]])
        return _move_axis(x, batch_ndims, 0)

    def one(group: Any) -> tuple[tf.Tensor, State]:
        value, gradient, _ = value_and_gradient(
            lambda s: tf.reduce_sum(log_likelihood_fn(s, group), axis=-1), state, connected=False
        )
        return value, gradient

    values, gradients = map_fn(one, tf.nest.map_structure(in_groups, batch))
    return _move_axis(values, 0, chain_ndims), tf.nest.map_structure(
        lambda g: _move_axis(g, 0, chain_ndims), gradients
    )


def combine_scores(
    log_prob: tf.Tensor,
    gradient: State,
    values: tf.Tensor,
    scores: State,
    num_examples: int,
    batch_size: int,
) -> tuple[tf.Tensor, State, State]:
    """Adds N/n times what a minibatch gave to what is known exactly.

    Args:
      log_prob: `[chains...]`: the log prior, or more.
      gradient: its gradient, in the structure of the state.
      values: log likelihoods, single or summed over groups, `[chains..., rows]`.
      scores: their gradients, `[chains..., rows, event...]` a part.
      num_examples: N.
      batch_size: n.

    Returns:
      Log posterior, gradient, and scores whose sample covariance estimates V.
    """
    scale, axis = num_examples / batch_size, log_prob.shape.rank
    gradient = tf.nest.map_structure(
        lambda g, s: g + scale * tf.reduce_sum(s, axis=axis), gradient, scores
    )
    width = batch_size // values.shape[-1]
    if width > 1:  # sums of groups so far; their covariance is `width` times that of one score
        scores = tf.nest.map_structure(lambda s: s / width**0.5, scores)
    return log_prob + scale * tf.reduce_sum(values, axis=-1), gradient, scores


def check_scores(scores: State, state: State, num_rows: int, chain_ndims: int) -> State:
    """Returns what a user's `score_fn` gave, packed as the state; raises for another shape."""
    if hasattr(state, "_asdict") and isinstance(scores, Mapping) and {*scores} == {*state._fields}:
        scores = type(state)(**scores)  # by name: a dict's order is another
    parts, given = tf.nest.flatten(state), tf.nest.flatten(scores)
    if len(parts) != len(given):
        raise ValueError(
            f"score_fn returned {len(given)} arrays for a state of {len(parts)} parts; one for "
            "each part is expected."
        )
    given = [tf.convert_to_tensor(s, x.dtype) for s, x in zip(given, parts, strict=True)]
    for s, x in zip(given, parts, strict=True):
        expected = x.shape[:chain_ndims].concatenate(num_rows).concatenate(x.shape[chain_ndims:])
        if not s.shape.is_compatible_with(expected):
            raise ValueError(
                f"score_fn returned shape {s.shape} for a state part of shape {x.shape}; "
                f"{expected}, the gradient of each example's log likelihood, "
                "[chains..., n, event...], is expected."
            )
    return tf.nest.pack_sequence_as(state, given)


def _move_axis(x: tf.Tensor, source: int, target: int) -> tf.Tensor:
    if source == target:
        return x
    order = list(range(x.shape.rank))
    order.insert(target, order.pop(source))
    return tf.transpose(x, order)
