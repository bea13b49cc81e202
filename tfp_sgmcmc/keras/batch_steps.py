"""The training steps of a `fit`, in one process and on several workers.

Keras calls no hook when `fit` fails, so what is put into a model for the length of a fit may stay
there. Here the model gets its train function when a batch begins, and gets its previous function
back before the batch is over, whatever happens in it. Nothing is left to undo when callbacks,
validation, data or the user interrupt the fit elsewhere.

Keras 3 reduces the logs of a step over workers along an axis that scalars do not have, and asks all
workers at each step whether they have data. The functions of this module do neither. All workers
must begin the same fit.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.replicas import first_local, held_by_process
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.checks.fit_preflight import Preflight
from tfp_sgmcmc.keras.data.fit_batches import BatchIterator, ResidentData, WorkerBatches, data_asked
from tfp_sgmcmc.keras.data.training_data import Source, validation_of_fit
from tfp_sgmcmc.keras.model import compiled_loss, internals
from tfp_sgmcmc.keras.records.fit_fingerprint import FitProblem
from tfp_sgmcmc.keras.records.recorder import Recorder
from tfp_sgmcmc.storage.checkpoint import differences

_PACKAGES = ("tensorflow", "keras", "tensorflow-probability", "numpy")


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
        compiled_loss.build(model, *batch)
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


class BatchTrainFunction:
    """Replaces `model.train_function` from `install` until it has been called once.

    Args:
      model: a compiled model.
      steps: take the place of `model.train_step`; Keras compiles and repeats them as usual. They
        make their variables once, before: TensorFlow traces a function twice if it makes variables
        while it is traced.
      on_shares: whether each replica takes its share of a batch, without Keras' function.
      after: called after every execution, also after one that failed.
      cause_in_data: returns in words which data an operation of the step cannot take, or None.
      after_failure: called after an execution that failed, before `after`.
    """

    def __init__(
        self,
        model: keras.Model,
        steps: BatchSteps,
        on_shares: bool,
        after: Callable[[], None],
        cause_in_data: Callable[[], str | None],
        after_failure: Callable[[], None] = lambda: None,
    ):
        self._model, self._after, self._cause_in_data = model, after, cause_in_data
        self._after_failure = after_failure
        self._steps, self._is_prepared = steps, False
        self._function: Callable[[Any], Any]
        if on_shares:
            on_share = functools.partial(steps.take_share, model)
            self._function = ShareFunction(model, on_share, with_totals=True)
            return
        previous = model.train_function
        try:
            model.train_step = functools.partial(steps.take, model)
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
            return self._execute(iterator)
        except BaseException:
            self._after_failure()
            raise
        finally:
            self.restore()
            self._after()

    def _execute(self, iterator: Any) -> Any:
        try:
            if not self._is_prepared:
                spec = _batch_spec(self._model, iterator)
                if spec is not None:
                    with self._model.distribute_strategy.scope():
                        self._steps.prepare(self._model, spec)
                self._is_prepared = True
            return self._function(iterator)
        except replicas.LOST as error:
            if not replicas.are_several(self._model.distribute_strategy):
                raise
            raise RuntimeError(
                "Another worker of this fit was lost. Start all workers again with the same "
                "arguments: with output=, the chain resumes from worker 0's last checkpoint; "
                f"without, its samples are lost. TensorFlow's error: {error.message[:300]}"
            ) from error
        except tf.errors.InvalidArgumentError as error:
            cause = self._cause_in_data()
            if cause is None:
                raise
            raise ValueError(cause) from error


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
    sampler: Any,
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
            f"fit must have one {name}, which samples several chains by chains=. Received: {given}."
        )
    stop = keras.callbacks.EarlyStopping
    if sampler.is_annealed and any(isinstance(c, stop) for c in callbacks):
        raise ValueError(
            "EarlyStopping must be left out with SamplerCallback(), which cools along all epochs "
            "of fit and then chooses the part of the run that predicts best. Received: one beside "
            "it. Give fit about as many epochs as one network takes until it stops."
        )
    kind = keras.callbacks.BackupAndRestore
    backups = [i for i, c in enumerate(callbacks) if isinstance(c, kind)]
    if backups and not stored:
        raise ValueError(
            f"BackupAndRestore must be left out beside a {name} without output=, because it saves "
            "the model's weights alone, from which a chain cannot go on. Received: one. "
            f'{name}(output="run") saves all of the chain.'
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


class WorkerGroup:
    """The workers of a fit. In one process without replicas it does nothing.

    For the length of a `fit` with `WorkerBatches` it replaces methods of the model.
    `get_metrics_result` sums the metrics of all replicas by one collective operation, where Keras
    reads each variable by one of its own. `test_function` evaluates `validation_data`. Both are
    public attributes of a model, and do the same as the originals.
    """

    def __init__(self) -> None:
        self._model: keras.Model | None = None  # while its methods are replaced
        self._function_before: Any = None

    def begin(
        self,
        model: keras.Model,
        begin: Callable[[bool], FitProblem],
        is_stored: bool,
        settings: Mapping[str, Any],
    ) -> FitProblem:
        """Returns what `begin` returns, which all workers call.

        Args:
          model: the model.
          begin: checks the data, and describes the problem: all that is known of it, if its
            argument is True.
          is_stored: whether the chain is saved in a directory.
          settings: what else must be the same, by name.

        Raises:
          ValueError: `begin` failed on another worker, or workers differ in something, which the
            message names.
        """
        self.end()
        if not replicas.are_several(model.distribute_strategy):
            return begin(is_stored)
        problems: list[FitProblem] = []

        def describe() -> bytes:
            _check_validation(validation_of_fit(model))
            problems.append(begin(True))
            found = {**_versions(), **settings, "a directory": is_stored}
            found |= {**problems[0].of_fit, **problems[0].of_all}
            return json.dumps(found).encode()

        found = [json.loads(x) for x in replicas.exchanged(model.distribute_strategy, describe)]
        for number, other in enumerate(found):
            if what := differences(found[0], other):
                what = what.replace("but here", f"but worker {number} has")
                raise ValueError(
                    "All workers must have the same data, settings and versions. Received: other "
                    f"ones on worker {number}. Worker 0 has {what}."
                )
        return problems[0]

    def start(self, model: keras.Model) -> None:
        """Gives the model what it needs for the length of a fit that takes its steps on shares."""
        strategy = model.distribute_strategy
        self._model, self._function_before = model, model.test_function

        @tf.function(autograph=False)
        def totals() -> dict[str, tf.Tensor]:
            return first_local(strategy, strategy.run(lambda: internals.metrics_result(model)))

        def result() -> dict[str, tf.Tensor]:
            inside = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
            # Within a step Keras asks for those of one replica.
            return type(model).get_metrics_result(model) if inside else totals()

        model.get_metrics_result = result
        model.test_function = ShareFunction(model, functools.partial(_test, model))

    def end(self) -> None:
        """Takes it away, if that was not done yet."""
        if self._model is not None:
            vars(self._model).pop("get_metrics_result", None)
            self._model.test_function, self._model = self._function_before, None


def takes_shares(model: keras.Model, source: Source) -> bool:
    """Returns whether a fit takes its steps on shares of batches, one for each replica."""
    strategy = model.distribute_strategy
    on_several = replicas.are_several(strategy) or strategy.num_replicas_in_sync > 1
    return source.has_shares and on_several


def _test(model: keras.Model, share: tuple[Any, Any, Any], rows: tf.Tensor) -> dict[str, tf.Tensor]:
    """Updates the metrics by a share, unless it is empty; returns those of this replica."""
    del rows
    data = keras.utils.pack_x_y_sample_weight(*share)

    def update() -> tf.Tensor:
        model.test_step(data)
        return tf.constant(True)

    tf.cond(tf.shape(internals.array_leaves(share)[0])[0] > 0, update, lambda: tf.constant(False))
    return type(model).get_metrics_result(model)


def _check_validation(data: Any) -> None:
    """Raises TypeError if Keras would fail with such validation data."""
    if data is not None and not isinstance(data, WorkerBatches):
        raise TypeError(
            "validation_data must be WorkerBatches, too, on several workers. Received: "
            f"{'arrays' if isinstance(data, tuple) else a_type(data)}. "
            "WorkerBatches(data) takes IndependentBatches or another keras.utils.PyDataset."
        )


def _versions() -> dict[str, str]:
    from tfp_sgmcmc import __version__

    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    found["tfp_sgmcmc"] = __version__
    # Without what a distributor adds.
    return {f"version of {name}": x.partition("+")[0] for name, x in found.items()}


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
        flat = [
            [tf.convert_to_tensor(a) for a in internals.array_leaves(share)] for share in shares
        ]
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
            specs = [internals.array_leaves(spec)] * len(self._replicas)
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
