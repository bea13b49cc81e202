"""A train function that a model holds only while a batch is being taken.

Keras calls no hook when `fit` fails, so what is put into a model for the length of a fit may stay
there. Here the model gets the function when a batch begins, and gets its previous function back
before the batch is over, whatever happens in it. Nothing is left to undo when callbacks,
validation, data or the user interrupt the fit elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.keras.data.fit_batches import BatchIterator
from tfp_sgmcmc.keras.model import internals

_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)


class BatchTrainFunction:
    """Replaces `model.train_function` from `install` until it has been called once.

    Args:
      model: a compiled model.
      train_step: takes the place of `model.train_step`; Keras compiles and repeats it as usual.
      before: called once, with the specification of a batch, before the function is compiled. It
        makes variables: TensorFlow traces a function twice if it makes them while it is traced.
      after: called after every execution, also after one that failed.
      function: takes the place of the function that Keras would make of `train_step`.
      cause_in_data: returns in words which data an operation of the step cannot take, or None.
    """

    def __init__(
        self,
        model: keras.Model,
        train_step: Callable[[Any], Any],
        before: Callable[[Any], None],
        after: Callable[[], None],
        function: Callable[[Any], Any] | None = None,
        cause_in_data: Callable[[], str | None] | None = None,
    ):
        self._model, self._after, self._cause_in_data = model, after, cause_in_data
        self._before: Callable[[Any], None] | None = before
        if function is not None:
            self._function = function
            return
        previous = model.train_function
        try:
            model.train_step = train_step
            model.make_train_function(force=True)
            self._function = model.train_function
        finally:
            vars(model).pop("train_step", None)
            model.train_function = previous

    def install(self) -> None:
        """Puts this function into the model."""
        self._previous, self._model.train_function = self._model.train_function, self

    def restore(self) -> None:
        """Puts the model's previous function back, if this one is in its place."""
        if self._model.train_function is self:
            self._model.train_function = self._previous

    def __call__(self, iterator: Any) -> Any:
        try:
            if self._before is not None:
                spec = _batch_spec(self._model, iterator)
                if spec is not None:
                    with self._model.distribute_strategy.scope():
                        self._before(spec)
                self._before = None
            return self._function(iterator)
        except _LOST as error:
            if not replicas.are_several(self._model.distribute_strategy):
                raise
            raise RuntimeError(
                "Another worker of this fit was lost. Start all workers again with the same "
                "arguments: with output=, the chain resumes from worker 0's last checkpoint; "
                f"without, its samples are lost. TensorFlow's error: {error.message[:300]}"
            ) from error
        except tf.errors.InvalidArgumentError as error:
            cause = self._cause()
            if cause is None:
                raise
            raise ValueError(cause) from error
        finally:
            self.restore()
            self._after()

    def _cause(self) -> str | None:
        """Returns which data an error comes from, None if that cannot be told."""
        try:
            return None if self._cause_in_data is None else self._cause_in_data()
        except tf.errors.OpError:  # of reading them
            return None


def _batch_spec(model: keras.Model, iterator: Any) -> Any:
    """Returns `tf.TensorSpec`s of the batches, or None if the step is not compiled at once.

    Data that are None come as `tf.experimental.Optional`, which Keras turns back into None.
    """
    if model.run_eagerly:
        return None
    if isinstance(iterator, BatchIterator):
        return iterator.spec(model.distribute_strategy.num_replicas_in_sync)
    if not isinstance(iterator, tf.data.Iterator):
        return None
    spec = keras.tree.map_structure(
        lambda s: None if isinstance(s, tf.OptionalSpec) else s, iterator.element_spec
    )
    return spec if all(isinstance(s, tf.TensorSpec) for s in internals.array_leaves(spec)) else None


def check_callbacks(
    callback_list: keras.callbacks.CallbackList | None,
    sampler: keras.callbacks.Callback,
    stored: bool,
) -> None:
    """Raises ValueError if other callbacks of a fit do not go with the sampler among them.

    A sampler is `stored` if it saves its chain.
    """
    callbacks = callback_list.callbacks if callback_list else [sampler]
    name = type(sampler).__name__
    given = sum(isinstance(c, type(sampler)) for c in callbacks)
    if given > 1:
        raise ValueError(
            f"fit must have one {name}, which samples num_chains chains. Received: {given}."
        )
    stop = keras.callbacks.EarlyStopping
    if getattr(sampler, "is_annealed", False) and any(isinstance(c, stop) for c in callbacks):
        raise ValueError(
            "EarlyStopping must be left out with SamplerCallback(), which cools along all epochs "
            "of fit and then chooses the part of the run that predicts best. Received: one beside "
            "it. Give fit about as many epochs as one network takes until it stops."
        )
    kind = keras.callbacks.BackupAndRestore
    backups = [i for i, c in enumerate(callbacks) if isinstance(c, kind)]
    if backups and not stored:
        raise ValueError(
            "BackupAndRestore saves the model's weights alone, from which a chain cannot go on. "
            f"Give {name} a directory, which saves all of the chain."
        )
    plateau = keras.callbacks.ReduceLROnPlateau
    if stored and any(isinstance(c, plateau) for c in callbacks[callbacks.index(sampler) :]):
        raise ValueError(
            f"ReduceLROnPlateau must come before {name} in callbacks, which saves the learning "
            "rate at the end of an epoch. Received: it comes after."
        )
    if backups and backups[-1] > callbacks.index(sampler):
        raise ValueError(
            f"BackupAndRestore must come before {name} in callbacks, or be left out. Received: it "
            f"comes after, and would overwrite what {name} restores."
        )


def guard(callbacks: keras.callbacks.CallbackList, restore: Callable[[], None]) -> None:
    """Makes the callbacks call `restore` when one of them raises before a batch."""
    method = callbacks.on_train_batch_begin

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BaseException:
            restore()
            raise

    callbacks.on_train_batch_begin = guarded
