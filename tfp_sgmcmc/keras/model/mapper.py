"""Maps a function over chains or examples: vectorized where possible, otherwise in a loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.vectorize import one_by_one, unsafe_operation, without_log
from tfp_sgmcmc.keras.model import internals

_NOT_TWICE = (
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D,
)


class Mapper:
    """Maps functions by `tf.vectorized_map`, or by a loop where vectorization is not correct.

    It loops for layers that TensorFlow does not vectorize correctly (see
    `not_vectorizable`), for operations whose vectorized form stops the process (see
    `unsafe_operation`), and for loops and branches that TensorFlow cannot vectorize at all.

    Args:
      model: a built model, which the functions evaluate.
      message: a warning of the first loop, with a field `{reason}`. None gives no warning.
    """

    def __init__(self, model: keras.Model, message: str | None = None):
        self._model, self._message = model, message
        self._unsafe: dict[Any, str | None] = {}  # operations by what decides whether they are safe

    def __call__(
        self,
        fn: Callable[[Any], Any],
        elements: Any,
        num_rows: Any = None,
        maps_examples: bool = False,
    ) -> Any:
        """Returns `fn` of each element of a nest with leaves `[n, ...]`, stacked.

        `num_rows` is the number of rows that `fn` reads besides its element, if it is known.
        `maps_examples` states whether `fn` maps over them.
        """
        try:
            reason = self._reason(fn, elements, num_rows, maps_examples)
            if reason is None:
                with without_log():
                    return tf.vectorized_map(fn, elements)
        except Exception as error:  # if `fn` itself raises, the loop below raises the same
            reason = (
                f"TensorFlow reports: {(str(error).strip().splitlines() or [''])[-1].strip()[:200]}"
            )
        found = one_by_one(fn, elements)
        if self._message is not None:
            warnings.warn(self._message.format(reason=reason), stacklevel=2)
            self._message = None
        return found

    def _reason(
        self, fn: Callable[[Any], Any], elements: Any, num_rows: Any, maps_examples: bool
    ) -> str | None:
        """Returns why the map must be a loop, or None."""
        layer = not_vectorizable(self._model, maps_examples and xla.in_xla_context())
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


def not_vectorizable(model: keras.Model, twice_in_xla: bool = False) -> keras.Layer | None:
    """Returns a layer that TensorFlow does not vectorize correctly, or None.

    These are convolutions in groups: if only the kernel is mapped, the gradient with respect to it
    is wrong, as if there were a single group; if the inputs are mapped, XLA cannot compile the
    result. The loop of a recurrent layer over masked steps fails at run time. XLA cannot compile a
    transposed or depthwise convolution that is mapped over both chains and examples, which
    `twice_in_xla` indicates.
    """
    for layer in internals.layers(model):
        if (
            (isinstance(layer, internals.CONVOLUTIONS) and layer.groups > 1)
            or (isinstance(layer, keras.layers.RNN) and not layer.unroll)
            or (twice_in_xla and isinstance(layer, _NOT_TWICE))
        ):
            return layer
    return None
