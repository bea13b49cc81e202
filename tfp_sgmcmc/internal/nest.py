"""States of a chain: nests of tensors, their names, their entries, sums over them, and packing."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.internal import checks, xla

State = Any  # a tensor, or any nest of tensors, each with leading chain dimensions

MANY_PARTS = 8  # of a state; XLA's programs for fewer are small
SMALL = 4096  # entries: copying a smaller tensor costs less than one more variable
_WORTH_PARTS = 10_000  # entries; XLA sums longer vectors faster in parts


def dotted_names(nest: Any, root: str) -> list[str]:
    """Returns names of the parts by their keys; those without a name begin with `root`."""
    names = []
    for path, _ in tree.flatten_with_path(nest):
        keys = [str(key).replace("/", ".").replace("\\", ".") for key in path]
        is_named = path and isinstance(path[0], str)
        names.append(".".join(keys if is_named else [root, *keys]))
    return names


def instances(nest: Any, kind: type) -> list[Any]:
    """Returns all objects of a class in a nest, such as the results of nested kernels."""
    found: list[Any] = []
    tree.traverse(lambda x: found.append(x) if isinstance(x, kind) else None, nest)
    return found


def call_with_state(fn: Callable[..., Any], state: State, **extra: Any) -> Any:
    """Calls `fn` with the parts of the state: a list or tuple by position, a dict by name.

    A named tuple goes by name if `fn` takes these names, otherwise by position. `extra` follows the
    parts by position if they go by position, and by name if they go by name.
    """
    if hasattr(state, "_asdict") and _takes_names(fn, [*state._fields, *extra]):
        state = state._asdict()
    if isinstance(state, Mapping):
        if not all(isinstance(name, str) for name in state):
            raise TypeError(
                "state must have strings as names of its parts, which are passed by name. "
                f"Received: {[*state]}."
            )
        return fn(**state, **extra)
    parts = state if isinstance(state, list | tuple) else [state]
    return fn(*parts, *extra.values())


def _takes_names(fn: Callable[..., Any], names: Sequence[str]) -> bool:
    """Returns whether the signature of `fn` accepts these keywords."""
    try:
        inspect.signature(fn).bind(**dict.fromkeys(names))
    except (TypeError, ValueError):  # ValueError: a builtin without a signature
        return False
    return True


def state_from_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
    """Returns the state that `call_with_state` passed as these arguments."""
    if kwargs:
        return kwargs
    return args[0] if len(args) == 1 else list(args)


def path_name(called: str, path: Iterable[Any]) -> str:
    """Returns a name for messages of the part that keys lead to, such as `state['w'][0]`."""
    return called + "".join(f"[{key!r}]" for key in path)


def named_parts(nest: Any, called: str) -> list[tuple[str, Any]]:
    """Returns the parts of a nest with their names, in the order of `tf.nest.flatten`."""
    return [(path_name(called, path), leaf) for path, leaf in tree.flatten_with_path(nest)]


def part_names(state: State, called: str = "state") -> list[str]:
    """Returns names for messages, in the order of `tf.nest.flatten`: `state[0]`, `state['w']`."""
    return [name for name, _ in named_parts(state, called)]


def entry_names(state: State) -> list[str]:
    """Returns the name of the part of each entry of a flat state, as tables of results show it."""
    names = dotted_names(state, "state")
    sizes = [x.shape.num_elements() for x in tf.nest.flatten(state)]
    return [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]


def map_parts(fn: Callable[..., tf.Tensor], *states: State) -> State:
    """Maps like `tf.nest.map_structure`, but takes a list where another state has a tuple."""
    leaves = zip(*(tf.nest.flatten(s) for s in states), strict=True)
    return tf.nest.pack_sequence_as(states[0], [fn(*parts) for parts in leaves])


def by_part(
    name: str, value: Any, state: State, evaluate: Callable[[Any], Any] = lambda v: v
) -> State:
    """Returns `value` as one tensor for each part of the state, of the state's dtype.

    `value` is a single value, or a nest matching the state. `evaluate` is applied to each value
    first. Raises ValueError for another structure, and for a value that does not broadcast to the
    shape of its part.
    """

    def convert(part: tf.Tensor, v: Any) -> tf.Tensor:
        v = number_as_dtype(name, evaluate(v), part.dtype)
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


def returned_by(name: str, value: Any, state: State) -> State:
    """Returns `value`, which the function `name` returned for `state`, in the state's shapes.

    Raises TypeError for values that are not numbers, and ValueError for another structure, for
    shapes that do not broadcast to the state's, and for NaN or infinity at a finite state.
    """

    def convert(leaf: Any) -> tf.Tensor:
        try:
            x = tf.convert_to_tensor(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must return numbers. Received: {leaf!r}.") from error
        if not (x.dtype.is_floating or x.dtype.is_integer):
            raise TypeError(f"{name} must return numbers. Received: dtype {x.dtype.name}.")
        return x

    if value is None or not tf.nest.flatten(value):
        raise ValueError(
            f"{name} must return a vector in the structure of the state. Received: {value!r}."
        )
    vector = by_part(f"The value of {name}", value, state, convert)
    vector = tf.nest.map_structure(lambda v, x: tf.broadcast_to(v, tf.shape(x)), vector, state)
    if _is_finite(state) and not _is_finite(vector):
        raise ValueError(f"{name} must return finite numbers. Received: NaN or infinite entries.")
    return vector


def _is_finite(state: State) -> bool:
    """Returns whether all entries that are known at trace time are finite."""
    known = (tf.get_static_value(x) for x in tf.nest.flatten(state))
    return all(x is None or np.all(np.isfinite(x)) for x in known)


def as_dtype(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns `value` as a tensor of this dtype."""
    # tf.cast would take a Python float through float32.
    if not tf.is_tensor(value):
        return tf.convert_to_tensor(value, dtype)
    return tf.cast(tf.convert_to_tensor(value), dtype)  # of a variable, its value now


