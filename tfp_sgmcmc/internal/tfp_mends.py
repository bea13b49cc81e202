"""Mends of three functions of TensorFlow Probability 0.25, for the whole process."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_TFP = "tensorflow_probability.python"


@functools.cache
def mend_tfp() -> None:
    """Applies all mends, once. Values and gradients stay."""
    mend_pad()
    mend_softplus()
    mend_broadcasting()


def mend_pad() -> None:
    """Lets `Pad`, on which `SoftmaxCentered` rests, call `np.reshape(x, newshape=shape)`.

    NumPy 2.4 renamed the argument, and TensorFlow Probability 0.25 uses the former name. Only the
    module of `Pad` sees the difference.
    """
    pad: Any = importlib.import_module(f"{_TFP}.bijectors.pad")
    if "newshape" in inspect.signature(np.reshape).parameters or pad.np is not np:
        return

    def reshape(a: Any, newshape: Any) -> np.ndarray:
        return np.reshape(a, newshape)

    pad.np = types.SimpleNamespace(**{**vars(np), "reshape": reshape})


def mend_softplus() -> None:
    """Makes second derivatives of `Softplus` finite above 88, where in float32 they are NaN.

    The gradient of TensorFlow Probability 0.25 computes exp(x) also where `tf.where` leaves it out.
    From 50 on softplus(x) is x, in float64 too.
    """
    module: Any = importlib.import_module(f"{_TFP}.bijectors.softplus")
    softplus = getattr(module, "_stable_grad_softplus", None)
    if softplus is None:  # another release
        return

    def mended(x: Any) -> tf.Tensor:
        x = tf.convert_to_tensor(x)
        return tf.where(x < 50, softplus(tf.minimum(x, 50)), x)

    module._stable_grad_softplus = mended  # noqa: SLF001


def mend_broadcasting() -> None:
    """Lets XLA compile Hessians of `StudentT`, `NegativeBinomial` and `tfp.math.lbeta` once.

    Their gradients are summed over axes that are computed from shapes by operations. In a second
    derivative XLA takes the parameters for constants that these axes depend on, and compiles the
    program again for each new value of a parameter. Shapes that are known give the axes here.
    """
    module: Any = importlib.import_module(f"{_TFP}.math.generic")
    by_operations = getattr(module, "fix_gradient_for_broadcasting", None)
    if by_operations is None:  # another release
        return

    def mended(primals: Sequence[tf.Tensor], grads: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        shapes = [x.shape for x in primals]
        if not all(shape.is_fully_defined() for shape in shapes):
            return by_operations(primals, grads)
        full = functools.reduce(tf.broadcast_static_shape, shapes)
        return [_summed_to(shape, g, full) for shape, g in zip(shapes, grads, strict=True)]

    module.fix_gradient_for_broadcasting = mended


def _summed_to(shape: tf.TensorShape, grad: tf.Tensor, full: tf.TensorShape) -> tf.Tensor:
    """Returns the sums of `grad`, of shape `full`, over the axes along which `shape` repeats."""
    new = full.rank - shape.rank
    repeated = [new + i for i, size in enumerate(shape) if size != full[new + i]]
    return tf.reshape(tf.reduce_sum(grad, axis=[*range(new), *repeated]), shape)
