"""Repairs `tfp.bijectors.Pad` for NumPy 2.4, without which a Dirichlet prior has no bijector."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import Any

import numpy as np


def mend_pad() -> None:
    """Lets `Pad`, on which `SoftmaxCentered` rests, call `np.reshape(x, newshape=shape)`.

    NumPy 2.4 renamed the argument, and TensorFlow Probability 0.25 uses the former name. Only the
    module of `Pad` sees the difference.
    """
    pad: Any = importlib.import_module("tensorflow_probability.python.bijectors.pad")
    if "newshape" in inspect.signature(np.reshape).parameters or pad.np is not np:
        return

    def reshape(a: Any, newshape: Any) -> np.ndarray:
        return np.reshape(a, newshape)

    pad.np = types.SimpleNamespace(**{**vars(np), "reshape": reshape})
