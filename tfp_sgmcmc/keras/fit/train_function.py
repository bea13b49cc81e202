"""A train function that a model holds only while a batch is being taken.

Keras calls no hook when `fit` fails, so whatever is put into a model for the length of a fit may
stay there. Here the model gets the function when a batch begins and gets its own one back before
the batch is over, whatever happens in it: nothing is left to undo when callbacks, validation, data
or the user interrupt the fit elsewhere.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class BatchTrainFunction:
    """Replaces `model.train_function` from `install` until it has been called once.

    Args:
      model: compiled.
      train_step: takes the place of `model.train_step`; compiled and repeated by Keras as its own.
      before: called before it is compiled with the specification of a batch, to make variables. A
        function that makes its own while it is traced is traced once more by TensorFlow.
      after: called after every execution, also after one that failed.
    """

    def __init__(
        self,
        model: keras.Model,
        train_step: Callable[[Any], Any],
        before: Callable[[Any], None],
        after: Callable[[], None],
    ):
        self._model, self._after = model, after
        self._before: Callable[[Any], None] | None = before
        own = model.train_function
        try:
            model.train_step = train_step
            model.make_train_function(force=True)
            self._function = model.train_function
        finally:
            vars(model).pop("train_step", None)
            model.train_function = own

    def install(self) -> None:
        self._own, self._model.train_function = self._model.train_function, self

    def restore(self) -> None:
        if self._model.train_function is self:
            self._model.train_function = self._own

    def __call__(self, iterator: Any) -> Any:
        try:
            if self._before is not None:
                spec = _batch_spec(self._model, iterator)
                if spec is not None:
                    self._before(spec)
                self._before = None
            return self._function(iterator)
        finally:
            self.restore()
            self._after()


def _batch_spec(model: keras.Model, iterator: Any) -> Any:
    """`tf.TensorSpec`s of what `train_step` will be given; None where that is not compiled at once.

    Parts of data that are None come as `tf.experimental.Optional`, which Keras turns back.
    """
    if model.run_eagerly or not isinstance(iterator, tf.data.Iterator):
        return None
    spec = keras.tree.map_structure(
        lambda s: None if isinstance(s, tf.OptionalSpec) else s, iterator.element_spec
    )
    leaves = [s for s in keras.tree.flatten(spec) if s is not None]
    return spec if all(isinstance(s, tf.TensorSpec) for s in leaves) else None


def calling_list() -> keras.callbacks.CallbackList | None:
    """The CallbackList whose method is on the call stack, if there is one."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), keras.callbacks.CallbackList):
            return found
        frame = frame.f_back
    return None


def check_callbacks(
    callback_list: keras.callbacks.CallbackList | None, own: keras.callbacks.Callback, stored: bool
) -> None:
    """Raises ValueError where a list has callbacks that do not go with a sampler.

    Args:
      callback_list: of the fit.
      own: the sampler.
      stored: whether it saves its chain.
    """
    callbacks = callback_list.callbacks if callback_list else [own]
    given = sum(isinstance(c, type(own)) for c in callbacks)
    if given > 1:
        raise ValueError(
            f"fit was given {given} callbacks of kind {type(own).__name__}; one is expected, which "
            "samples num_chains chains."
        )
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.BackupAndRestore):
            continue
        if not stored:
            raise ValueError(
                "BackupAndRestore saves the model's weights alone, from which a chain cannot go "
                f"on; give {type(own).__name__} a directory, which saves all of it."
            )
        if callbacks.index(callback) > callbacks.index(own):
            raise ValueError(
                f"BackupAndRestore comes after {type(own).__name__} in callbacks and would "
                "overwrite what that restores; it is expected before, or not at all."
            )


def guard(owner: Any, name: str, restore: Callable[[], None]) -> None:
    """Has `owner`'s method call `restore` when it raises."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BaseException:
            restore()
            raise

    setattr(owner, name, guarded)
