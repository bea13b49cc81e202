"""Messages between the processes of a `MultiWorkerMirroredStrategy`, outside of its steps.

All workers must call each of these functions, and in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

_WORD = 4  # bytes of the integers that carry a message
_ANSWER, _ERROR = b"+", b"-"


def are_several(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the replicas of a strategy may be in several processes."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def check_cluster(strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError if a strategy for several workers has found no cluster."""
    if are_several(strategy) and not strategy.cluster_resolver.cluster_spec():
        raise ValueError(
            "MultiWorkerMirroredStrategy needs the addresses of all workers in the environment "
            'variable TF_CONFIG, such as {"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}, set before the strategy is made. Received: '
            "none, so that each process would sample alone. For one process, make the model "
            "without a strategy or in the scope of a MirroredStrategy."
        )


def check_alone(what: str, instead: str) -> None:
    """Raises ValueError if TF_CONFIG makes this process one of several workers."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    count = sum(map(cluster.num_tasks, cluster.jobs))
    if count > 1:
        raise ValueError(
            f"{what[0].upper()}{what[1:]} need a model on one device. Received: a process that "
            f"TF_CONFIG makes one of {count} workers. Give fit {instead} there."
        )


def local_replicas(strategy: tf.distribute.Strategy) -> list[int]:
    """Returns the numbers of the replicas that this process has."""

    def number() -> tf.Tensor:
        return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group)

    return [int(i) for i in strategy.experimental_local_results(strategy.run(number))]


def is_first(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process is worker 0, or the only one."""
    return not are_several(strategy) or local_replicas(strategy)[0] == 0


def exchanged(strategy: tf.distribute.Strategy, make: Callable[[], bytes]) -> list[bytes]:
    """Returns what `make` returned on each worker.

    Raises:
      ValueError: `make` failed on another worker; the message says on which, and why.
      Exception: what `make` raised here.
    """
    error: Exception | None = None
    try:
        message = _ANSWER + make()
    except Exception as raised:  # of any kind: the others wait for a message
        error, message = raised, _ERROR + str(raised).encode()
    found = _gathered(strategy, message)
    if error is not None:
        raise error
    for worker, text in enumerate(found):
        if text.startswith(_ERROR):
            raise ValueError(f"Worker {worker} cannot go on: {text[1:].decode()}")
    return [text[1:] for text in found]


def of_first(strategy: tf.distribute.Strategy, make: Callable[[], bytes]) -> bytes:
    """Returns on all workers what `make` returned on worker 0, which alone calls it; see above."""
    return exchanged(strategy, make if is_first(strategy) else bytes)[0]


def _gathered(strategy: tf.distribute.Strategy, message: bytes) -> list[bytes]:
    """Returns the message of each worker."""
    local = len(local_replicas(strategy))
    padded = message.ljust(-(-len(message) // _WORD) * _WORD, b"\0")
    words = np.frombuffer(padded, np.int32)

    @tf.function(autograph=False)
    def gather(length: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        def of_replica() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            return [context.all_gather(tf.identity(x), axis=0) for x in (length, words)]

        found = strategy.run(of_replica)
        return [strategy.experimental_local_results(x)[0] for x in found]

    lengths, rows = (x.numpy() for x in gather(tf.constant([len(message)]), tf.constant(words)))
    ends = np.cumsum([-(-n // _WORD) for n in lengths])
    parts = np.split(rows, ends[:-1])
    every = slice(None, None, local)  # the replicas of a worker send the same
    return [p.tobytes()[:n] for p, n in zip(parts[every], lengths[every], strict=True)]
