"""The moving statistics of BatchNormalization, computed anew for given weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.posterior.batches import Batches, num_rows, tensors


class MovingStatistics:
    """Computes moving means and variances as averages over the batches of data.

    The average weights each batch by its rows. It takes the place of the exponential average that
    training leaves, and is exact for given weights. The model stays as it is.

    Attributes:
      variables: the moving means and variances of the layers that update them in training.

    Args:
      model: a built model.

    Raises:
      ValueError: a layer renormalises, so that its outputs depend on its moving statistics.
    """

    def __init__(self, model: keras.Model):
        normalizations = [
            layer
            for layer in internals.layers(model)
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        ]
        for layer in normalizations:
            if layer.renorm:
                raise ValueError(
                    f"{layer.path} must have renorm=False, so that its moving statistics can be "
                    "computed for other weights. Received: renorm=True."
                )
        self._model, self._trainable = model, list(model.trainable_variables)
        self.variables: list[keras.Variable] = []
        self._shares: list[float] = []  # of a batch in a new value
        for layer in normalizations:
            self.variables += [layer.moving_mean, layer.moving_variance]
            self._shares += [1 - layer.momentum] * 2
        self._of_batch = tf.function(self._traced, autograph=False)

    def __call__(self, samples: Sequence[np.ndarray], data: Batches) -> list[np.ndarray]:
        """Returns the statistics `[S, ...]` for samples `[S, ...]` of the trainable variables."""
        num_samples = len(samples[0])
        totals = [np.zeros([num_samples, *v.shape]) for v in self.variables]
        rows = 0
        for block, tick in data.blocks():
            for number, (x, _, _) in enumerate(block):
                more, x = num_rows(x), tensors(x)
                rows += more
                for s in range(num_samples):
                    found = self._of_batch([values[s] for values in samples], x)
                    for total, value in zip(totals, found, strict=True):
                        total[s] += more * value.numpy()
                tick((number + 1) / len(block))
        pairs = zip(totals, self.variables, strict=True)
        return [(total / rows).astype(v.dtype) for total, v in pairs]

    def _traced(self, values: list[tf.Tensor], x: Any) -> list[tf.Tensor]:
        # From a value of zero, a new value is the batch's statistic times its share.
        zeros = [tf.zeros(v.shape, v.dtype) for v in self.variables]
        variables = [*self._trainable, *self.variables]
        updates = internals.forward(self._model, variables, [*values, *zeros], x, training=True)
        places = {id(v): i for i, v in enumerate(self._model.non_trainable_variables)}
        found = [updates.updates[places[id(v)]] for v in self.variables]
        return [x / share for x, share in zip(found, self._shares, strict=True)]
