"""Scores and sums of the log likelihoods of examples.

Scores are gradients of the log likelihoods of single examples or of groups of them, vectorized
where TensorFlow's operations allow it. Sums go over chunks of bounded memory, and over chains in
groups that fit a cache.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.nest import (
    State,
    append_dims,
    flatten_events,
    sizes_of,
    unflatten_events,
)
from tfp_sgmcmc.targets.base import value_and_gradient

_UNSAFE = (
    "oneDNN fails in the vectorized form of the operation {!r}. Programs and models compiled with "
    "jit_compile=True do not use it."
)
_ONEDNN_DTYPES = (tf.float32, tf.bfloat16, tf.float16)
_CACHE = 2**22  # bytes; more minibatches than fit are faster in groups of chains
_MOST_VALUES, _CHUNK_VALUES = 2**20, 2**16  # that are computed at once, and in a chunk of more


@tf.autograph.experimental.do_not_convert
def map_examples(fn: Callable[[Any], Any], elements: Any) -> Any:
    """Maps `fn` over the elements of a nest with leaves `[n, ...]`, and stacks the results.

    It calls `tf.vectorized_map`, or, with a warning, a loop if that fails (see `vectorized_or_not`
    and `unsafe_operation`). A single element, such as a series, is given to `fn` as it is.
    """
    if {x.shape[0] for x in tf.nest.flatten(elements)} == {1}:
        found = fn(tf.nest.map_structure(lambda x: x[0], elements))
        return tf.nest.map_structure(lambda y: y[tf.newaxis], found)
    found, reason = vectorized_or_not(fn, elements, lambda: unsafe_operation(fn, elements))
    if reason is not None:
        warnings.warn(
            f"The scores of single examples are computed one after another, slowly. {reason}",
            stacklevel=2,
        )
    return found


def vectorized_or_not(
    fn: Callable[[Any], Any], elements: Any, reason_fn: Callable[[], str | None]
) -> tuple[Any, str | None]:
    """Maps `fn` over the elements by `tf.vectorized_map`, or in a loop if there is a reason.

    Returns the results, and the reason or None. It is that of `reason_fn`, or the words of
    TensorFlow where that cannot vectorize `fn`, as some loops and branches.
    """
    try:
        reason = reason_fn()
        if reason is None:
            with without_log():
                if not tf.executing_eagerly():
                    return tf.vectorized_map(fn, elements), None
                # TensorFlow makes a function for each eager call, and warns of many.
                return xla.traced(lambda x: tf.vectorized_map(fn, x))(elements), None
    except Exception as error:  # if `fn` itself raises, the loop below raises the same
        last = (str(error).strip().splitlines() or [""])[-1].strip()
        reason = f"TensorFlow reports: {last[:200]}"
    first = fn(tf.nest.map_structure(lambda x: x[0], elements))
    signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, first)
    looped = tf.map_fn(fn, elements, fn_output_signature=signature, parallel_iterations=1)
    return looped, reason


def unsafe_operation(fn: Callable[[Any], Any], elements: Any) -> str | None:
    """Returns a sentence on an operation that must not be vectorized on this device, or None.

    Two operations of oneDNN, which TensorFlow uses on CPUs outside XLA, are at fault. The product
    of `[n, 1, a, b]`, where n is the mapped axis, with a single matrix accesses memory outside of
    its arrays: values are wrong, or the process dies. A softmax has at most 5 axes.
    """
    if xla.in_xla_context() or xla.on_accelerator():
        return None
    if {x.dtype for x in tf.nest.flatten(elements) if x.dtype.is_floating} == {tf.float64}:
        return None  # oneDNN has no such operations
    varies: set[str] = set()  # names of tensors that depend on the element

    def traced(element: Any) -> tuple[()]:
        varies.update(x.name for x in tf.nest.flatten(element))
        fn(element)
        return ()

    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), elements)
    with without_log():
        graph = tf.function(traced, autograph=False).get_concrete_function(specs).graph
    for operation in graph.get_operations():
        if any(x.name in varies for x in operation.inputs):
            varies.update(x.name for x in operation.outputs)
            if _is_unsafe(operation, varies):
                return _UNSAFE.format(operation.name)
    for function in graph.as_graph_def().library.function:  # bodies of loops and branches
        for node in function.node_def:
            is_product = node.op.startswith("BatchMatMulV")
            if is_product and tf.as_dtype(node.attr["T"].type) in _ONEDNN_DTYPES:
                return _UNSAFE.format(node.name)
    return None


def _is_unsafe(operation: tf.Operation, varies: set[str]) -> bool:
    """Returns whether an operation with inputs in `varies` must not be vectorized."""
    x = operation.inputs[0]
    if x.dtype not in _ONEDNN_DTYPES:
        return False
    if operation.type == "Softmax":
        return x.shape.rank is None or x.shape.rank > 4
    if not operation.type.startswith("BatchMatMulV"):
        return False
    y = operation.inputs[1]
    if x.name not in varies or y.name in varies or x.shape.rank not in (3, None):
        return False
    return all(  # of both may hold a single matrix
        z.shape.rank is None or all(n in (1, None) for n in z.shape[:-2]) for z in (x, y)
    )


@contextlib.contextmanager
def without_log() -> Generator[None]:
    """Silences TensorFlow, which logs whole graphs that it cannot vectorize."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("CRITICAL")
    try:
        yield
    finally:
        logger.setLevel(level)


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
        shape = sizes_of(x)
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


