"""The training step that Keras compiles: makes the chain at the first batch, and moves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.fit_preflight import Preflight
from tfp_sgmcmc.keras.data.resident_data import ResidentData, data_asked
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.records.recorder import Recorder


class BatchSteps:
    """Takes the place of a model's `train_step`.

    Attributes:
      resident: the resident data that the callback has made.

    Args:
      recorder: holds the chain.
      preflight: checks it before its first step.
      start_chain: makes the chain of a built model and hands it to the recorder.
    """

    def __init__(self, recorder: Recorder, preflight: Preflight, start_chain: Callable[[], None]):
        self._recorder, self._preflight, self._start_chain = recorder, preflight, start_chain
        self.resident: list[ResidentData] = []

    def most(self, model: keras.Model) -> int:
        """Returns the steps of the longest execution, whichever data come."""
        steps_per_call = max((data.steps_per_call for data in self.resident), default=1)
        return model.steps_per_execution * steps_per_call

    def take(self, model: keras.Model, data: Any) -> Any:
        """Takes the step or steps of a batch; returns the logs."""
        batch = keras.utils.unpack_x_y_sample_weight(data)
        resident = data_asked(batch, self.resident)
        if resident is None:
            return self._built_chain(model, batch).step(batch)
        chain = self._built_chain(model, resident.batch_spec)
        return chain.steps(resident, resident.num_steps(batch))

    def take_share(self, model: keras.Model, share: tuple[Any, Any, Any], rows: tf.Tensor) -> Any:
        """Takes a step on this replica's share of a batch; returns the logs.

        `rows` is the number of rows of the whole batch.
        """
        return self._built_chain(model, share).step(share, total_rows=rows)

    def prepare(self, model: keras.Model, spec: Any) -> None:
        """Makes the variables that the first step would make."""
        batch = keras.utils.unpack_x_y_sample_weight(spec)
        resident = data_asked(batch, self.resident)
        batch = batch if resident is None else resident.batch_spec
        self._built_chain(model, batch).create_rings(batch[0])

    def _built_chain(self, model: keras.Model, batch: tuple[Any, Any, Any]) -> Chain:
        """Returns the chain, with all variables that it and the model need for such a batch."""
        internals.build(model, *batch)
        if self._recorder.chain is None:
            with tf.init_scope():
                self._start_chain()
        chain = self._recorder.chain
        assert chain is not None
        chain.rings.num_steps = self.most(model)
        self._preflight.before_variables(chain, batch[0], self.most(model))
        chain.create(batch[0])
        self._preflight.first_batch(chain)
        return chain
