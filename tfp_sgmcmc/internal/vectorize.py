"""Maps over examples, vectorized where TensorFlow's operations allow it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal import xla

_ONEDNN_DTYPES = (tf.float32, tf.bfloat16, tf.float16)


@tf.autograph.experimental.do_not_convert
def map_examples(fn: Callable[[Any], Any], elements: Any) -> Any:
    """Maps `fn` over the elements of a nest with leaves `[n, ...]`, and stacks the results.

    It calls `tf.vectorized_map`, or, with a warning, a loop if an operation would fail in it (see
    `unsafe_operation`). A single element, such as a series, is given to `fn` as it is.
    """
    if {x.shape[0] for x in tf.nest.flatten(elements)} == {1}:
        found = fn(tf.nest.map_structure(lambda x: x[0], elements))
        return tf.nest.map_structure(lambda y: y[tf.newaxis], found)
    operation = unsafe_operation(fn, elements)
    if operation is None and tf.executing_eagerly():
        # In a graph, because TensorFlow makes a function for each eager call, and warns of many.
        return xla.traced(lambda x: tf.vectorized_map(fn, x))(elements)
    if operation is None:
        return tf.vectorized_map(fn, elements)
    warnings.warn(
        "The scores of single examples are computed one after another, because oneDNN fails in the "
        f"vectorized form of the operation {operation!r}. Programs compiled with jit_compile=True "
        "do not use it.",
        stacklevel=2,
    )
    return one_by_one(fn, elements)


def one_by_one(fn: Callable[[Any], Any], elements: Any) -> Any:
    """Maps `fn` over the elements as `map_examples`, in a loop."""
    first = fn(tf.nest.map_structure(lambda x: x[0], elements))
    signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, first)
    return tf.map_fn(fn, elements, fn_output_signature=signature, parallel_iterations=1)


def unsafe_operation(fn: Callable[[Any], Any], elements: Any) -> str | None:
    """Returns the name of an operation that must not be vectorized on this device, or None.

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
                return operation.name
    for function in graph.as_graph_def().library.function:  # bodies of loops and branches
        for node in function.node_def:
            is_product = node.op.startswith("BatchMatMulV")
            if is_product and tf.as_dtype(node.attr["T"].type) in _ONEDNN_DTYPES:
                return node.name
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
