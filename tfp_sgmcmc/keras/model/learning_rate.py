"""The optimizer's learning rate as the step size of a kernel."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfp_sgmcmc.keras.model import internals


class LearningRate:
    """Maps the number of a step to the learning rate of a compiled model's optimizer.

    A schedule of the optimizer is evaluated at the step of the chain, so that it goes on from one
    `fit` to the next. Any other learning rate is read when the step is taken. Callbacks such as
    `ReduceLROnPlateau` set it between epochs.

    Attributes:
      variable: the variable that callbacks set; None if the optimizer has a schedule.

    Args:
      model: a compiled model.

    Raises:
      ValueError: the model has no optimizer.
    """

    def __init__(self, model: keras.Model):
        self._rate = internals.learning_rate(model)
        has_variable = isinstance(self._rate, keras.Variable)
        self.variable: keras.Variable | None = self._rate if has_variable else None

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the step size of the step, a scalar."""
        if self.variable is not None:
            return tf.convert_to_tensor(self.variable.value)
        if isinstance(self._rate, keras.optimizers.schedules.LearningRateSchedule):
            return tf.convert_to_tensor(self._rate(step))
        return tf.convert_to_tensor(self._rate())
