"""Scores: gradients of the log likelihoods of single examples or of groups of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.internal.vectorize import map_examples
from tfp_sgmcmc.targets.base import value_and_gradient


def mapped_scores(
    log_likelihood_fn: Callable[[State, Any], tf.Tensor],
    state: State,
    batch: Any,
    num_rows: int | tf.Tensor,
    chain_ndims: int,
    batch_ndims: int,
    map_fn: Callable[[Callable[[Any], Any], Any], Any] = map_examples,
    probe: State = None,
) -> tuple[tf.Tensor, State, State]:
    """Returns sums of log likelihoods over equal groups of a minibatch, and their derivatives.

    The derivatives are gradients, and Hessians times `probe` (`()` without a probe). Shapes are
    `[chains..., num_rows]`, and `[chains..., num_rows, event...]` for each part.

    Args:
      log_likelihood_fn: (state, batch) -> `[chains..., m]`, the log likelihoods of m examples.
      state: the state of the chains.
      batch: leaves `[n, ...]`, or `[chains..., n, ...]` if each chain has a different minibatch.
      num_rows: number of groups; n groups are single examples.
      chain_ndims: number of chain dimensions of `state`.
      batch_ndims: number of chain dimensions of `batch`.
      map_fn: maps a function over elements, like `tf.vectorized_map`.
      probe: a vector that the Hessians multiply, structured as `state`.
    """

    def in_groups(x: tf.Tensor) -> tf.Tensor:
        shape = [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]
        size = shape[batch_ndims] // num_rows
        x = tf.reshape(x, [*shape[:batch_ndims], num_rows, size, *shape[batch_ndims + 1 :]])
        return _move_axis(x, batch_ndims, 0)

    def one(group: Any) -> tuple[tf.Tensor, State, State]:
        value, gradient, product = value_and_gradient(
            lambda s: tf.reduce_sum(log_likelihood_fn(s, group), axis=-1),
            state,
            probe,
            connected=False,
        )
        # The gradient through the loop of a recurrent layer has lost its static shape.
        tf.nest.map_structure(lambda g, x: g.set_shape(x.shape), gradient, state)
        return value, gradient, product

    found = map_fn(one, tf.nest.map_structure(in_groups, batch))
    return tf.nest.map_structure(lambda x: _move_axis(x, 0, chain_ndims), found)


def combine_scores(
    log_prob: tf.Tensor,
    gradient: State,
    values: tf.Tensor,
    scores: State,
    num_examples: int,
    batch_size: int,
) -> tuple[tf.Tensor, State, State]:
    """Adds N/n times the sums over a minibatch to a log posterior and its gradient.

    `mapped_scores` returns the `values` and `scores`. Returns the log posterior, its gradient, and
    scores whose sample covariance estimates V.
    """
    scale, axis = num_examples / batch_size, log_prob.shape.rank
    gradient = tf.nest.map_structure(
        lambda g, s: g + scale * tf.reduce_sum(s, axis=axis), gradient, scores
    )
    width = batch_size // values.shape[-1]
    if width > 1:  # scores are sums over groups, with `width` times the covariance of one score
        scores = tf.nest.map_structure(lambda s: s / width**0.5, scores)
    return log_prob + scale * tf.reduce_sum(values, axis=-1), gradient, scores


def check_scores(scores: State, state: State, num_rows: int, chain_ndims: int) -> State:
    """Packs the result of a user's `score_fn` as the state, and checks its shapes."""
    if hasattr(state, "_asdict") and isinstance(scores, Mapping) and {*scores} == {*state._fields}:
        scores = type(state)(**scores)  # by name, because a dict has another order
    parts, given = tf.nest.flatten(state), tf.nest.flatten(scores)
    if len(parts) != len(given):
        raise ValueError(
            f"score_fn must return one array for each of the {len(parts)} parts of the state. "
            f"Received: {len(given)} arrays."
        )
    try:
        given = [tf.convert_to_tensor(s, x.dtype) for s, x in zip(given, parts, strict=True)]
    except (TypeError, ValueError) as error:
        dtype = parts[0].dtype.name
        raise TypeError(
            f"score_fn must return arrays of the state's dtype, {dtype}. Received: {scores!r}."
        ) from error
    for s, x in zip(given, parts, strict=True):
        expected = x.shape[:chain_ndims].concatenate(num_rows).concatenate(x.shape[chain_ndims:])
        if not s.shape.is_compatible_with(expected):
            raise ValueError(
                f"score_fn must return shape {expected} for a state part of shape {x.shape}: the "
                "gradient of each example's log likelihood, [chains..., n, event...]. "
                f"Received: shape {s.shape}."
            )
    return tf.nest.pack_sequence_as(state, given)


def _move_axis(x: tf.Tensor, source: int, target: int) -> tf.Tensor:
    if source == target:
        return x
    order = list(range(x.shape.rank))
    order.insert(target, order.pop(source))
    return tf.transpose(x, order)
