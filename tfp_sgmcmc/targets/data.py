"""The data of a target, and counts of them, checked before anything is computed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def as_tensor(x: Any, dtype: Any) -> tf.Tensor:
    """Returns `x` as a tensor, cast to `dtype` where it is floating and `dtype` is not None."""
    try:
        x = tf.convert_to_tensor(x)
    except (TypeError, ValueError) as error:
        raise TypeError(f"data holds a {type(x).__name__} that is not an array: {error}") from error
    if not (x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool):
        raise TypeError(f"data holds an array of dtype {x.dtype.name}; numbers are expected.")
    return tf.cast(x, dtype) if dtype is not None and x.dtype.is_floating else x


def leading_axis(data: Any) -> int:
    """Returns N, the size of the leading axis that all leaves of `data` have."""
    leaves = tf.nest.flatten(data)
    shapes = [tuple(leaf.shape) for leaf in leaves]
    if not leaves or any(len(shape) == 0 for shape in shapes):
        raise ValueError(
            f"data has arrays of shapes {shapes}; one leading axis of N examples is expected."
        )
    sizes = {shape[0] for shape in shapes}
    if len(sizes) > 1:
        raise ValueError(
            f"data has arrays of shapes {shapes}: their leading axes, the number of examples N, "
            "must be equal."
        )
    (size,) = sizes
    if size == 0:
        raise ValueError(f"data is empty: its arrays have shapes {shapes}.")
    return size


def explain_failure(name: str, error: Exception, state: Any, batch: Any = ()) -> None:
    """Raises an error that says what a user's function was given, where it is likely the cause.

    Args:
      name: of the function.
      error: what it raised.
      state: where.
      batch: examples that it was called with; none for a prior.
    """
    parts, leaves = tf.nest.flatten(state), tf.nest.flatten(batch)
    dtype, dtypes = parts[0].dtype.name, sorted({x.dtype.name for x in leaves})
    if leaves and dtypes != [dtype]:
        raise TypeError(
            f"{name} failed for a state of dtype {dtype} and data of {dtypes}. If it mixes them: "
            f"dtype='{dtype}' casts floating data; integer ones are never cast for you. It said: "
            f"{error}"
        ) from error
    if isinstance(error, tf.errors.InvalidArgumentError):
        shapes = ", ".join(str(x.shape) for x in parts)
        examples = f" and examples of {', '.join(str(x.shape) for x in leaves)}" if leaves else ""
        raise ValueError(
            f"{name} failed for a state of shapes {shapes}{examples}. It said: {error.message}"
        ) from error


def assert_finite(x: tf.Tensor) -> None:
    """Raises for NaN or infinity; looks at slices, so as not to take the memory of `x` again."""
    if not x.dtype.is_floating:
        return
    rows = max(1, 2**22 // max(1, x.shape[1:].num_elements()))
    for start in range(0, x.shape[0], rows):
        finite = tf.math.is_finite(x[start : start + rows])
        if not tf.reduce_all(finite):
            row = start + int(tf.where(~finite)[0, 0])
            raise ValueError(
                f"data has a NaN or infinite entry in an array of shape {tuple(x.shape)}, first "
                f"in example {row}; remove or impute it."
            )
