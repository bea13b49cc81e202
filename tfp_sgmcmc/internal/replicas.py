"""Communication between the replicas of a `tf.distribute` strategy that share one chain.

Each replica has a share of the data and takes every step of the chain. The copies of the state stay
equal, because sums over replicas are the same everywhere and all replicas draw the same noise.
Outside of steps the workers of a `MultiWorkerMirroredStrategy` exchange messages, by functions that
all workers must call in the same order.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.xla import traced

# What TensorFlow raises where another worker is lost.
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
_WORD = 4  # bytes of the integers that carry a message
_ANSWER, _ERROR = b"+", b"-"  # how a message begins
_WITH_COPIES = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def current() -> Replicas | None:
    """Returns the replicas of the current strategy, or None if there is only one.

    Raises:
      ValueError: the strategy is not one whose replicas step together with copies of the state, or
        it is a `MultiWorkerMirroredStrategy` without the addresses of its workers.
    """
    strategy = tf.distribute.get_strategy()
    check_cluster(strategy)
    if strategy.num_replicas_in_sync == 1:
        return None
    if not isinstance(strategy, _WITH_COPIES):
        raise ValueError(
            f"The strategy must be one of {', '.join(s.__name__ for s in _WITH_COPIES)}, whose "
            "replicas step together. Received: "
            f"{a_type(strategy)} of {strategy.num_replicas_in_sync} replicas."
        )
    return Replicas(strategy)


def check_cluster(strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError if a strategy for several workers has no addresses of workers."""
    is_for_several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if is_for_several and not strategy.cluster_resolver.cluster_spec():
        raise ValueError(
            "MultiWorkerMirroredStrategy must have the addresses of its workers, from a "
            "cluster_resolver or the environment variable TF_CONFIG, such as "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", '
            '"index": 0}}, set before the strategy is made. Received: neither, so that this '
            "process would sample alone. For one process, use no strategy or a MirroredStrategy."
        )


def device_scope(replicas: Replicas | None, number: int) -> Any:
    """Returns a context that places tensors on the device of a replica of this process."""
    if replicas is None:
        return contextlib.nullcontext()
    return tf.device(replicas.devices[replicas.held.index(number)])


def held_by_process(strategy: tf.distribute.Strategy) -> list[int]:
    """Returns the numbers of a strategy's replicas in this process."""
    numbers = traced(lambda: strategy.run(_number))()
    return [int(x) for x in strategy.experimental_local_results(numbers)]


def first_local(strategy: tf.distribute.Strategy, results: Any) -> Any:
    """Returns the result of `strategy.run` on the first replica of this process."""
    return tf.nest.map_structure(lambda x: strategy.experimental_local_results(x)[0], results)


