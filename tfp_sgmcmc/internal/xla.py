"""Queries of the device and the XLA compiler, and operations that compile well for CPUs."""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
import threading
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.parallel_for import control_flow_ops as vectorized_map

_LONGEST_BLOCK = 32  # steps of a chain on a GPU
_LARGE_MATRIX = 32  # rows, from which XLA on a CPU takes 2 to 10 times as long as LAPACK
_FACTORIZATIONS = {
    "Cholesky", "CholeskyGrad", "LogMatrixDeterminant", "Lu", "MatrixDeterminant", "MatrixInverse",
    "MatrixSolve", "Qr", "SelfAdjointEigV2", "Svd",
}  # fmt: skip
_WORTH_FUSING = 40_000  # entries; with fewer, compilation takes longer than it saves
_WORTH_A_LOOP = 10_000  # entries of a value; a CPU saves time by not writing larger ones
_maps_are_inlined: contextvars.ContextVar[bool] = contextvars.ContextVar("maps", default=False)
_assumed_kind: contextvars.ContextVar[str | None] = contextvars.ContextVar("kind", default=None)


def in_xla_context() -> bool:
    """Returns whether XLA will compile the code that is being traced now."""
    if tf.executing_eagerly():
        return False
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def device() -> str:
    """Returns the name of the device where code that is run or traced now will be placed.

    That is the innermost `tf.device` or strategy. Without one, TensorFlow takes the first GPU, but
    no TPU.
    """
    placed = tf.zeros([]).device  # in a graph, the scope that was opened there, or nothing
    if not placed:
        with tf.init_scope():  # where the graph will be called
            placed = tf.zeros([]).device
    return placed


def device_kind() -> str:
    """Returns "CPU", "GPU" or "TPU", the kind of `device()` or the one of `for_device_kind`."""
    if (assumed := _assumed_kind.get()) is not None:
        return assumed
    if {found.device_type for found in tf.config.list_logical_devices()} == {"CPU"}:
        return "CPU"  # without creating a tensor
    return tf.DeviceSpec.from_string(device()).device_type


@contextlib.contextmanager
def for_device_kind(kind: str | None) -> Generator[None]:
    """Traces as if code were placed on a device of this kind; None is where it is placed."""
    token = _assumed_kind.set(kind)
    try:
        yield
    finally:
        _assumed_kind.reset(token)


def on_accelerator() -> bool:
    """Returns whether code that is run or traced now will be placed on a GPU or a TPU."""
    return device_kind() != "CPU"


def compiles_for_cpu() -> bool:
    """Returns whether XLA will compile the code that is being traced now for a CPU."""
    return in_xla_context() and not on_accelerator()


def slow_factorization(fn: Callable[..., Any], *args: Any) -> tuple[str, int] | None:
    """Returns an operation of `fn(*args)` that XLA would make slower, and the rows of its matrix.

    On a CPU, XLA factorises matrices by loops of its own, and TensorFlow by LAPACK. None is
    returned for other devices, for small matrices, and for those in loops.
    """
    if on_accelerator():
        return None
    with compilable():
        graph = tf.function(fn, autograph=False).get_concrete_function(*args).graph
    for operation in graph.get_operations():
        if operation.type in _FACTORIZATIONS and operation.inputs[0].shape.rank:
            rows = operation.inputs[0].shape[-1]
            if rows is not None and rows >= _LARGE_MATRIX:
                return operation.type, int(rows)
    return None


def random_algorithm() -> str:
    """Returns the fastest algorithm of `tf.random` for the code that is being traced now."""
    return "threefry" if in_xla_context() else "philox"


def num_parallel_programs() -> int:
    """Returns how many compiled programs are best run at a time, each in a thread of its own.

    A compiled program uses about one core of a CPU, and all of an accelerator.
    """
    if on_accelerator():
        return 1
    affinity = getattr(os, "sched_getaffinity", None)  # not on all systems
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def traced(fn: Callable[..., Any], jit_compile: bool | None = None) -> Callable[..., Any]:
    """Returns `fn` as a graph for each signature, compiled by XLA if wanted.

    TensorFlow counts the traces of a function by its source line, and warns of many. A function
    that each run makes anew is traced once a run. Its concrete functions are not counted, and those
    for tensors are found by shape, dtype and device: TensorFlow takes longer to find them than a
    small program takes to run.
    """
    graph, found = tf.function(fn, autograph=False, jit_compile=jit_compile), dict[Any, Any]()

    def call(*args: Any) -> Any:
        is_simple = args and tf.executing_eagerly() and all(isinstance(x, tf.Tensor) for x in args)
        key = tuple((x.shape, x.dtype, x.device) for x in args) if is_simple else None
        if (concrete := found.get(key)) is None:
            with compilable():
                concrete = graph.get_concrete_function(*args)
            if is_simple:
                found[key] = concrete
        with full_precision():
            return concrete(*args)

    return call


