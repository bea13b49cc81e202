"""Batches for `fit` on several hosts, whose rows are shared among the replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.data.independent_batches import IndependentBatches
from tfp_sgmcmc.keras.data.resident_data import ResidentData
from tfp_sgmcmc.keras.model import internals


class WorkerBatches(internals.DataAdapter):
    r"""Batches for `fit` under `tf.distribute.MultiWorkerMirroredStrategy`.

    Keras 3 fails there with data of any other kind, before it calls a callback ("Attempt to convert
    a value (PerReplica...) with an unsupported type"). These data go to `fit` and to its
    `validation_data` in place of arrays. Every worker makes the same batches, and of the B rows of
    a batch replica r of R takes the rows \( \lfloor r B / R \rfloor, \dots, \lfloor (r + 1) B / R
    \rfloor - 1 \). So the chain equals that of one process, up to the rounding of sums. Workers do
    not ask each other at each step whether rows are left, as those of `tf.data` do.

    In one process, `fit` takes the whole batches, so that the same script runs there as well.

    Examples:
      >>> import numpy as np
      >>> x, y = np.arange(100.0), np.arange(100.0) > 50
      >>> batches = WorkerBatches(IndependentBatches(x, y, batch_size=20, seed=0))
      >>> batches.num_batches
      5

      On each of several hosts, with the variable TF_CONFIG that TensorFlow's tutorials describe:

      `strategy = tf.distribute.MultiWorkerMirroredStrategy()`, the model in `strategy.scope()`, and
      `model.fit(WorkerBatches(IndependentBatches(x, y, batch_size=500)), callbacks=[sampler])`.

    Args:
      data: `IndependentBatches`, or another `keras.utils.PyDataset` with a length. Batch i must be
        the same on all workers. Batches of a `PyDataset` come in their order, without shuffling.

    Raises:
      TypeError: other data.
      ValueError: resident data, or data without a length.
    """

    def __init__(self, data: keras.utils.PyDataset):
        if isinstance(data, ResidentData):
            raise ValueError(
                "data must come in batches, because a model on several replicas cannot take "
                "resident data. Received: resident data. Pass IndependentBatches(x, y, batch_size)."
            )
        if not isinstance(data, keras.utils.PyDataset):
            raise TypeError(
                "data must be IndependentBatches or another keras.utils.PyDataset. Received: a "
                f"{type(data).__name__}."
            )
        try:
            found = data.num_batches
        except NotImplementedError:
            found = None
        if found is None:
            raise ValueError(
                "data must have a length, the number of batches of an epoch. Received: a "
                f"{type(data).__name__} without one."
            )
        self.data = data

    # What Keras asks of data that it takes as they are.

    def get_tf_dataset(self) -> Epoch:
        return Epoch(self)

    @property
    def num_batches(self) -> int:
        """The number of batches of an epoch."""
        return self.data.num_batches

    @property
    def batch_size(self) -> int | None:
        """The number of rows of all batches, or None if it is not known."""
        is_known = isinstance(self.data, IndependentBatches) and self.data.sizes.is_constant
        return self.data.batch_size if is_known else None

    def on_epoch_begin(self) -> None:
        self.data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.data.on_epoch_end()

    def shares(
        self, index: int, replicas: Sequence[int], num_replicas: int
    ) -> tuple[list[tuple[Any, Any, Any]], int]:
        """Returns the shares `(x, y, sample_weight)` of some replicas, and the rows of the batch.

        Args:
          index: the number of the batch in its epoch.
          replicas: numbers of the replicas whose shares are returned.
          num_replicas: R.
        """
        if isinstance(self.data, IndependentBatches):
            rows = self.data.rows(index)  # only the shares are copied
            total, take = len(rows), lambda part: self.data.at(rows[part])
        else:
            batch = keras.utils.unpack_x_y_sample_weight(_tuple(self.data[index]))
            total = next(len(a) for a in keras.tree.flatten(batch) if a is not None)
            take = _taker(batch)
        edges = [total * r // num_replicas for r in range(num_replicas + 1)]
        return [take(slice(edges[r], edges[r + 1])) for r in replicas], total

    def spec_of(self, share: Any, num_replicas: int) -> Any:
        """Returns the specification that a share has in common with all others."""
        size = self.batch_size
        rows = None if size is None or size % num_replicas else size // num_replicas
        return internals.map_arrays(
            lambda a: tf.TensorSpec([rows, *a.shape[1:]], tf.as_dtype(a.dtype)), share
        )


class Epoch(tf.distribute.DistributedDataset):
    """The batches of an epoch in the form in which Keras leaves them alone."""

    def __init__(self, batches: WorkerBatches):
        self._batches = batches

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self._batches)


class BatchIterator(Iterator[Any]):
    """The batches of an epoch, one after the other: whole, or as shares."""

    def __init__(self, batches: WorkerBatches):
        self.batches, self._index = batches, 0

    @property
    def is_at_end(self) -> bool:
        """Whether all batches of the epoch were taken."""
        return self._index >= self.batches.num_batches

    def shares(self, replicas: Sequence[int], num_replicas: int) -> tuple[list[Any], int]:
        """Returns the shares of the next batch; see `WorkerBatches.shares`."""
        if self.is_at_end:
            raise StopIteration
        self._index += 1
        return self.batches.shares(self._index - 1, replicas, num_replicas)

    def spec(self, num_replicas: int) -> tuple[Any, Any, Any]:
        """Returns the specification of the shares of an epoch."""
        (first, *_), _ = self.batches.shares(0, [0], num_replicas)
        return self.batches.spec_of(first, num_replicas)

    def __next__(self) -> tuple[Any, ...]:
        (whole,), _ = self.shares([0], 1)
        return keras.utils.pack_x_y_sample_weight(*internals.map_arrays(tf.constant, whole))


def _tuple(batch: Any) -> Any:
    return tuple(batch) if isinstance(batch, list) else batch


def _taker(batch: tuple[Any, Any, Any]) -> Callable[[slice], tuple[Any, Any, Any]]:
    return lambda part: internals.map_arrays(lambda a: np.asarray(a)[part], batch)
