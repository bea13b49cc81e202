"""Arrays of all training examples, as `fit` takes them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model.internals import map_arrays
from tfp_sgmcmc.targets.data import as_tensor, leading_axis


def training_arrays(x: Any, y: Any, sample_weight: Any) -> tuple[tuple[Any, Any, Any], int]:
    """Returns `(x, y, sample_weight)` as nests of tensors `[N, ...]`, and N.

    Floating arrays get Keras' `floatx`. y and weights can be None, as a whole or at some places of
    their nests.

    Raises:
      TypeError: a leaf is not an array of numbers.
      ValueError: unequal leading axes, a nest without arrays, or weights that are not finite.
    """
    nests = []
    for name, nest in {"x": x, "y": y, "sample_weight": sample_weight}.items():
        has_arrays = any(a is not None for a in keras.tree.flatten(nest))
        if not has_arrays and (name == "x" or nest is not None):
            raise ValueError(
                f"{name} must be an array [N, ...], or a nest of such arrays. Received: {nest!r}."
            )
        nests.append(map_arrays(lambda a, n=name: as_tensor(a, keras.config.floatx(), n), nest))
    for weights in keras.tree.flatten(nests[2]):
        if weights is not None and not np.all(np.isfinite(tf.cast(weights, tf.float64))):
            raise ValueError("sample_weight must have finite entries. Received: NaN or infinity.")
    found = [a for a in keras.tree.flatten(nests) if a is not None]
    return tuple(nests), leading_axis(found)
