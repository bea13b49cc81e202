"""Which of a chain's states become samples, and the rings on the device that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from tfp_sgmcmc import random

_WORTH_A_LOOP = 10_000  # entries of a variable, from which on not to write it saves time on a CPU
_NEVER = np.iinfo(np.int64).max  # the first step to keep, while burn-in has no end yet


class Collection(NamedTuple):
    """Which steps' states are kept, counted as in `tfp.mcmc.sample_chain`.

    Attributes:
      num_burnin_steps: steps before the first that may be kept.
      num_steps_between_results: steps between kept ones.
      is_open: whether burn-in ends at a step that is known only later.
      keep: step -> whether a state that is due is kept, such as `Cyclical.is_sampling`; or None.
    """

    num_burnin_steps: int
    num_steps_between_results: int = 0
    is_open: bool = False
    keep: Callable[[tf.Tensor], tf.Tensor] | None = None

    def may_be_due(self, num_before: int, num_after: int) -> bool:
        """Whether steps `num_before .. num_after - 1` can leave a sample."""
        first, between = self.num_burnin_steps, self.num_steps_between_results
        if self.is_open:  # at any of them, if at least so many have gone by
            return num_after > max(first, num_before)
        before, after = (
            max(n - first + between, 0) // (between + 1) for n in (num_before, num_after)
        )
        return after > before

    def is_kept(self, first: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Whether the state that step number `step` leaves is kept."""
        is_due = (step >= first) & ((step - first) % (self.num_steps_between_results + 1) == 0)
        return is_due if self.keep is None else is_due & self.keep(step)


class Rings:
    """States to keep, written on the device in turn to as many slots as one execution can fill.

    Attributes:
      first: the first step to keep.
      num_kept: states kept so far.
      recorded: the variables whose values make a sample.
    """

    def __init__(self, collection: Collection):
        self._collection = collection
        self.first = tf.Variable(
            _NEVER if collection.is_open else collection.num_burnin_steps,
            trainable=False,
            dtype=tf.int64,
        )
        self.num_kept = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.recorded: list[keras.Variable] = []
        self._rings: list[tf.Variable] = []
        self._steps = _ring(0, [], tf.int64)

    def write(
        self, step: tf.Tensor, moved: list[tuple[keras.Variable, tf.Tensor]], num_steps: int
    ) -> None:
        """Writes the values of variables that `step` left, one of `num_steps` of an execution.

        They are kept if they are counted; else the next ones overwrite them.
        """
        # As many as an execution can fill, and one for the steps after these.
        num_slots = -(-num_steps // (self._collection.num_steps_between_results + 1))
        num_slots += num_steps > 1
        if self._steps.shape[0] != num_slots:
            self.recorded = [v for v, _ in moved]
            with tf.init_scope():
                self._rings = [_ring(num_slots, x.shape, x.dtype) for _, x in moved]
                self._steps = _ring(num_slots, [], tf.int64)
        num_kept = self.num_kept.read_value()
        is_kept = self._collection.is_kept(self.first.read_value(), step)
        for ring, (_, value) in zip(self._rings, moved, strict=True):
            _write(ring, num_kept % num_slots, value, is_kept)
        _write(self._steps, num_kept % num_slots, step, is_kept)
        self.num_kept.assign(num_kept + tf.cast(is_kept, tf.int64))

    def read(self, num_taken: int, before: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Samples from number `num_taken` on that steps before number `before` left, and the steps.

        Shapes are `[num_new, ...]` and `[num_new]`.
        """
        num_kept = int(self.num_kept.numpy())
        if num_kept == num_taken:
            return [], np.zeros([0], np.int64)
        slots = np.arange(num_taken, num_kept) % self._steps.shape[0]
        steps = self._steps.numpy()[slots]
        slots, steps = slots[steps < before], steps[steps < before]
        return [ring.numpy()[slots] for ring in self._rings], steps


def _ring(num_slots: int, shape: Any, dtype: Any) -> tf.Variable:
    return tf.Variable(tf.zeros([num_slots, *shape], dtype), trainable=False)


def _write(ring: tf.Variable, slot: tf.Tensor, value: tf.Tensor, is_kept: tf.Tensor) -> None:
    """`ring[slot] = value`, in place, if it is kept; else perhaps."""
    if not random.in_xla_context():  # where the portable scatter takes 20 times as long
        ring.scatter_update(tf.IndexedSlices(value[tf.newaxis], slot[tf.newaxis]))
        return

    def write(ring: tf.Tensor) -> tf.Tensor:
        start = [tf.cast(slot, tf.int32), *[0] * value.shape.rank]
        return xla.dynamic_update_slice(ring, value[tf.newaxis], start)

    old = ring.read_value()
    if value.shape.num_elements() < _WORTH_A_LOOP or tf.config.list_logical_devices("GPU"):
        ring.assign(write(old))
        return
    # A loop of one turn or none, for which XLA, unlike for a branch, does not copy the ring.
    _, new = tf.while_loop(
        lambda is_left, _: is_left,
        lambda _, ring: (tf.constant(False), write(ring)),
        (is_kept, old),
    )
    ring.assign(new)
