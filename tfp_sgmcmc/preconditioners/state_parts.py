"""States of several parts as vectors: sums, products, and what broadcasts with them."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
import tree

from tfp_sgmcmc import random

_WORTH_PARTS = 10_000  # entries, from which on XLA sums faster in parts

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
    return tf.add_n([sum_entries(p, chain_ndims) for p in tf.nest.flatten(x)])


def sum_entries(x: tf.Tensor, chain_ndims: int = 0) -> tf.Tensor:
    """`tf.reduce_sum` over all axes but the first ones, `[chains...]`."""
    size = x.shape[chain_ndims:].num_elements()
    if size is None or size < _WORTH_PARTS or not random.in_xla_context():
        return tf.reduce_sum(x, list(range(chain_ndims, x.shape.rank)))
    chains = tf.shape(x)[:chain_ndims]
    return _sum_in_parts(tf.reshape(x, tf.concat([chains, [size]], axis=0)))


@tf.custom_gradient
def _sum_in_parts(x: tf.Tensor) -> Any:
    """Sums over the last axis.

    On a CPU XLA stores what it sums, but not what it adds: that of eight equal parts is an eighth.
    """
    parts = tf.split(x[..., : x.shape[-1] // 8 * 8], 8, axis=-1)
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    total = tf.reduce_sum(parts[0], axis=-1)
    if x.shape[-1] % 8:
        total += tf.reduce_sum(x[..., x.shape[-1] // 8 * 8 :], axis=-1)
    # That of slices would be sums of padded arrays.
    return total, lambda upstream: tf.broadcast_to(upstream[..., tf.newaxis], tf.shape(x))


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
