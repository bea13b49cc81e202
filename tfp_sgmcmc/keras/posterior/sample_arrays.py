"""Arrays of samples, in memory or on disk, checked against the variables they are values of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics.weighted import checked_step_sizes
from tfp_sgmcmc.storage.npz import numpy_dtype

_WIDE = ("float32", "float64")  # dtypes of variables whose samples may be in half precision


def checked(
    samples: Sequence[Any], variables: Sequence[keras.Variable], num_chains: int | None
) -> list[Any]:
    """Returns samples in the variables' dtypes, or in half precision.

    Raises:
      TypeError: `samples` is not a sequence of arrays.
      ValueError: the samples do not fit the variables, or NumPy arrays are not finite.
    """
    if isinstance(samples, np.ndarray | str) or not isinstance(samples, Sequence):
        raise TypeError(
            "samples must be a list of arrays, one for each variable. Received: a "
            f"{type(samples).__name__}."
        )
    for values in samples:
        if not hasattr(values, "shape") or not hasattr(values, "dtype"):
            raise TypeError(
                "samples must be a list of arrays, one for each variable. Received: a list with a "
                f"{type(values).__name__}."
            )
    if len(samples) != len(variables) or not samples:
        raise ValueError(
            f"samples must have one array for each of the {len(variables)} variables, and at least "
            f"one. Received: {len(samples)} arrays."
        )
    length = samples[0].shape[0] if samples[0].shape else 0
    chains = [] if num_chains is None else [num_chains]
    arrays = []
    for variable, values in zip(variables, samples, strict=True):
        dtype = numpy_dtype(variable.dtype)
        if dtype.itemsize < 4 and values.dtype == np.float32:
            values = _Narrowed(values, dtype)
        expected = (max(length, 1), *chains, *variable.shape)
        is_half = np.dtype(values.dtype) in half_precisions() and dtype.name in _WIDE
        if tuple(values.shape) != expected or not (values.dtype == dtype or is_half):
            raise ValueError(
                f"The samples of {variable.path} must be {dtype} of shape {expected}. Received: "
                f"{values.dtype} of shape {tuple(values.shape)}."
            )
        if isinstance(values, np.ndarray) and not _is_finite(values):
            raise ValueError(
                f"The samples of {variable.path} must be finite. Received: NaN or infinity."
            )
        arrays.append(values)
    return arrays


def half_precisions() -> tuple[np.dtype, ...]:
    """Returns the dtypes of half precision."""
    return numpy_dtype("float16"), numpy_dtype("bfloat16")


def in_half_precision(
    samples: Sequence[Any], variables: Sequence[keras.Variable], name: str
) -> list[Any]:
    """Returns samples of variables of floating dtype in the dtype `name`, and others as they are.

    Raises:
      ValueError: a sample is too large for this dtype.
    """
    dtype, narrow = numpy_dtype(name), []
    for variable, values in zip(variables, samples, strict=True):
        if variable.dtype not in _WIDE:
            narrow.append(values)
            continue
        with np.errstate(over="ignore"):
            narrow.append(np.asarray(values[:]).astype(dtype))
        if not _is_finite(narrow[-1]):
            raise ValueError(
                f"The samples of {variable.path} must be at most {tf.as_dtype(name).max} in "
                f"magnitude for {name}. Received: larger ones."
            )
    return narrow


def checked_weights(weights: Any, num_kept: int) -> np.ndarray | None:
    """Returns weights `[num_kept]` in double precision, or None.

    Raises:
      TypeError: they are not numbers.
      ValueError: they are not finite, negative, all zero, or not `num_kept` of them.
    """
    if weights is None:
        return None
    weights = checked_step_sizes(weights, "weights")
    if weights.shape != (num_kept,):
        raise ValueError(
            f"weights must have shape [{num_kept}], one for each sample. Received: shape "
            f"{list(weights.shape)}."
        )
    return weights


def _is_finite(values: np.ndarray) -> bool:
    """Returns whether all values are finite, without an array of their number if they are."""
    with np.errstate(all="ignore"):
        total = values.sum(dtype=np.float64)
    return bool(np.isfinite(total)) or bool(np.isfinite(values).all())


class _Narrowed:
    """Half-precision samples that are stored in single precision, as zarr has no bfloat16."""

    def __init__(self, values: Any, dtype: np.dtype):
        self._values, self.shape, self.dtype = values, values.shape, dtype

    def __getitem__(self, item: Any) -> np.ndarray:
        return np.asarray(self._values[item]).astype(self.dtype)