def by_blocks(
    program: Callable[[tf.Tensor], Any], rows: np.ndarray, size: int, dtype: tf.DType
) -> list[np.ndarray]:
    """Returns the results `[size, ...]` of a program at blocks of rows, put together.

    All blocks have one shape, so the program is traced once. The last is filled with its last row.
    """
    places = np.minimum(np.arange(len(rows) + -len(rows) % size), len(rows) - 1).reshape(-1, size)
    found = zip(*(program(tf.constant(rows[block], dtype)) for block in places), strict=True)
    return [np.concatenate(parts)[: len(rows)] for parts in found]


def nest_by_blocks(program: Callable[[tf.Tensor], Any], x: np.ndarray, size: int, like: Any) -> Any:
    """Returns the nest of a program's results `[size, ...]` at vectors x, `[..., D]`.

    The arrays have the leading axes of x, and the nest has the structure of `like`.
    """
    rows = x.reshape(-1, x.shape[-1])
    found = by_blocks(lambda block: tf.nest.flatten(program(block)), rows, size, x.dtype)
    found = [y.reshape([*x.shape[:-1], *y.shape[1:]]) for y in found]
    return tf.nest.pack_sequence_as(like, found)


def traced_once(fn: Callable[..., Any], jit_compile: bool | None = None) -> Callable[..., Any]:
    """Returns `fn` as a graph for the shapes of its first call, which all later calls must have.

    To look up the graph takes `traced` as long as a small compiled program takes to run.
    """
    graph, found = tf.function(fn, autograph=False, jit_compile=jit_compile), []

    def call(*args: Any) -> Any:
        if not found:
            with compilable():
                found.append(graph.get_concrete_function(*args))
        with full_precision():
            return found[0](*args)

    return call


def fused(fn: Callable[[], Any], num_entries: int) -> Callable[[], Any]:
    """Returns `fn`, many operations on so many entries, compiled by XLA where that saves time.

    In a graph that XLA does not compile, each operation writes its result to memory. XLA makes one
    operation of them. Eager code is left as it is, because each call would compile it again.
    """
    if num_entries < _WORTH_FUSING or in_xla_context() or tf.executing_eagerly():
        return fn
    return tf.function(fn, autograph=False, jit_compile=True)


@contextlib.contextmanager
def compilable() -> Generator[None]:
    """Traces code as XLA can compile it, once for all values of its arguments.

    The operators that `tf.debugging.enable_check_numerics` adds are left out: XLA cannot compile
    them, and they refuse infinite numbers that are masked later.

    `tf.vectorized_map`, by which joint distributions are batched automatically, does not make a
    function of its own. The gradient of that function takes shapes from it, and XLA would take all
    that goes into it for constants, and compile the program again for each of their values.
    """
    scope = context.context()
    before, scope.invoking_op_callbacks = scope.invoking_op_callbacks, True
    token = _maps_are_inlined.set(True)
    try:
        yield
    finally:
        scope.invoking_op_callbacks = before
        _maps_are_inlined.reset(token)


def _makes_function(in_xla: Callable[[], bool]) -> Callable[[], bool]:
    """Returns whether `tf.vectorized_map` shall make a function, as TensorFlow asks `in_xla`."""
    return lambda: not _maps_are_inlined.get() and in_xla()


vectorized_map._is_under_xla_context = _makes_function(vectorized_map._is_under_xla_context)  # noqa: SLF001


@contextlib.contextmanager
def full_precision() -> Generator[None]:
    """Runs and compiles products of `float32` matrices in that precision on GPUs, too.

    There TensorFlow rounds both factors to 11 bits (TensorFloat-32) unless it is told otherwise.
    A log posterior of many rows would then be constant over a good part of a standard deviation:
    parameters near 1 could move by 1/1024 only. The setting is one for all threads, so the last
    that leaves restores it.
    """
    _precision.enter()
    try:
        yield
    finally:
        _precision.leave()


