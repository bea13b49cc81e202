"""Exchanges between the replicas and the workers of a `tf.distribute` strategy.

Within a step each replica has some rows of a batch, perhaps none of a short last batch, and a copy
of every variable. The copies stay equal because all replicas assign the same values to them: the
gradient is summed over replicas before a kernel sees it, and all replicas draw noise from the same
seed. Outside of steps the workers of a `MultiWorkerMirroredStrategy` exchange messages, by
functions that all workers must call in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfp_sgmcmc.internal.replicas import Replicas, check_cluster, held_by_process, messages

_ANSWER, _ERROR = b"+", b"-"

_WITH_COPIES = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.TPUStrategy,
)


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


def check_distribution(model: keras.Model, **single: Any) -> None:
    """Raises ValueError unless `fit` with chains supports how a compiled model is distributed.

    `single` are options that need a model on a single replica (None if not given).
    """
    strategy = model.distribute_strategy
    check_cluster(strategy)
    if strategy.num_replicas_in_sync == 1 and not are_several(strategy):
        return
    if not isinstance(strategy, _WITH_COPIES):
        raise ValueError(
            "model must be distributed by one of "
            f"{', '.join(s.__name__ for s in _WITH_COPIES)}, whose replicas each hold a copy of "
            f"the weights and step together. Received: {type(strategy).__name__}."
        )
    is_mirrored = not isinstance(strategy, tf.distribute.TPUStrategy)
    if is_mirrored and (model.jit_compile or model.steps_per_execution > 1):
        raise ValueError(
            "model must be compiled with jit_compile=False (or 'auto') and steps_per_execution=1 "
            f"under {type(strategy).__name__}, because Keras' fit then takes only single steps "
            f"that XLA does not compile. Received: jit_compile={model.jit_compile} and "
            f"steps_per_execution={model.steps_per_execution}."
        )
    for name, option in single.items():
        if option is not None:
            raise ValueError(
                f"{name} must be None for a model that is distributed over "
                f"{strategy.num_replicas_in_sync} replicas, because it needs a model on one."
            )


def count() -> int:
    """Returns the number of replicas, R."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def total(values: Any) -> Any:
    """Returns the sums of a nest of tensors over replicas.

    All replicas must call it, outside loops, branches and mapped functions.
    """
    return values if count() == 1 else Replicas.total(values)


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


def gathered(tensors: Any, axis: int) -> Any:
    """Returns a nest of tensors, concatenated over replicas along `axis`."""
    return tensors if count() == 1 else Replicas.joined(tensors, axis)


def metrics_result(model: keras.Model) -> dict[str, tf.Tensor]:
    """Returns the model's metrics over the rows of all replicas."""
    summed = [v for v in model.metrics_variables if v.aggregation == "sum"]
    totals = total([keras.ops.convert_to_tensor(v) for v in summed])
    with keras.StatelessScope(state_mapping=list(zip(summed, totals, strict=True))):
        # The class's method, because a model in `fit` may have its own, which calls this function.
        return type(model).get_metrics_result(model)


def on_this_process(variable: Any) -> Any:
    """Returns the first replica's copy of a variable in this process.

    Reading a metric's variable itself would sum it over all workers, which must then all read it.
    """
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    return variable.values[0] if is_distributed else variable
