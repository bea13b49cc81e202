"""Maps a function over chains or examples: all at once where possible, else one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.keras.model import internals


def is_vectorizable(model: keras.Model) -> bool:
    """Returns whether TensorFlow vectorizes the model correctly.

    For a convolution in groups, it does not. If only the kernel is mapped, the gradient with
    respect to it is wrong, as if there were a single group. If the inputs are mapped, XLA cannot
    compile the result. The loop of a recurrent layer over masked steps fails when it runs.
    """
    return not any(
        (isinstance(layer, internals.CONVOLUTIONS) and layer.groups > 1)
        or (isinstance(layer, keras.layers.RNN) and not layer.unroll)
        for layer in internals.layers(model)
    )


def mapped(fn: Callable[[Any], Any], elements: Any, vectorize: bool = True) -> Any:
    """Maps by `tf.vectorized_map`, or by a loop if vectorization is disabled or unsupported.

    It is unsupported if a layer has a loop or a branch that TensorFlow does not vectorize.
    `elements` is a nest with leaves `[n, ...]`.
    """
    if vectorize:
        # If `fn` itself raises, the loop below raises the same.
        with contextlib.suppress(Exception), _without_log():
            return tf.vectorized_map(fn, elements)
    first = fn(tf.nest.map_structure(lambda x: x[0], elements))
    signature = tf.nest.map_structure(tf.TensorSpec.from_tensor, first)
    return tf.map_fn(fn, elements, fn_output_signature=signature, parallel_iterations=1)


@contextlib.contextmanager
def _without_log() -> Generator[None]:
    """Silences TensorFlow, which logs the whole graph of what it cannot vectorize."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("CRITICAL")
    try:
        yield
    finally:
        logger.setLevel(level)
