"""Weights in 8 bits: which variables are stored so, their scales, and conversions."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

MODE = "int8"
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def axes_of_scale(shape: tuple[int, ...], dtype: str, is_stacked: bool) -> tuple[int, ...] | None:
    """Returns the axes whose entries share a scale; None if a variable is stored as it is.

    Kernels have a scale for each sample and output channel, which is the last axis, and with one
    output channel (as in a depthwise convolution) the axis before it. Vectors, such as biases, and
    kernels whose scales would serve single entries are stored as they are.

    >>> axes_of_scale((64, 50), "float32", is_stacked=False), axes_of_scale((50,), "float32", False)
    ((0,), None)
    >>> axes_of_scale((30, 3, 3, 8, 1), "float32", is_stacked=True)  # of 30 samples
    (1, 2)

    Args:
      shape: the shape of the variable, with the axis of the samples if it has one.
      dtype: its dtype.
      is_stacked: whether the first axis is the axis of samples.
    """
    first = int(is_stacked)
    rank = len(shape) - first
    last = len(shape) - (2 if rank > 2 and shape[-1] == 1 else 1)
    axes = tuple(range(first, last))
    is_worth_it = rank > 1 and math.prod(shape[a] for a in axes) > 1
    return axes if is_worth_it and dtype in _FLOATS else None


def scale_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the scales of a variable."""
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))


def scale_dtype(dtype: str) -> str:
    """Returns the dtype of the scales, which half precision could not hold."""
    return "float64" if dtype == "float64" else "float32"


def quantize(variable: keras.Variable, axes: tuple[int, ...], config: Any) -> tuple[Any, Any]:
    r"""Returns integers q and scales s, such that \( w \approx q / s \).

    Keras' `AbsMaxQuantizer`, which is the default, takes s = 127 / max |w| over the axes, so that
    the error is at most max |w| / 254 (with Keras' epsilon of 1e-7 added to the maximum).

    Args:
      variable: w.
      axes: the axes whose entries share a scale.
      config: a `keras.quantizers.Int8QuantizationConfig`, whose `weight_quantizer` is used.
    """
    quantizer = getattr(config, "weight_quantizer", None) or keras.quantizers.AbsMaxQuantizer()
    values = keras.ops.cast(variable, scale_dtype(variable.dtype))
    return quantizer(values, axis=axes, to_numpy=True)


def dequantize(quantized: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Returns the weights that integers and scales represent."""
    return tf.cast(quantized, scale.dtype) / scale


def check_mode(mode: Any) -> None:
    """Raises ValueError unless the mode is "int8"."""
    if mode != MODE:
        raise ValueError(
            f'mode must be "{MODE}" for the samples of a posterior, which are then stored with a '
            f"scale for each sample and output channel. Received: {mode!r}."
        )
