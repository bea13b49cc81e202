"""States of a chain: nests of tensors, their names, their entries, and sums over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tree

from tfp_sgmcmc import xla

State = Any  # a tensor, or any nest of tensors, each with leading chain dimensions

_WORTH_PARTS = 10_000  # entries; XLA sums longer vectors faster in parts


def call_with_state(fn: Callable[..., Any], state: State, **extra: Any) -> Any:
    """Calls `fn` with the parts of the state: a list or tuple by position, a dict by name.

    `extra` follows the parts by position if the state has positions, and by name if it is a dict.
    """
    if hasattr(state, "_asdict"):
        state = state._asdict()
    if isinstance(state, Mapping):
        return fn(**state, **extra)
    parts = state if isinstance(state, list | tuple) else [state]
    return fn(*parts, *extra.values())


def state_from_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
    """Returns the state that `call_with_state` passed as these arguments."""
    if kwargs:
        return kwargs
    return args[0] if len(args) == 1 else list(args)


def part_names(state: State) -> list[str]:
    """Returns names for messages, in the order of `tf.nest.flatten`: `state[0]`, `state['w']`."""
    paths = (path for path, _ in tree.flatten_with_path(state))
    return ["state" + "".join(f"[{key!r}]" for key in path) for path in paths]


def map_parts(fn: Callable[..., tf.Tensor], *states: State) -> State:
    """Maps like `tf.nest.map_structure`, but takes a list where another state has a tuple."""
    leaves = zip(*(tf.nest.flatten(s) for s in states), strict=True)
    return tf.nest.pack_sequence_as(states[0], [fn(*parts) for parts in leaves])


def by_part(
    name: str, value: Any, state: State, evaluate: Callable[[Any], Any] = lambda v: v
) -> State:
    """Returns `value` as one tensor for each part of the state, of the state's dtype.

    `value` is one for all parts, or has the structure of the state, and `evaluate` is applied to
    each first. Raises ValueError for another structure, and for a value that does not broadcast to
    the shape of its part.
    """

    def convert(part: tf.Tensor, v: Any) -> tf.Tensor:
        v = as_dtype(evaluate(v), part.dtype)
        try:
            shape = tf.broadcast_static_shape(v.shape, part.shape)
            fits = part.shape.is_compatible_with(shape)
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"{name} must broadcast to the shape of its state part, {part.shape}. Received: "
                f"shape {v.shape}."
            )
        return v

    if not tf.nest.is_nested(value):
        return tf.nest.map_structure(lambda part: convert(part, value), state)
    try:
        picked = tree.map_structure_up_to(state, lambda _, v: v, state, value)
        left_over = len(tf.nest.flatten(picked)) != len(tf.nest.flatten(value))
    except (TypeError, ValueError):
        left_over = True
    if left_over:
        raise ValueError(
            f"{name} must have the structure of the state, whose parts have shapes "
            f"{tf.nest.map_structure(lambda x: x.shape, state)}. Received: {value}."
        )
    return tree.map_structure_up_to(state, convert, state, value)


def as_dtype(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns `value` as a tensor of this dtype."""
    # tf.cast would take a Python float through float32.
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype)


def static_or_dynamic_shape(x: tf.Tensor) -> Any:
    """Returns `x.shape` if all of it is known, otherwise a tensor."""
    return x.shape if x.shape.is_fully_defined() else tf.shape(x)


def append_dims(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Appends axes of size one to `x`, shape `[chains...]`, until it has the rank of `like`."""
    return x[(..., *[tf.newaxis] * (like.shape.rank - x.shape.rank))]


def sum_events(x: State, chain_ndims: int) -> tf.Tensor:
    """Returns the sum of all entries of all parts for each chain, shape `[chains...]`."""
    return tf.add_n([sum_entries(p, chain_ndims) for p in tf.nest.flatten(x)])


def sum_entries(x: tf.Tensor, chain_ndims: int = 0) -> tf.Tensor:
    """Returns `tf.reduce_sum` over all axes but the first `chain_ndims`, shape `[chains...]`."""
    size = x.shape[chain_ndims:].num_elements()
    if size is None or size < _WORTH_PARTS or not xla.in_xla_context():
        return tf.reduce_sum(x, list(range(chain_ndims, x.shape.rank)))
    chains = tf.shape(x)[:chain_ndims]
    return xla.sum_last_axis(tf.reshape(x, tf.concat([chains, [size]], axis=0)))


def squared_norm(x: State, chain_ndims: int) -> tf.Tensor:
    """Returns the squared Euclidean norm over all parts, shape `[chains...]`."""
    # The minimum changes nothing. Without it XLA makes a dot product of each sum, which takes
    # three to five times as long on a CPU.
    squares = tf.nest.map_structure(lambda p: tf.minimum(tf.square(p), math.inf), x)
    return sum_events(squares, chain_ndims)


def flatten_events(x: State, lead_ndims: int) -> tf.Tensor:
    """Concatenates the entries of all parts behind their leading axes, shape `[lead..., D]`."""

    def flat(part: tf.Tensor) -> tf.Tensor:
        lead, size = part.shape[:lead_ndims], part.shape[lead_ndims:].num_elements()
        is_known = lead.is_fully_defined()
        sizes = list(lead) if is_known else tf.unstack(tf.shape(part)[:lead_ndims])
        return tf.reshape(part, [*sizes, size])

    parts = [flat(part) for part in tf.nest.flatten(x)]
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)


def unflatten_events(flat: tf.Tensor, like: State, lead_ndims: int) -> State:
    """Splits what `flatten_events` returned into parts of the shapes of `like`."""
    parts = tf.nest.flatten(like)
    sizes = [p.shape[lead_ndims:].num_elements() for p in parts]
    pieces = tf.split(flat, sizes, axis=-1) if len(parts) > 1 else [flat]
    return tf.nest.pack_sequence_as(
        like, [tf.reshape(x, tf.shape(p)) for x, p in zip(pieces, parts, strict=True)]
    )