def expansion_remainders(
    model: Any,
    like: State,
    rows: Any,
    size: int,
    states: tf.Tensor,
    center: tf.Tensor,
    offsets: tf.Tensor,
) -> tf.Tensor:
    """Returns gradients of rows' log likelihoods less their expansions, `[K, size, D]`.

    A chain for each row is a hundred times faster than a map of gradients.

    Args:
      model: has the log likelihood.
      like: one state, for the structure.
      rows: a nest of `[size, ...]`.
      size: the number of rows.
      states: K flat states, `[K, D]`.
      center: where gradients are expanded to first order, `[D]` or `[K, D]`.
      offsets: the states less the center, `[K, D]`.
    """
    shape = [states.shape[0], size]
    batch = tf.nest.map_structure(
        lambda x: tf.broadcast_to(x[:, tf.newaxis], [*shape, 1, *x.shape[1:]]), rows
    )

    def of_rows(flat: tf.Tensor) -> State:
        flat = tf.broadcast_to(flat[..., tf.newaxis, :], [*shape, flat.shape[-1]])
        return unflatten_events(flat, like, 0)

    def derivatives(flat: tf.Tensor, probe: State = None) -> tuple[tf.Tensor, State, State]:
        return value_and_gradient(
            lambda s: model.log_likelihood(s, batch, 1, shape)[..., 0],
            of_rows(flat),
            probe,
            connected=False,
        )

    found = derivatives(states)[1], *derivatives(center, of_rows(offsets))[1:]
    slopes, slopes_there, bends = (flatten_events(x, 2) for x in found)
    return slopes - slopes_there - bends


def _move_axis(x: tf.Tensor, source: int, target: int) -> tf.Tensor:
    if source == target:
        return x
    order = list(range(x.shape.rank))
    order.insert(target, order.pop(source))
    return tf.transpose(x, order)


def sum_over_chunks(
    fn: Callable[[State, Any, int], tf.Tensor],
    state: State,
    num_examples: int,
    size: int,
    probe: State = None,
) -> tuple[tf.Tensor, State, State]:
    """Returns a sum over all examples, its gradient, and its Hessian times `probe`, in one pass.

    `fn(state, start, size)` returns the sum over `size` examples from `start` on, `[chains...]`.
    Chunks have `size` examples, except for the first, which may have fewer. Without a probe the
    product is `()`.
    """

    def chunk(start: Any, size: int) -> tuple[tf.Tensor, State, State]:
        return value_and_gradient(lambda s: fn(s, start, size), state, probe, connected=False)

    return total_of_chunks(chunk, num_examples, size)


def total_of_chunks(of_chunk: Callable[[Any, int], Any], num_examples: int, size: int) -> Any:
    """Returns the sum of the nests `of_chunk(start, size)` over chunks of all examples.

    Chunks have `size` examples, except for the first, which may have fewer.
    """
    first = num_examples % size or size
    total = of_chunk(0, first)
    if first == num_examples:
        return total

    def body(start: tf.Tensor, total: Any) -> tuple[tf.Tensor, Any]:
        return start + size, tf.nest.map_structure(tf.add, total, of_chunk(start, size))

    return tf.while_loop(
        lambda start, _: start < num_examples,
        body,
        (tf.constant(first), total),
        parallel_iterations=1,
        maximum_iterations=num_examples // size,  # XLA needs a bound to differentiate the loop
    )[1]