def messages(strategy: tf.distribute.Strategy, message: bytes) -> list[bytes]:
    """Returns the messages of all workers, in the order of their numbers.

    All workers must call it, in the same order, and not within a step.
    """
    padded = message.ljust(-(-len(message) // _WORD) * _WORD, b"\0")
    words = np.frombuffer(padded, np.int32)

    def gather(length: tf.Tensor, words: tf.Tensor) -> Any:
        def of_replica() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            return [context.all_gather(tf.identity(x), axis=0) for x in (length, words)]

        return first_local(strategy, strategy.run(of_replica))

    found = traced(gather)(tf.constant([len(message)]), tf.constant(words))
    lengths, rows = (x.numpy() for x in found)
    parts = np.split(rows, np.cumsum(-(-lengths // _WORD))[:-1])
    every = slice(None, None, len(held_by_process(strategy)))  # a worker's replicas send the same
    return [p.tobytes()[:n] for p, n in zip(parts[every], lengths[every], strict=True)]


def are_several(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the replicas of a strategy may be in several processes."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_first(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process is worker 0, or the only one."""
    return not are_several(strategy) or held_by_process(strategy)[0] == 0


def exchanged(strategy: tf.distribute.Strategy, make: Callable[[], bytes]) -> list[bytes]:
    """Returns what `make` returned on each worker.

    Raises:
      ValueError: `make` failed on another worker, which the message names with the reason.
      Exception: the exception that `make` raised on this worker.
    """
    result, error = _outcome(make)
    message = _ANSWER + result if error is None else _ERROR + str(error).encode()
    found = messages(strategy, message)
    if error is not None:
        raise error
    for worker, text in enumerate(found):
        if text.startswith(_ERROR):
            raise ValueError(f"Worker {worker} cannot go on: {text[1:].decode()}")
    return [text[1:] for text in found]


def of_first(strategy: tf.distribute.Strategy, make: Callable[[], bytes]) -> bytes:
    """Returns on all workers what `make` returned on worker 0, the only one that calls it."""
    return exchanged(strategy, make if is_first(strategy) else bytes)[0]


def count() -> int:
    """Returns the number of replicas, R."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def total(values: Any) -> Any:
    """Returns the sums of a nest of tensors over replicas.

    All replicas must call it, outside loops, branches and mapped functions.
    """
    if count() == 1 or not tf.nest.flatten(values):
        return values
    # TensorFlow does not sum an object that all replicas share, such as a constant.
    values = tf.nest.map_structure(tf.identity, values)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def total_rows(rows: Any) -> Any:
    """Returns the number of rows of the whole batch, given the `rows` of this replica."""
    # A float, because not all devices can sum integers.
    return rows if count() == 1 else total(tf.cast(rows, tf.float32))


def averaged(values: Sequence[tf.Tensor], rows: Any, num_rows: Any) -> list[tf.Tensor]:
    """Returns floats averaged over replicas, weighted by rows, and integers unchanged."""
    if count() == 1:
        return list(values)
    weight = tf.cast(rows, num_rows.dtype) / num_rows
    floats = [x for x in values if x.dtype.is_floating]
    # On a replica without rows, values that are means over rows are NaN.
    means = iter(total([tf.math.multiply_no_nan(x, tf.cast(weight, x.dtype)) for x in floats]))
    return [next(means) if x.dtype.is_floating else x for x in values]


def gathered(tensors: Any, axis: int, size: int | None = None) -> Any:
    """Returns a nest of tensors, concatenated over replicas along `axis`.

    `size` is the length of that axis, if known. All replicas must call it, as for `total`.
    """
    if count() == 1:
        return tensors

    def join(x: tf.Tensor) -> tf.Tensor:
        shape = [*x.shape[:axis], size, *x.shape[axis + 1 :]]
        return tf.ensure_shape(tf.distribute.get_replica_context().all_gather(x, axis), shape)

    return tf.nest.map_structure(join, tensors)


class Replicas:
    """The replicas of a strategy, some or all of them in this process.

    Attributes:
      strategy: the strategy.
      count: R, the number of replicas of all workers.
      held: numbers of the replicas in this process.
      devices: their devices.
      num_workers: number of processes.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy, self.count = strategy, strategy.num_replicas_in_sync
        self.held = held_by_process(strategy)
        self.devices = list(strategy.extended.worker_devices)
        self.num_workers = self.count // len(self.held)

    @property
    def is_first(self) -> bool:
        """Whether this process is worker 0, which writes the files that all share."""
        return self.held[0] == 0

    def here(self) -> int | None:
        """Returns the number of the replica whose step is under way, or None between steps.

        Raises ValueError in the scope of another strategy.
        """
        if tf.distribute.get_strategy() is not self.strategy:
            raise ValueError(
                "The target must be used in the scope of the strategy in which it was made, a "
                f"{type(self.strategy).__name__} of {self.count} replicas. Received: a call in "
                f"the scope of {type(tf.distribute.get_strategy()).__name__}. Call it below `with "
                "strategy.scope():`."
            )
        if tf.distribute.in_cross_replica_context():
            return None
        number = tf.get_static_value(_number())
        assert number is not None
        return int(number)

    def run(self, fn: Callable[[], Any]) -> Any:
        """Returns the nest of tensors that `fn` returns on the first replica of this process.

        `fn` runs on all replicas. It is called between steps, by all workers alike.
        """
        found: list[Any] = []

        def on_replica() -> list[tf.Tensor]:
            found[:] = [fn()]
            return [tf.identity(x) for x in tf.nest.flatten(found[0])]

        def on_all() -> list[tf.Tensor]:
            return first_local(self.strategy, self.strategy.run(on_replica))

        tensors = traced(on_all)() if tf.executing_eagerly() else on_all()
        return tf.nest.pack_sequence_as(found[0], tensors)

    def all(self, value: Any) -> list[Any]:
        """Returns the JSON values of all workers, in the order of their numbers."""
        if self.num_workers == 1:
            return [value]
        return [json.loads(x) for x in messages(self.strategy, json.dumps(value).encode())]

    def exchange(self, numbers: Any) -> np.ndarray:
        """Returns a row of numbers from each worker, `[workers, k]`, given this worker's k numbers.

        They are floats of 24 bits.
        """
        rows = self._join(tf.constant(np.asarray(numbers, np.float32)))
        return rows.numpy()[:: len(self.held)]

    @functools.cached_property
    def _join(self) -> Callable[[tf.Tensor], tf.Tensor]:
        return traced(lambda row: self.run(lambda: gathered(row[tf.newaxis], 0)))

    def from_first(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Replaces this worker's arrays by those of worker 0, bit for bit.

        All workers must pass arrays of the same shapes and dtypes.
        """
        own = [np.asarray(x) for x in arrays]
        if self.num_workers == 1 or not own:
            return own
        sent = b"".join(x.tobytes() for x in own) if self.is_first else b"-"
        rest, found = messages(self.strategy, sent)[0], []
        for x in own:
            found.append(np.frombuffer(rest[: x.nbytes], x.dtype).reshape(x.shape))
            rest = rest[x.nbytes :]
        return found

    def together(self, what: str, fn: Callable[[], Any]) -> Any:
        """Returns `fn()`; if it raises on a worker, all workers raise before they wait for it.

        `fn` must not communicate. `what` describes it in messages, such as "load its shards".
        """
        result, failure = _outcome(fn)
        found = self.all(None if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        for worker, message in enumerate(found):
            if message is not None:
                raise ValueError(f"Worker {worker} could not {what}. It raised {message}")
        return result

    def check_same(self, what: dict[str, Any]) -> None:
        """Raises ValueError if named JSON values differ between workers."""
        found = self.all(what)
        for worker, other in enumerate(found):
            names = [name for name in found[0] | other if found[0].get(name) != other.get(name)]
            if names:
                differences = "; ".join(
                    f"{name}: {found[0].get(name)!r} and {other.get(name)!r}" for name in names
                )
                raise ValueError(
                    f"Workers 0 and {worker} must be given the same. Received: {differences}."
                )


def _outcome(fn: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Returns what `fn` returns, and what it raises, because other workers wait for a message."""
    try:
        return fn(), None
    except Exception as error:
        return None, error


def _number() -> tf.Tensor:
    return tf.distribute.get_replica_context().replica_id_in_sync_group
