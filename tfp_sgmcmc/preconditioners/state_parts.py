"""States of several parts as vectors: sums, products, and what broadcasts with them."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
import tree

State = Any  # a tensor, or any nest of tensors


def match_structure(name: str, value: Any, state: State) -> Any:
    """Returns `value`, a nest; raises ValueError unless it has one entry a part of the state."""
    try:
        picked = tree.map_structure_up_to(state, lambda _, v: v, state, value)
        left_over = len(tf.nest.flatten(picked)) != len(tf.nest.flatten(value))
    except (TypeError, ValueError):
        left_over = True
    if left_over:
        raise ValueError(
            f"{name} is {value}, which has not the structure of the state, whose parts have "
            f"shapes {tf.nest.map_structure(lambda x: x.shape, state)}."
        )
    return value


def check_broadcasts(name: str, value: tf.Tensor, part: tf.Tensor) -> None:
    """Raises ValueError unless `value` broadcasts to the shape of a part of the state."""
    try:
        fits = part.shape.is_compatible_with(tf.broadcast_static_shape(value.shape, part.shape))
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} has shape {value.shape}, which does not broadcast to a state part of shape "
            f"{part.shape}."
        )


def sum_events(x: State, chain_ndims: int) -> tf.Tensor:
    """Sums every part over its event dimensions, and the parts: shape `[chains...]`."""
    parts = tf.nest.flatten(x)
    return tf.add_n([tf.reduce_sum(p, list(range(chain_ndims, p.shape.rank))) for p in parts])


def squared_norm(x: State, chain_ndims: int) -> tf.Tensor:
    """Squared Euclidean norm over all parts, `[chains...]`."""
    # The minimum changes nothing; without it XLA makes a dot product of each sum, which on a CPU
    # takes three to five times as long.
    squares = tf.nest.map_structure(lambda p: tf.minimum(tf.square(p), math.inf), x)
    return sum_events(squares, chain_ndims)


def flatten_events(x: State, chain_ndims: int) -> tf.Tensor:
    """Concatenates the parts' entries: `[chains..., D]` (`[1, D]` without chain dimensions)."""
    chains = tf.shape(tf.nest.flatten(x)[0])[:chain_ndims] if chain_ndims else [1]
    parts = [
        tf.reshape(p, tf.concat([chains, [p.shape[chain_ndims:].num_elements()]], axis=0))
        for p in tf.nest.flatten(x)
    ]
    return tf.concat(parts, axis=-1)


def unflatten_events(flat: tf.Tensor, like: State, chain_ndims: int) -> State:
    """The inverse of `flatten_events`, to the shapes of `like`."""
    parts = tf.nest.flatten(like)
    pieces = tf.split(flat, [p.shape[chain_ndims:].num_elements() for p in parts], axis=-1)
    return tf.nest.pack_sequence_as(
        like, [tf.reshape(x, tf.shape(p)) for x, p in zip(pieces, parts, strict=True)]
    )