def with_given_gradient(fn: Callable[[State], tuple[tf.Tensor, State]], state: State) -> tf.Tensor:
    """Returns the value of `fn(state)`, a function that returns a value and its gradient.

    Tapes of the caller use that gradient, and raise NotImplementedError for a second derivative.
    What `fn` closes over, such as a variable or a tensor that they watch, they differentiate as
    usual.
    """
    # Hidden from the caller's tape, which would otherwise keep every chunk in eager mode.
    hidden = [tf.stop_gradient(x) for x in tf.nest.flatten(state)]
    result, gradient = fn(tf.nest.pack_sequence_as(state, hidden))

    @tf.custom_gradient
    def zero(*leaves: tf.Tensor) -> Any:
        def vjp(upstream: tf.Tensor) -> list[tf.Tensor]:
            pairs = zip(tf.nest.flatten(gradient), leaves, strict=True)
            return [append_dims(upstream, g) * _of_first_order(g, x) for g, x in pairs]

        return tf.zeros_like(result), vjp

    return result + zero(*tf.nest.flatten(state))


@tf.custom_gradient
def _of_first_order(gradient: tf.Tensor, leaf: tf.Tensor) -> Any:
    """Returns `gradient`, the gradient with respect to `leaf`, whose derivative raises an error."""

    def second_order(_: tf.Tensor) -> Any:
        raise NotImplementedError(
            "A log posterior that is evaluated in chunks has first derivatives only. A "
            "MinibatchLogProb with chunk_size=num_examples evaluates all examples at once, with "
            "derivatives of every order."
        )

    del leaf
    return tf.identity(gradient), second_order


def chains_per_group(chain_shape: Any, batch_bytes: int) -> int | None:
    """Returns how many chains to evaluate at a time on a CPU, or None for all of them at once.

    XLA writes the minibatches of all chains to memory and reads them back, unless groups of chains
    fit the cache. Smaller groups than that keep one core as busy, but not several. 64 minibatches
    of 500 x 129 `float32` took 1.1 ms on two cores, 1.5 ms in pairs and 0.6 ms in groups of 16.
    """
    if tf.is_tensor(chain_shape) or len(chain_shape) != 1:
        return None
    (chains,) = chain_shape
    if chains * batch_bytes <= _CACHE:
        return None
    sizes = [n for n in range(2, chains // 2 + 1) if chains % n == 0]
    return max((n for n in sizes if n * batch_bytes <= _CACHE), default=min(sizes, default=None))


def map_groups(
    fn: Callable[[State, tf.Tensor], tf.Tensor], state: State, indices: tf.Tensor, size: int
) -> tuple[tf.Tensor, State]:
    """Returns `fn(state, indices)`, `[chains]`, and its gradient, `size` chains at a time.

    `state` has parts `[chains, event...]`, `indices` is `[chains, n]`, and `size` divides `chains`.
    """
    dtypes = tf.nest.map_structure(lambda x: x.dtype, state)

    def split(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [x.shape[0] // size, size, *x.shape[1:]])

    def join(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [x.shape[0] * size, *x.shape[2:]])

    groups = tf.nest.map_structure(split, state), split(indices)
    results = tf.map_fn(
        lambda group: value_and_gradient(lambda s: fn(s, group[1]), group[0], connected=False)[:2],
        groups,
        fn_output_signature=(tf.nest.flatten(dtypes)[0], dtypes),
        parallel_iterations=1,
    )
    return tf.nest.map_structure(join, results)


def sum_values(
    fn: Callable[[State, Any, int], tf.Tensor], states: State, num_examples: int
) -> tf.Tensor:
    """Returns a sum over all examples at many states, `[S]`, without its gradient.

    `fn(states, start, size)` returns the sum over `size` examples from `start` on. If all values
    are too many for one evaluation, chunks have so many examples that their values at all states
    fit a cache. The first chunk may have fewer. 20,000 negative binomial examples at 100 states
    took 0.24 s in chunks of 2^16 values, and 0.42 s in chunks of 2^20. An unknown number of states
    counts as 1,000.
    """
    num_states, size = tf.nest.flatten(states)[0].shape[0] or 1_000, num_examples
    if num_examples * num_states > _MOST_VALUES:
        size = max(1, _CHUNK_VALUES // num_states)
    return total_of_chunks(lambda start, size: fn(states, start, size), num_examples, size)