class _Precision:
    """TensorFlow's setting of TensorFloat-32, off while a thread needs that."""

    def __init__(self) -> None:
        self._lock, self._num_inside, self._before = threading.Lock(), 0, True

    def enter(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                self._before = tf.config.experimental.tensor_float_32_execution_enabled()
                tf.config.experimental.enable_tensor_float_32_execution(False)
            self._num_inside += 1

    def leave(self) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                tf.config.experimental.enable_tensor_float_32_execution(self._before)


_precision = _Precision()


def steps_of_block(stride: Any = None) -> int:
    """Returns how many steps of a chain the code that is being traced now best takes at a time.

    After each turn of a loop of unknown length a GPU tells the host whether there is another, which
    takes as long as a small step. So it is asked after a block of steps.

    Args:
      stride: a number of steps that blocks must divide; a tensor is divided by 1 alone.
    """
    if tf.is_tensor(stride) or not in_xla_context() or device_kind() != "GPU":
        return 1
    return max(n for n in range(1, _LONGEST_BLOCK + 1) if stride is None or stride % n == 0)


def while_loop(
    condition: Callable[..., tf.Tensor], body: Callable[..., Any], start: Any, block: int = 1
) -> Any:
    """Returns `tf.while_loop` whose condition is asked after each block of turns.

    With a block above 1, `body` is called when the condition is false, too.
    """

    def turns(*carried: Any) -> Any:
        carried = tf.constant(0), *carried
        return tf.while_loop(lambda i, *_: i < block, lambda i, *x: (i + 1, *body(*x)), carried)[1:]

    return tf.while_loop(condition, turns if block > 1 else body, start, parallel_iterations=1)


def materialized(x: tf.Tensor) -> tf.Tensor:
    """Returns a tensor `x`, of rank 1 or more, that XLA on a CPU computes once and stores.

    It fuses `x` into the loops that read it, and so may compute an entry again for each
    reader. It stores what enters a loop. The loop here never runs, which XLA cannot know. Elsewhere
    this returns x itself, and everywhere if x is not floating.
    """
    if not compiles_for_cpu() or not x.dtype.is_floating:
        return x
    first = (0,) * x.shape.rank
    (result,) = tf.while_loop(lambda x: x[first] > math.inf, lambda x: [x + 1], [x])
    return result


@tf.custom_gradient
def with_materialized_gradient(x: tf.Tensor) -> Any:
    """Returns a matrix `x`; the gradient with respect to it is `materialized`."""

    @tf.custom_gradient
    def gradient(upstream: tf.Tensor) -> Any:
        return materialized(upstream), lambda second: second

    return tf.identity(x), gradient


@tf.custom_gradient
def sum_last_axis(x: tf.Tensor) -> Any:
    """Returns the sums over the last axis, which should be long.

    XLA materialises the input of a reduction but fuses additions, so adding eight slices first
    stores an eighth of it.
    """
    parts = tf.split(x[..., : x.shape[-1] // 8 * 8], 8, axis=-1)
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    total = tf.reduce_sum(parts[0], axis=-1)
    if x.shape[-1] % 8:
        total += tf.reduce_sum(x[..., x.shape[-1] // 8 * 8 :], axis=-1)
    # The gradient of slices would be a sum of padded arrays.
    return total, lambda upstream: tf.broadcast_to(upstream[..., tf.newaxis], tf.shape(x))


def write_slot(ring: tf.Variable, slot: tf.Tensor, value: tf.Tensor, is_kept: tf.Tensor) -> None:
    """Assigns `ring[slot] = value` in place if `is_kept`; otherwise may leave any value there."""
    if not in_xla_context():  # XLA's portable scatter takes 20 times as long as its update
        ring.scatter_update(tf.IndexedSlices(value[tf.newaxis], slot[tf.newaxis]))
        return

    def write(ring: tf.Tensor) -> tf.Tensor:
        start = [tf.cast(slot, tf.int32), *[0] * value.shape.rank]
        return xla.dynamic_update_slice(ring, value[tf.newaxis], start)

    is_small = value.shape.num_elements() < _WORTH_A_LOOP
    if is_small or on_accelerator():
        is_single = ring.shape[0] == 1  # then the old contents need not be read
        ring.assign(value[tf.newaxis] if is_single else write(ring.read_value()))
        return
    old = ring.read_value()
    # A loop of one turn or none: for a branch, XLA would copy the ring.
    _, new = tf.while_loop(
        lambda is_left, _: is_left,
        lambda _, ring: (tf.constant(False), write(ring)),
        (is_kept, old),
    )
    ring.assign(new)
