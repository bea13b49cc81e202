"""Gradients that XLA computes once, where it would do so for every weight that they reach.

The gradient of a layer with a single output, such as that of a logistic regression, is the product
of its inputs and the gradient by its outputs. On a CPU XLA makes one loop of both, which computes
the latter, a column, again for each row of the former.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc import xla
from tfp_sgmcmc.keras.model import internals


def with_stored_gradient(outputs: Any) -> Any:
    """Returns a model's outputs, those that are columns with a gradient that is stored."""
    if not xla.compiles_for_cpu():
        return outputs
    return keras.tree.map_structure(lambda y: _stored_column(y) if _is_column(y) else y, outputs)


def _stored_column(y: tf.Tensor) -> tf.Tensor:
    marks = tf.nest.map_structure(xla.with_materialized_gradient, internals.marks(y))  # logits
    return internals.with_marks(xla.with_materialized_gradient(y), marks)


def _is_column(y: tf.Tensor) -> bool:
    return (
        y.dtype.is_floating
        and y.shape.rank == 2
        and y.shape[1] == 1
        and y.shape[0] is not None
        and y.shape[0] > 0
        and internals.mask(y) is None
        # Of a plain sigmoid Keras' crossentropies look up the logits in the graph.
        and (any(internals.marks(y).values()) or y.op.type not in ("Sigmoid", "Softmax"))
    )