def wide(values: Any) -> Any:
    """Returns a nest in at least single precision, which means and factors of matrices need."""
    return tf.nest.map_structure(
        lambda y: y if y.dtype == tf.float64 else tf.cast(y, tf.float32), values
    )


def number_as_dtype(name: str, value: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns the argument `name` as a tensor; raises for anything but numbers of `dtype`.

    Raises TypeError where the conversion fails, and ValueError for a number out of range.
    """
    checks.refuse_masked(name, value)
    if isinstance(value, float | int) and dtype.is_floating:
        with np.errstate(over="ignore", under="ignore"):
            found = float(np.asarray(value, np.float64).astype(dtype.as_numpy_dtype))
        if np.isinf(found) or (value and not found):
            raise ValueError(f"{name} must be within the range of {dtype.name}. Received: {value}.")
    try:
        return as_dtype(value, dtype)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise TypeError(
            f"{name} must be a number or an array of numbers. Received: {value!r}."
        ) from error


def static_or_dynamic_shape(x: tf.Tensor) -> Any:
    """Returns `x.shape` if all of it is known, otherwise a tensor."""
    return x.shape if x.shape.is_fully_defined() else tf.shape(x)


def sizes_of(x: tf.Tensor) -> list[Any]:
    """Returns the shape as a list, with numbers where sizes are known and tensors elsewhere."""
    return [tf.shape(x)[i] if n is None else n for i, n in enumerate(x.shape)]


def append_dims(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Appends axes of size one to `x`, shape `[chains...]`, until it has the rank of `like`."""
    return x[(..., *[tf.newaxis] * (like.shape.rank - x.shape.rank))]


def sum_events(x: State, chain_ndims: int) -> tf.Tensor:
    """Returns the sum of all entries of all parts for each chain, shape `[chains...]`."""
    return of_all_parts(tf.add, [sum_entries(p, chain_ndims) for p in tf.nest.flatten(x)])


def of_all_parts(
    combine: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], numbers: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Returns the numbers of all parts, each `[chains...]`, combined in their order.

    The result for many parts is stored. XLA would otherwise combine the numbers again for each part
    that uses it, so that its programs would grow as the square of the number of parts.
    """
    result = functools.reduce(combine, numbers)
    if len(numbers) < MANY_PARTS:
        return result
    return xla.materialized(result[..., tf.newaxis])[..., 0]


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


def one_chain(state: State, chains: tuple[int, ...], chain: int) -> State:
    """Returns the state of one chain, with chain dimensions of size one."""
    at = tuple(slice(i, i + 1) for i in np.unravel_index(chain, chains)) if chains else ()
    return tf.nest.map_structure(lambda x: x[at] if at else x, state)


def num_entries(state: State, lead_ndims: int = 0) -> int:
    """Returns the number of entries of all parts behind their leading axes."""
    return sum(x.shape[lead_ndims:].num_elements() for x in tf.nest.flatten(state))


def flatten_events(x: State, lead_ndims: int) -> tf.Tensor:
    """Concatenates the entries of all parts behind their leading axes, shape `[lead..., D]`."""

    def flat(part: tf.Tensor) -> tf.Tensor:
        size = part.shape[lead_ndims:].num_elements()
        return tf.reshape(part, [*sizes_of(part)[:lead_ndims], size])

    parts = [flat(part) for part in tf.nest.flatten(x)]
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)


def unflatten_events(flat: tf.Tensor | np.ndarray, like: State, lead_ndims: int) -> State:
    """Splits `flat`, `[lead..., D]`, into parts `[lead..., event...]`.

    The events are those of `like`, behind its own `lead_ndims` leading axes. An array takes the
    dtype of `like`.
    """
    parts = tf.nest.flatten(like)
    flat = flat if tf.is_tensor(flat) else tf.constant(flat, parts[0].dtype)
    events = [p.shape[lead_ndims:] for p in parts]
    sizes = [event.num_elements() for event in events]
    pieces = tf.split(flat, sizes, axis=-1) if len(sizes) > 1 else [flat]
    lead = static_or_dynamic_shape(flat)[:-1]
    shapes = [tf.concat([lead, e], axis=0) if tf.is_tensor(lead) else lead + e for e in events]
    return tf.nest.pack_sequence_as(
        like, [tf.reshape(x, shape) for x, shape in zip(pieces, shapes, strict=True)]
    )


def vector_of_chain(state: State, chain_ndims: int) -> np.ndarray:
    """Returns the state of one chain as a vector in double precision."""
    return flatten_events(state, chain_ndims).numpy().astype(np.float64).ravel()


def chain_of_vector(vector: np.ndarray, like: State, chain_ndims: int) -> State:
    """Returns a vector as the state of one chain, with its chain dimensions."""
    return unflatten_events(vector.reshape([1] * chain_ndims + [-1]), like, chain_ndims)


def flatten_named(nest: Any, called: str) -> list[Any]:
    """Returns the leaves of a nest; raises TypeError for names that have no order."""
    try:
        return tf.nest.flatten(nest)
    except TypeError as error:
        raise TypeError(
            f"{called} must have names that can be sorted, such as strings. Received: {error}."
        ) from error


def convert_state(state: State, initial: bool = False, called: str = "state") -> State:
    """Returns `state` as tensors; raises for parts without a gradient, such as integers.

    Only an `initial` state must be finite: `tfp_sgmcmc.diagnostics.check_finite` reports chains
    that break down later. `called` is the name in messages.
    """
    leaves = flatten_named(state, called)
    if not initial and leaves and all(isinstance(x, tf.Tensor) for x in leaves):
        dtypes = {x.dtype for x in leaves}
        if len(dtypes) == 1 and dtypes.pop().is_floating:
            return state

    def convert(name: str, x: Any) -> tf.Tensor:
        try:
            x = tf.convert_to_tensor(x)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise TypeError(f"{name} must be a tensor of numbers. Received: {x!r}.") from error
        if not x.dtype.is_floating:
            raise TypeError(
                f"{name} must have a floating dtype, because an integer state cannot follow a "
                f"gradient. Received: dtype {x.dtype.name}."
            )
        value = tf.get_static_value(x) if initial else None
        if value is not None and not np.all(np.isfinite(value)):
            what = "initial state" if called == "state" else called
            raise ValueError(
                f"The {what} must be finite. Received: NaN or infinite entries in {name}."
            )
        return x

    pairs = zip(part_names(state, called), leaves, strict=True)
    leaves = [convert(name, x) for name, x in pairs]
    if not leaves:
        raise ValueError(f"The {called} must have at least one part. Received: an empty {called}.")
    if len({x.dtype for x in leaves}) > 1:
        dtypes = [x.dtype.name for x in leaves]
        raise TypeError(f"The {called}'s parts must have one dtype. Received: {dtypes}.")
    return tf.nest.pack_sequence_as(state, leaves)


class Part(NamedTuple):
    """A tensor that holds several packed tensors.

    Attributes:
      members: indices of the tensors packed into it; a large tensor has a part to itself.
      shape: `[number of entries]`, or the shape of the large tensor.
      dtype: the dtype of all members.
    """

    members: list[int]
    shape: tuple[int, ...]
    dtype: tf.DType


class Packing:
    """Packs tensors with the shapes and dtypes of `like` (tensors or specifications) into fewer.

    Each variable that a compiled step reads and writes costs about 17 microseconds on a CPU,
    whatever its size, and XLA compiles an operation of its own for each tensor. So small tensors of
    one dtype are concatenated. Large ones stay separate. The first `lead_ndims` axes, which all
    tensors share, stay in front.

    >>> tensors = [tf.zeros([2, 3]), tf.zeros([], tf.int64), tf.ones([])]
    >>> [part.shape for part in Packing(tensors).parts]
    [(7,), (1,)]
    >>> chains = [tf.zeros([4, 3]), tf.zeros([4, 2, 2])]
    >>> [x.shape for x in Packing(chains, lead_ndims=1).pack(chains)]
    [TensorShape([4, 7])]

    Args:
      like: the tensors, or their specifications.
      lead_ndims: number of leading axes, which the shapes of `parts` leave out.
      small: the most entries of a tensor that is packed, without leading axes.
      fewest: the least number of small tensors of one dtype that are packed.
    """

    def __init__(
        self, like: Sequence[Any], lead_ndims: int = 0, small: int = SMALL, fewest: int = 1
    ):
        self._shapes = [tuple(x.shape[lead_ndims:]) for x in like]
        self._sizes = [x.shape[lead_ndims:].num_elements() for x in like]
        groups: dict[tf.DType, list[int]] = {}
        for i, (x, size) in enumerate(zip(like, self._sizes, strict=True)):
            if size is not None and size <= small:
                groups.setdefault(x.dtype, []).append(i)
        packed = {dtype: group for dtype, group in groups.items() if len(group) >= fewest}
        alone = sorted(set(range(len(like))).difference(*packed.values()))
        self._num_alone, self._lead_ndims = len(alone), lead_ndims
        self.parts = [Part([i], self._shapes[i], like[i].dtype) for i in alone]
        for dtype, members in packed.items():
            self.parts.append(Part(members, (sum(self._sizes[i] for i in members),), dtype))

    @property
    def joins(self) -> bool:
        """Whether tensors are packed together."""
        return len(self.parts) < len(self._sizes)

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors laid out as `parts`, behind their leading axes."""
        return self._laid_out(tensors, self._lead_ndims)

    def pack_settings(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns values that broadcast with the tensors, laid out to broadcast with `parts`."""
        together = [i for part in self.parts[self._num_alone :] for i in part.members]
        ranks = {i: len(self._shapes[i]) for i in together}
        leads = [values[i].shape[: max(0, values[i].shape.rank - ranks[i])] for i in together]
        lead = functools.reduce(tf.broadcast_static_shape, leads, tf.TensorShape([]))
        full = dict(enumerate(values))
        full |= {i: tf.broadcast_to(values[i], lead + self._shapes[i]) for i in together}
        return self._laid_out(full, lead.rank)

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """Returns the tensors or arrays that were packed, behind any leading axes."""
        found: dict[int, Any] = {}
        for place, (part, row) in enumerate(zip(self.parts, packed, strict=True)):
            if place < self._num_alone:
                found[part.members[0]] = row
                continue
            shapes = [self._shapes[i] for i in part.members]
            if isinstance(row, np.ndarray):  # which stays one
                ends = np.cumsum([self._sizes[i] for i in part.members])
                pieces = np.split(row, ends[:-1], axis=-1)
                pairs = zip(pieces, shapes, strict=True)
                pieces = [x.reshape([*row.shape[:-1], *shape]) for x, shape in pairs]
            else:
                like = [tf.TensorSpec(shape, part.dtype) for shape in shapes]
                pieces = unflatten_events(row, like, 0)
            found |= dict(zip(part.members, pieces, strict=True))
        return [found[i] for i in range(len(found))]

    def means(self, packed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns parts in which each entry is the mean over the tensor that it belongs to."""
        found = []
        for part, x in zip(self.parts, packed, strict=True):
            if len(part.members) == 1:
                mean = tf.reduce_mean(x, [*range(self._lead_ndims, x.shape.rank)], keepdims=True)
                found.append(tf.broadcast_to(mean, tf.shape(x)))
                continue
            sizes = np.array([self._sizes[i] for i in part.members])
            tensor = np.repeat(np.arange(len(sizes)), sizes)
            by_entry = tf.transpose(tf.reshape(x, [-1, len(tensor)]))
            sums = tf.math.unsorted_segment_sum(by_entry, tensor, len(sizes))
            means = tf.transpose(sums / tf.cast(sizes[:, np.newaxis], x.dtype))
            found.append(tf.reshape(tf.gather(means, tensor, axis=-1), tf.shape(x)))
        return found

    def _laid_out(self, tensors: Any, lead_ndims: int) -> list[tf.Tensor]:
        alone, together = self.parts[: self._num_alone], self.parts[self._num_alone :]
        return [
            *(tensors[part.members[0]] for part in alone),
            *(flatten_events([tensors[i] for i in part.members], lead_ndims) for part in together),
        ]
