"""Makes XLA compute the gradient with respect to a column of outputs once, not for every weight.

The gradient of a layer with a single output, such as a logistic regression, is the product of its
inputs and the gradient with respect to its outputs, which is a column. On a CPU XLA fuses the two
into one loop, which computes the column again for every weight.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.keras.model import internals


def with_stored_gradient(outputs: Any) -> Any:
    """Returns a model's outputs, such that XLA on a CPU stores the gradients of columns."""
    if not xla.compiles_for_cpu():
        return outputs
    return keras.tree.map_structure(lambda y: _stored_column(y) if _is_column(y) else y, outputs)


def _stored_column(y: tf.Tensor) -> tf.Tensor:
    # A column has no mask, so its only mark is the logits.
    marks = tf.nest.map_structure(xla.with_materialized_gradient, internals.marks(y))
    return internals.with_marks(xla.with_materialized_gradient(y), marks)


def _is_column(y: tf.Tensor) -> bool:
    return (
        y.dtype.is_floating
        and y.shape.rank == 2
        and y.shape[1] == 1
        and y.shape[0] is not None
        and y.shape[0] > 0
        and internals.mask(y) is None
        # For a plain sigmoid, Keras' crossentropies look up the logits in the graph.
        and (any(internals.marks(y).values()) or y.op.type not in ("Sigmoid", "Softmax"))
    )
