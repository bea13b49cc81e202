"""The chain inside `fit`: its variables, and the step that Keras compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow.compiler.tf2xla.python import xla

from tfp_sgmcmc import random
from tfp_sgmcmc.keras import losses
from tfp_sgmcmc.keras.samples import Thinning
from tfp_sgmcmc.keras.target import LogPrior, ModelLogProb, num_rows


class Status(NamedTuple):
    """What the host reads after an execution.

    Attributes:
      num_steps: steps taken.
      first_bad: number of steps before the first loss that is NaN or infinite; -1 without one.
      num_rows: examples seen.
    """

    num_steps: Any
    first_bad: Any
    num_rows: Any


class Chain:
    """A chain over a model's trainable variables; all that changes is in `tf.Variable`s.

    The model's own variables hold the state. States to keep are written to `buffers`, rings with
    as many slots as one execution of `steps_per_execution` steps can fill.

    Args:
      model: compiled, built.
      make_kernel_fn: target -> kernel.
      num_examples: N.
      log_prior_fn: list of values -> log prior.
      thinning: which states are kept.
      seed: of the whole chain; step t draws from `fold_in(seed, t)`.

    Raises:
      ValueError: a model that has nothing to sample, or constraints.
      TypeError: `make_kernel_fn` returns no kernel.
    """

    def __init__(
        self,
        model: keras.Model,
        make_kernel_fn: Callable[[ModelLogProb], tfp.mcmc.TransitionKernel],
        num_examples: int,
        log_prior_fn: LogPrior,
        thinning: Thinning,
        seed: tf.Tensor,
    ):
        self.model, self.variables = model, list(model.trainable_variables)
        self._make_kernel_fn, self._num_examples = make_kernel_fn, num_examples
        self._log_prior_fn, self._thinning, self._seed = log_prior_fn, thinning, seed
        if not self.variables:
            raise ValueError("The model has no trainable weights; there is nothing to sample.")
        for v in self.variables:
            if v.constraint is not None:
                raise ValueError(
                    f"{v.path} has the constraint {v.constraint!r}, which a chain would leave; "
                    "remove it and say what is known of the weights by the prior."
                )
        kernel = make_kernel_fn(ModelLogProb(model, num_examples, log_prior_fn))
        if not isinstance(kernel, tfp.mcmc.TransitionKernel):
            raise TypeError(
                f"make_kernel_fn returned a {type(kernel).__name__}; a "
                "tfp.mcmc.TransitionKernel over the target it was given is expected."
            )
        results = kernel.bootstrap_results(self._state())
        self._results = tf.nest.map_structure(lambda r: tf.Variable(r, trainable=False), results)
        self._status = tf.Variable([0, -1, 0], trainable=False, dtype=tf.int64)
        self.recorded: list[keras.Variable] = []  # those whose values make a sample
        self.buffers: list[tf.Variable] = []

    def status(self) -> Status:
        return Status(*self._status.numpy().tolist())

    def step(self, data: Any) -> dict[str, tf.Tensor]:
        """In place of `model.train_step`: one step of the kernel on one batch."""
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        target = ModelLogProb(model, self._num_examples, self._log_prior_fn, (x, y, sample_weight))
        status = Status(*tf.unstack(self._status.read_value()))
        state, results = self._make_kernel_fn(target).one_step(
            self._state(),
            tf.nest.map_structure(lambda v: v.read_value(), self._results),
            seed=random.fold_in(self._seed, status.num_steps),
        )
        evaluated = target.evaluated
        if evaluated is None:
            raise ValueError(
                "The kernel took a step without an estimate from the target it was given; "
                "make_kernel_fn is expected to pass its argument to the kernel."
            )
        rows = num_rows(x)
        loss = losses.reported_loss(model, y, evaluated, sample_weight, rows)
        moved = [*zip(self.variables, state, strict=True), *evaluated.updates]
        for variable, value in moved:
            variable.assign(value)
        tf.nest.map_structure(lambda v, r: v.assign(r), self._results, results)
        self._record([(v, x) for v, x in moved if v.dtype.startswith(("float", "bfloat"))], status)
        loss_is_finite = tf.reduce_all(tf.math.is_finite(loss))
        bad = tf.where(loss_is_finite, tf.constant(-1, tf.int64), status.num_steps)
        if tf.executing_eagerly() and not all(np.isfinite(x).all() for x in state):
            bad = status.num_steps + 1  # kernels refuse such a state before its loss is known
        self._status.assign(
            [
                status.num_steps + 1,
                tf.where(status.first_bad < 0, bad, status.first_bad),
                status.num_rows + tf.cast(rows, tf.int64),
            ]
        )
        return model.compute_metrics(x, y, evaluated.outputs, sample_weight=sample_weight)

    def _state(self) -> list[tf.Tensor]:
        return [keras.ops.convert_to_tensor(v) for v in self.variables]

    def _record(self, moved: list[tuple[keras.Variable, tf.Tensor]], status: Status) -> None:
        slots = -(-self.model.steps_per_execution // (self._thinning.num_steps_between_results + 1))
        if not self.buffers or self.buffers[0].shape[0] != slots:
            self.recorded = [v for v, _ in moved]
            with tf.init_scope():
                self.buffers = [
                    tf.Variable(tf.zeros([slots, *v.shape], v.dtype), trainable=False)
                    for v in self.recorded
                ]
        before = self._thinning.num_kept(status.num_steps, tf.maximum)
        after = self._thinning.num_kept(status.num_steps + 1, tf.maximum)

        def keep() -> tf.Tensor:
            for buffer, (_, value) in zip(self.buffers, moved, strict=True):
                _write(buffer, before % slots, value)
            return after

        tf.cond(after > before, keep, lambda: before)


def _write(buffer: tf.Variable, slot: tf.Tensor, value: tf.Tensor) -> None:
    """`buffer[slot] = value`, in place."""
    if random.in_xla_context():  # the portable scatter takes 20 times as long there
        start = [tf.cast(slot, tf.int32), *[0] * value.shape.rank]
        buffer.assign(xla.dynamic_update_slice(buffer, value[tf.newaxis], start))
    else:
        buffer.scatter_update(tf.IndexedSlices(value[tf.newaxis], slot[tf.newaxis]))
