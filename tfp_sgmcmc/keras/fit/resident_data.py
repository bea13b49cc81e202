"""Training data that stay on the device, from which one call of `fit` takes many batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.checks import count_of_examples, integer
from tfp_sgmcmc.keras.model.internals import map_arrays
from tfp_sgmcmc.targets.data import as_tensor, leading_axis

_NAME = "num_resident_steps"  # begins that of the only array of x that comes through Keras


class ResidentData(keras.utils.PyDataset):
    r"""Batches that are drawn on the device, inside the compiled step, to be passed to `fit` as x.

    What goes through Keras are numbers of steps: `steps_per_call` of them are taken by one compiled
    call. Made by `SamplerCallback.resident`.

    With `reshuffle="step"` step t of the chain has the first B examples of a permutation of its
    own, with `"epoch"` those at positions tB, ..., tB + B - 1 of one permutation of all N after
    the other. Either is a function of (seed, t) alone, whatever is interrupted or resumed.

    Args:
      arrays: `(x, y, sample_weight)`, each a nest of arrays `[N, ...]` or None.
      batch_size: B.
      reshuffle: `"step"` or `"epoch"`.
      steps_per_call: steps that one call takes, at most.
      steps_per_epoch: of `fit`; None is floor(N / B).
      seed: of the order of the examples.
      num_examples: N, as it is expected.

    Raises:
      ValueError: unequal leading axes, no data, numbers out of range.
      TypeError: what is no array of numbers.
    """

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        reshuffle: str,
        steps_per_call: int,
        steps_per_epoch: int | None,
        seed: tf.Tensor,
        num_examples: int,
    ):
        super().__init__()
        self._arrays = map_arrays(lambda a: as_tensor(a, keras.config.floatx()), arrays)
        self.num_examples = leading_axis(
            [a for a in keras.tree.flatten(self._arrays) if a is not None]
        )
        if self.num_examples != num_examples:
            raise ValueError(f"x has {self.num_examples} rows, but num_examples is {num_examples}.")
        self.batch_size = count_of_examples("batch_size", batch_size, self.num_examples)
        if reshuffle not in ("step", "epoch"):
            raise ValueError(f"reshuffle is {reshuffle!r}; 'step' or 'epoch' is expected.")
        self.reshuffle = reshuffle
        if steps_per_epoch is None:
            steps_per_epoch = self.num_examples // self.batch_size
        self.steps_per_epoch = integer("steps_per_epoch", steps_per_epoch, 1)
        self.steps_per_call = min(integer("steps_per_call", steps_per_call, 1), steps_per_epoch)
        self._seed = seed

    def __len__(self) -> int:
        """Calls of an epoch."""
        return -(-self.steps_per_epoch // self.steps_per_call)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        left = self.steps_per_epoch - index * self.steps_per_call
        num_steps = np.array([min(left, self.steps_per_call)], np.int64)
        return {self.name: num_steps}, np.zeros([1], np.int64)  # y, for Keras to weigh if it wants

    @property
    def name(self) -> str:
        """Of the array of steps: other data, by another name, are another trace."""
        return f"{_NAME}_{id(self)}"

    @property
    def batch_spec(self) -> tuple[Any, Any, Any]:
        """Of what `batch` returns."""
        return map_arrays(
            lambda a: tf.TensorSpec([self.batch_size, *a.shape[1:]], a.dtype), self._arrays
        )

    def num_steps(self, batch: tuple[Any, Any, Any]) -> tf.Tensor:
        """What a batch of `__getitem__` asks for."""
        return batch[0][self.name][0]

    def batch(self, step: tf.Tensor) -> tuple[Any, Any, Any]:
        """`(x, y, sample_weight)` of a step of the chain, leaves `[B, ...]`."""
        size, total = self.batch_size, self.num_examples
        if self.reshuffle == "epoch":
            indices = random.epoch_indices(self._seed, step, size, total)
        else:
            own = random.numbered_seed(self._seed, tf.cast(step, tf.int32))
            indices = random.permuted_indices(own, tf.range(size), total)
        return map_arrays(lambda a: tf.gather(a, indices), self._arrays)


def data_asked(batch: tuple[Any, Any, Any], made: Sequence[ResidentData]) -> ResidentData | None:
    """The data whose batch this is; None of other batches.

    Args:
      batch: `(x, y, sample_weight)` as `fit` has it.
      made: the data that may be meant.

    Raises:
      ValueError: other resident data; weights of Keras', which cannot reach them.
    """
    x, _, sample_weight = batch
    name = next(iter(x), "") if isinstance(x, dict) else ""
    if not str(name).startswith(_NAME):
        return None
    data = next((d for d in made if d.name == name), None)
    if data is None:
        raise ValueError(
            "fit was given resident data of another SamplerCallback; what `resident` of the one in "
            "callbacks returned is expected."
        )
    if sample_weight is not None:
        raise ValueError(
            "fit was given class_weight, which does not reach resident data; pass each example's "
            "weight to `resident`, as sample_weight."
        )
    return data
