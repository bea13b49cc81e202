"""Maps a function over chains or examples: all at once where possible, else one by one."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc import xla
from tfp_sgmcmc.keras.model import internals

_ONEDNN_DTYPES = (tf.float32, tf.bfloat16, tf.float16)


class Mapper:
    """Maps functions by `tf.vectorized_map`, or by a loop where vectorization is not correct.

    A loop is taken for layers that TensorFlow does not vectorize correctly (see
    `not_vectorizable`), for operations whose vectorized form stops the process (see
    `unsafe_operation`), and for loops and branches that TensorFlow cannot vectorize at all.

    Args:
      model: a built model, which the functions evaluate.
      message: None, or the warning that tells once of a loop. Its field `{reason}` is the reason.
    """

    def __init__(self, model: keras.Model, message: str | None = None):
        self._model, self._message = model, message
        self._unsafe: dict[Any, str | None] = {}  # operations by what decides whether they are safe

    def __call__(self, fn: Callable[[Any], Any], elements: Any, num_rows: Any = None) -> Any:
        """Returns `fn` of each element of a nest with leaves `[n, ...]`, stacked.

        `num_rows` is the number of rows that `fn` reads beside its element, if it is known.
        """
        try:
            reason = self._reason(fn, elements, num_rows)
            if reason is None:
                with _without_log():
                    return tf.vectorized_map(fn, elements)
        except Exception as error:  # if `fn` itself raises, the loop below raises the same
            reason = (
                f"TensorFlow says: {(str(error).strip().splitlines() or [''])[-1].strip()[:200]}"
            )
        first = fn(tf.nest.map_structure(lambda x: x[0], elements))
        signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, first)
        if self._message is not None:
            warnings.warn(self._message.format(reason=reason), stacklevel=2)
            self._message = None
        return tf.map_fn(fn, elements, fn_output_signature=signature, parallel_iterations=1)

    def _reason(self, fn: Callable[[Any], Any], elements: Any, num_rows: Any) -> str | None:
        """Returns why the map must be a loop, or None."""
        layer = not_vectorizable(self._model)
        if layer is not None:
            name = type(layer).__name__
            return f"TensorFlow does not vectorize the layer {layer.name!r} ({name}) correctly."
        # Shapes and compiler are the same in each step of an eager run, which traces each step.
        rows = num_rows if isinstance(num_rows, int) else None
        shapes = (tuple(x.shape) for x in tf.nest.flatten(elements))
        key = (xla.in_xla_context(), rows, *shapes)
        if key not in self._unsafe:
            self._unsafe[key] = unsafe_operation(fn, elements)
        operation = self._unsafe[key]
        if operation is None:
            return None
        return (
            f"oneDNN fails in the vectorized form of the operation {operation!r}. Models compiled "
            "with jit_compile=True do not use it."
        )


def not_vectorizable(model: keras.Model) -> keras.Layer | None:
    """Returns a layer that TensorFlow does not vectorize correctly, or None.

    For a convolution in groups, it does not. If only the kernel is mapped, the gradient with
    respect to it is wrong, as if there were a single group. If the inputs are mapped, XLA cannot
    compile the result. The loop of a recurrent layer over masked steps fails when it runs.
    """
    for layer in internals.layers(model):
        if (isinstance(layer, internals.CONVOLUTIONS) and layer.groups > 1) or (
            isinstance(layer, keras.layers.RNN) and not layer.unroll
        ):
            return layer
    return None


def unsafe_operation(fn: Callable[[Any], Any], elements: Any) -> str | None:
    """Returns the name of an operation that must not be vectorized on this device, or None.

    Two operations of oneDNN, which TensorFlow uses on CPUs outside XLA, are at fault. The product
    of `[n, 1, a, b]`, whose n is the mapped axis, with a single matrix reads and writes memory that
    is not its own: values are wrong, or the process dies. A softmax takes at most 5 axes.
    """
    if xla.in_xla_context() or xla.has_accelerator():
        return None
    varies: set[str] = set()  # names of tensors that depend on the element

    def traced(element: Any) -> tuple[()]:
        varies.update(x.name for x in tf.nest.flatten(element))
        fn(element)
        return ()

    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), elements)
    with _without_log():
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
    return all(_may_be_single(matrices) for matrices in (x, y))


def _may_be_single(matrices: tf.Tensor) -> bool:
    """Returns whether a tensor `[..., a, b]` may hold a single matrix."""
    return matrices.shape.rank is None or all(n in (1, None) for n in matrices.shape[:-2])


@contextlib.contextmanager
def _without_log() -> Generator[None]:
    """Silences TensorFlow, which logs the whole graph of what it cannot vectorize."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("CRITICAL")
    try:
        yield
    finally:
        logger.setLevel(level)
