"""A function of each chain, or of each example: of all at once, or of one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.keras.model import internals

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)


def is_vectorizable(model: keras.Model) -> bool:
    """Whether what TensorFlow makes of a model by vectorizing it is right.

    Of a convolution in groups, whose kernel is mapped and whose inputs are not, it takes the
    gradient by the kernel as if there were a single group; of one whose inputs are mapped XLA does
    not take what it makes. The loop of a recurrent layer over masked steps fails when it is run.
    """
    return not any(
        (isinstance(layer, _CONVOLUTIONS) and layer.groups > 1)
        or (isinstance(layer, keras.layers.RNN) and not layer.unroll)
        for layer in internals.layers(model)
    )


def mapped(fn: Callable[[Any], Any], elements: Any, vectorize: bool = True) -> Any:
    """`tf.vectorized_map`, and a loop where that is not to be, or cannot be.

    It cannot where a layer has a loop or a branch that TensorFlow does not vectorize.

    Args:
      fn: of one element, a nest of tensors -> a nest of tensors.
      elements: `[n, ...]` a leaf.
      vectorize: whether to try it.
    """
    if vectorize:
        # What `fn` itself raises, the loop raises again.
        with contextlib.suppress(Exception), _without_log():
            return tf.vectorized_map(fn, elements)
    first = fn(tf.nest.map_structure(lambda x: x[0], elements))
    signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, first)
    return tf.map_fn(fn, elements, fn_output_signature=signature, parallel_iterations=1)


@contextlib.contextmanager
def _without_log() -> Generator[None]:
    """TensorFlow logs the whole graph of what it cannot vectorize."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("CRITICAL")
    try:
        yield
    finally:
        logger.setLevel(level)
