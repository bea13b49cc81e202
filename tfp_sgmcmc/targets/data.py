"""The data of a target, checked before anything is computed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def as_tensor(x: Any, dtype: Any) -> tf.Tensor:
    """Returns `x` as a tensor, cast to `dtype` if it is floating and `dtype` is not None."""
    try:
        x = tf.convert_to_tensor(x)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"data must hold arrays. Received: a {type(x).__name__}: {error}"
        ) from error
    if not (x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool):
        raise TypeError(f"data must hold numbers. Received: an array of dtype {x.dtype.name}.")
    return tf.cast(x, dtype) if dtype is not None and x.dtype.is_floating else x


def leading_axis(data: Any) -> int:
    """Returns N, the size of the leading axis of all leaves of `data`."""
    shapes = [tuple(leaf.shape) for leaf in tf.nest.flatten(data)]
    sizes = {shape[:1] for shape in shapes}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            "data must have arrays with leading axes of N examples, which must be equal. "
            f"Received: shapes {shapes}."
        )
    ((size,),) = sizes
    if size == 0:
        raise ValueError(f"data must not be empty. Received: shapes {shapes}.")
    return size


def assert_finite(x: tf.Tensor) -> None:
    """Raises ValueError for NaN or infinity; works in slices to save memory."""
    if not x.dtype.is_floating:
        return
    rows = max(1, 2**22 // max(1, x.shape[1:].num_elements()))
    for start in range(0, x.shape[0], rows):
        finite = tf.math.is_finite(x[start : start + rows])
        if not tf.reduce_all(finite):
            row = start + int(tf.where(~finite)[0, 0])
            raise ValueError(
                f"data must be finite. Received: an array of shape {tuple(x.shape)} with a NaN or "
                f"infinite entry, first in example {row}. Remove or impute it."
            )
