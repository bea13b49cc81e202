"""Train and test functions that take the shares of `WorkerBatches`, in place of those of Keras.

Keras 3 reduces the logs of a step over workers along an axis that scalars do not have, and asks all
workers at each step whether they have data. These functions do neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.internal.replicas import first_local, held_by_process
from tfp_sgmcmc.keras.data.worker_batches import BatchIterator
from tfp_sgmcmc.keras.distributed import replica_context
from tfp_sgmcmc.keras.model import internals


class ShareFunction:
    """Calls a step on the shares of each batch, on all replicas of this process.

    All workers trace at the same batch, because the specification of a share does not depend on the
    replica. A worker that traced alone would wait forever for the others.

    Args:
      model: a compiled model.
      step: takes a share `(x, y, sample_weight)`, and the number of rows of the whole batch, a
        scalar; returns logs.
      with_totals: whether the last batch of an epoch has the metrics of all replicas in its logs.
        Other batches have those of the first replica of this process.
    """

    def __init__(
        self, model: keras.Model, step: Callable[[Any, tf.Tensor], Any], with_totals: bool = False
    ):
        self._model, self._step, self._with_totals = model, step, with_totals
        self._strategy = model.distribute_strategy
        self._replicas = held_by_process(self._strategy)
        self._compiled: dict[str, Callable[..., Any]] = {}

    def __call__(self, iterator: BatchIterator) -> Any:
        num_replicas = self._strategy.num_replicas_in_sync
        shares, rows = iterator.shares(self._replicas, num_replicas)
        flat = [[tf.convert_to_tensor(a) for a in _arrays(share)] for share in shares]
        like, total = shares[0], tf.constant(rows, tf.float32)
        if self._model.run_eagerly:
            logs = self._run(like, flat, total)
        else:
            spec = iterator.batches.spec_of(like, num_replicas)
            logs = self._function(spec)(flat, total)
        if self._with_totals and iterator.is_at_end:
            logs = {**logs, **self._model.get_metrics_result()}
        return logs

    def _function(self, spec: Any) -> Callable[..., Any]:
        """Returns the compiled step for shares of such a specification."""
        key = str(spec)
        if key not in self._compiled:
            specs = [_arrays(spec)] * len(self._replicas)
            self._compiled[key] = tf.function(
                lambda flat, rows: self._run(spec, flat, rows),
                autograph=False,
                input_signature=[specs, tf.TensorSpec([], tf.float32)],
            )
        return self._compiled[key]

    def _run(self, like: Any, flat: list[list[tf.Tensor]], rows: tf.Tensor) -> Any:
        def on_replica() -> Any:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = flat[0]
            if len(flat) > 1:
                own = flat[int(tf.get_static_value(number)) - self._replicas[0]]
            left = iter(own)
            return self._step(internals.map_arrays(lambda _: next(left), like), rows)

        return first_local(self._strategy, self._strategy.run(on_replica))


class WorkerFit:
    """Replaces methods of a model for the length of a `fit` with `WorkerBatches`.

    `get_metrics_result` sums the metrics of all replicas by one collective operation, where Keras
    reads each variable by one of its own. `test_function` evaluates `validation_data`. Both are
    public attributes of a model, and do the same as the originals.
    """

    def __init__(self, model: keras.Model):
        self._model, strategy = model, model.distribute_strategy
        self._function_before = model.test_function

        @tf.function(autograph=False)
        def totals() -> dict[str, tf.Tensor]:
            return first_local(
                strategy, strategy.run(lambda: replica_context.metrics_result(model))
            )

        def result() -> dict[str, tf.Tensor]:
            inside = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
            # Within a step Keras asks for those of one replica.
            return type(model).get_metrics_result(model) if inside else totals()

        model.get_metrics_result = result
        model.test_function = ShareFunction(model, self._test)

    def _test(self, share: tuple[Any, Any, Any], rows: tf.Tensor) -> dict[str, tf.Tensor]:
        """Updates the metrics by a share, unless it is empty; returns those of this replica."""
        del rows
        data = keras.utils.pack_x_y_sample_weight(*share)

        def update() -> tf.Tensor:
            self._model.test_step(data)
            return tf.constant(True)

        tf.cond(tf.shape(_arrays(share)[0])[0] > 0, update, lambda: tf.constant(False))
        return type(self._model).get_metrics_result(self._model)

    def end(self) -> None:
        """Gives the model its functions back."""
        vars(self._model).pop("get_metrics_result", None)
        self._model.test_function = self._function_before


def _arrays(batch: Any) -> list[Any]:
    return [a for a in keras.tree.flatten(batch) if a is not None]
