"""Maps over examples, vectorized where TensorFlow's operations allow it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal import xla

_UNSAFE = (
    "oneDNN fails in the vectorized form of the operation {!r}. Programs and models compiled with "
    "jit_compile=True do not use it."
)
_ONEDNN_DTYPES = (tf.float32, tf.bfloat16, tf.float16)


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
