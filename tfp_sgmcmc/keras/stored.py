"""Gradients that XLA computes once, where it would do so for every weight that they reach.

The gradient of a layer with a single output, such as that of a logistic regression, is the product
of its inputs and the gradient by its outputs. On a CPU XLA makes one loop of both, which computes
the latter, a column, again for each row of the former.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.keras import losses


def with_stored_gradient(outputs: Any) -> Any:
    """Returns a model's outputs, those that are columns with a gradient that is stored."""
    if not random.in_xla_context() or tf.config.list_logical_devices("GPU"):
        return outputs
    return keras.tree.map_structure(lambda y: _stored_column(y) if _is_column(y) else y, outputs)


def _stored_column(y: tf.Tensor) -> tf.Tensor:
    marks = tf.nest.map_structure(_passed, losses.marks(y))  # logits
    return losses.with_marks(_passed(y), marks)


def _is_column(y: tf.Tensor) -> bool:
    return (
        y.dtype.is_floating
        and y.shape.rank == 2
        and y.shape[1] == 1
        and y.shape[0] is not None
        and y.shape[0] > 0
        and losses.mask(y) is None
        # Of a plain sigmoid Keras' crossentropies look up the logits in the graph.
        and (any(losses.marks(y).values()) or y.op.type not in ("Sigmoid", "Softmax"))
    )


@tf.custom_gradient
def _passed(y: tf.Tensor) -> Any:
    return tf.identity(y), _stored


@tf.custom_gradient
def _stored(x: tf.Tensor) -> Any:
    # What enters a loop is stored. This one takes no turn, which XLA does not know.
    (result,) = tf.while_loop(lambda x: x[0, 0] > math.inf, lambda x: [x + 1], [x])
    return result, lambda upstream: upstream
