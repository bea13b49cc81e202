"""Exchanges messages between the workers of a `MultiWorkerMirroredStrategy`, outside its steps.

All workers must call these functions in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfp_sgmcmc.internal.replicas import held_by_process, messages

_ANSWER, _ERROR = b"+", b"-"


def are_several(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the replicas of a strategy may be in several processes."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def check_alone(what: str, instead: str) -> None:
    """Raises ValueError if TF_CONFIG makes this process one of several workers."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    count = sum(map(cluster.num_tasks, cluster.jobs))
    if count > 1:
        raise ValueError(
            f"{what[0].upper()}{what[1:]} need a model on one device. Received: a process that "
            f"TF_CONFIG makes one of {count} workers. Give fit {instead} instead."
        )


def is_first(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process is worker 0, or the only one."""
    return not are_several(strategy) or held_by_process(strategy)[0] == 0


def exchanged(strategy: tf.distribute.Strategy, make: Callable[[], bytes]) -> list[bytes]:
    """Returns what `make` returned on each worker.

    Raises:
      ValueError: `make` failed on another worker, which the message names with the reason.
      Exception: the exception that `make` raised on this worker.
    """
    error: Exception | None = None
    try:
        message = _ANSWER + make()
    except Exception as raised:  # of any kind, because the others wait for a message
        error, message = raised, _ERROR + str(raised).encode()
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
