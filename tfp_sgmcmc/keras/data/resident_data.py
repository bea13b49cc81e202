"""Training data that stay on the device, from which one call of `fit` takes many batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.data.independent_batches import BatchSizes, training_arrays
from tfp_sgmcmc.keras.model.internals import map_arrays

_NAME = "num_resident_steps"  # the name of the only array of x that comes through Keras begins so


class ResidentData(keras.utils.PyDataset):
    r"""Batches that are drawn on the device, inside the compiled step; goes to `fit` as x.

    What passes through Keras are numbers of steps: one compiled call takes `steps_per_call` steps.
    `SamplerCallback.resident` makes these data.

    With `reshuffle="step"`, step t of the chain takes the first B examples of a permutation of its
    own. With `"epoch"` it takes the examples at positions tB, ..., tB + B - 1 of one permutation of
    all N after the other, and with `"symmetric"` each permutation is taken forward and then
    backward. All depend on (seed, t) alone, so interruptions do not change them.

    Attributes:
      arrays: `(x, y, sample_weight)` on the device.
      sizes: the number of rows of each step's batch.
      was_read: whether Keras has asked for a batch; a fit resets it when it ends.

    Args:
      arrays: `(x, y, sample_weight)`, each a nest of arrays `[N, ...]` or None.
      batch_size, reshuffle, steps_per_call, steps_per_epoch, growth: see
        `SamplerCallback.resident`.
      seed: names the order of the examples.
      num_examples: N as the callback was given it, or None.

    Raises:
      ValueError: unequal leading axes, no data, or numbers out of range.
      TypeError: a leaf is not an array of numbers.
    """

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        reshuffle: str,
        steps_per_call: int,
        steps_per_epoch: int | None,
        seed: tf.Tensor,
        num_examples: int | None = None,
        growth: float = 1.0,
    ):
        super().__init__()
        self.arrays, self.num_examples = training_arrays(*arrays)
        if num_examples not in (None, self.num_examples):
            raise ValueError(
                f"x must have num_examples = {num_examples} rows. Received: {self.num_examples}."
            )
        self.sizes = BatchSizes(batch_size, growth, self.num_examples, steps_per_epoch)
        self.batch_size = self.sizes.first
        self.reshuffle = checks.one_of("reshuffle", reshuffle, ("step", "epoch", "symmetric"))
        if reshuffle != "step" and not self.sizes.is_constant:
            raise ValueError(
                "reshuffle must be 'step' with growth, because a growing batch is drawn anew at "
                f"each step. Received: reshuffle={reshuffle!r}."
            )
        if steps_per_epoch is None:
            steps_per_epoch = self.num_examples // self.batch_size
        self.steps_per_epoch = checks.integer("steps_per_epoch", steps_per_epoch, 1)
        steps_per_call = checks.integer("steps_per_call", steps_per_call, 1)
        self.steps_per_call = min(steps_per_call, steps_per_epoch)
        self._seed, self.was_read = seed, False

    def __len__(self) -> int:
        """Returns the number of calls of an epoch."""
        return -(-self.steps_per_epoch // self.steps_per_call)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        self.was_read = True
        left = self.steps_per_epoch - index * self.steps_per_call
        num_steps = np.array([min(left, self.steps_per_call)], np.int64)
        return {self.name: num_steps}, np.zeros([1], np.int64)  # y, which Keras may weigh

    @property
    def name(self) -> str:
        """The name of the array of steps; a unique name gives each data set its own trace."""
        return f"{_NAME}_{id(self)}"

    @property
    def batch_spec(self) -> tuple[Any, Any, Any]:
        """The specification of what `batch` returns."""
        size = self.batch_size if self.sizes.is_constant else None
        return map_arrays(lambda a: tf.TensorSpec([size, *a.shape[1:]], a.dtype), self.arrays)

    def num_steps(self, batch: tuple[Any, Any, Any]) -> tf.Tensor:
        """Returns the number of steps that a batch of `__getitem__` asks for."""
        return batch[0][self.name][0]

    def batch(self, step: tf.Tensor) -> tuple[Any, Any, Any]:
        """Returns `(x, y, sample_weight)` of a step of the chain, leaves `[B, ...]`."""
        total = self.num_examples
        size = self.batch_size if self.sizes.is_constant else self.sizes.tensor_at(step)
        if self.reshuffle == "step":
            seed = random.numbered_seed(self._seed, tf.cast(step, tf.int32))
            indices = random.permuted_indices(seed, tf.range(size), total)
        else:
            is_symmetric = self.reshuffle == "symmetric"
            indices = random.epoch_indices(self._seed, step, size, total, (), is_symmetric)
        return map_arrays(lambda a: tf.gather(a, indices), self.arrays)


def data_asked(batch: tuple[Any, Any, Any], made: Sequence[ResidentData]) -> ResidentData | None:
    """Returns which of the data that the callback `made` a batch of `fit` belongs to, or None.

    Raises:
      ValueError: resident data of another callback, or weights that Keras cannot apply to them.
    """
    x, _, sample_weight = batch
    name = next(iter(x), "") if isinstance(x, dict) else ""
    if not str(name).startswith(_NAME):
        return None
    data = next((d for d in made if d.name == name), None)
    if data is None:
        raise ValueError(
            "x must be what `resident` of the SamplerCallback in callbacks returned. Received: "
            "resident data of another SamplerCallback."
        )
    if sample_weight is not None:
        raise ValueError(
            "class_weight must be None, since it does not reach resident data. Pass each example's "
            "weight to `resident`, as sample_weight."
        )
    return data
