"""Checked conversions of the arguments of diagnostics to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State


def real_array(name: str, value: Any) -> np.ndarray:
    """Returns an array of real numbers in double precision; raises TypeError for anything else."""
    try:
        found = np.asarray(value)
        dtype = tf.as_dtype(found.dtype)
        is_real = dtype.is_floating or dtype.is_integer
    except (TypeError, ValueError, NotImplementedError):  # ragged, or a symbolic tensor
        is_real = False
    if not is_real:
        raise TypeError(f"{name} must be an array of real numbers. Received: {value!r:.100}.")
    return found.astype(np.float64, copy=False)


def floating_parts(name: str, nest: State) -> State:
    """Returns a nest of tensors; raises TypeError for a part that is not floating numbers."""

    def convert(x: Any) -> tf.Tensor:
        try:
            x = tf.convert_to_tensor(x)
            is_floating = x.dtype.is_floating
        except (TypeError, ValueError):
            is_floating = False
        if not is_floating:
            raise TypeError(f"{name} must have parts of floating numbers. Received: {x!r:.100}.")
        return x

    if not tf.nest.flatten(nest):
        raise ValueError(f"{name} must have at least one part. Received: {nest!r:.100}.")
    return tf.nest.map_structure(convert, nest)
