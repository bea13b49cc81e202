"""What the replicas of a `tf.distribute` strategy tell one another within a step.

Each of them has some rows of a batch, perhaps none of a short last one, and a copy of every
variable. The copies stay equal, as all replicas assign the same to them: the gradient is summed
over replicas before a kernel sees it, and noise is drawn from the same seed everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

_WITH_COPIES = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.TPUStrategy,
)


def check_distribution(model: keras.Model, **single: Any) -> None:
    """Raises ValueError for a model that is distributed as no chain, or no fit, can be.

    Args:
      model: compiled.
      single: options by name, None where not given, that a single replica only can have.
    """
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return
    if not isinstance(strategy, _WITH_COPIES):
        raise ValueError(
            f"The model is distributed by {type(strategy).__name__}; one of "
            f"{', '.join(s.__name__ for s in _WITH_COPIES)} is expected, whose replicas each hold "
            "a copy of the weights and step together."
        )
    is_mirrored = not isinstance(strategy, tf.distribute.TPUStrategy)
    if is_mirrored and (model.jit_compile or model.steps_per_execution > 1):
        raise ValueError(
            f"The model is compiled with jit_compile={model.jit_compile} and steps_per_execution="
            f"{model.steps_per_execution}, but under {type(strategy).__name__} Keras' fit takes "
            "only single steps that XLA does not compile: jit_compile=False (or 'auto') and "
            "steps_per_execution=1 are expected."
        )
    for name, option in single.items():
        if option is not None:
            raise ValueError(
                f"{name} is given, but the model is distributed over "
                f"{strategy.num_replicas_in_sync} replicas; it is for a model on one."
            )


def count() -> int:
    """Number of replicas, R."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def total(values: Any) -> Any:
    """Sums over replicas of a nest of tensors.

    All replicas have to call it, and not within a loop, a branch or a mapped function.
    """
    if count() == 1 or not tf.nest.flatten(values):
        return values
    # Of what is the same object everywhere, such as a constant, TensorFlow makes no sum.
    values = tf.nest.map_structure(tf.identity, values)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def total_rows(rows: Any) -> Any:
    """Rows of the whole batch, where a replica has `rows`: an integer, where it is known."""
    # A float, as not all devices sum integers.
    return rows if count() == 1 else total(tf.cast(rows, tf.float32))


def averaged(values: Sequence[tf.Tensor], rows: Any, num_rows: Any) -> list[tf.Tensor]:
    """Means over replicas, weighted by their rows; integers, such as seeds, stay."""
    if count() == 1:
        return list(values)
    weight = tf.cast(rows, num_rows.dtype) / num_rows
    floats = [x for x in values if x.dtype.is_floating]
    # Without rows, a mean over them is NaN.
    means = iter(total([tf.math.multiply_no_nan(x, tf.cast(weight, x.dtype)) for x in floats]))
    return [next(means) if x.dtype.is_floating else x for x in values]


def gathered(tensors: Any, axis: int) -> Any:
    """The tensors of all replicas one after the other along `axis`, in a nest of them."""
    if count() == 1:
        return tensors
    context = tf.distribute.get_replica_context()

    def gather(x: tf.Tensor) -> tf.Tensor:
        shape = [*x.shape[:axis], None, *x.shape[axis + 1 :]]
        return tf.ensure_shape(context.all_gather(x, axis), shape)

    return tf.nest.map_structure(gather, tensors)


def metrics_result(model: keras.Model) -> dict[str, tf.Tensor]:
    """The model's metrics, over the rows that all replicas have seen."""
    summed = [v for v in model.metrics_variables if v.aggregation == "sum"]
    totals = total([keras.ops.convert_to_tensor(v) for v in summed])
    with keras.StatelessScope(state_mapping=list(zip(summed, totals, strict=True))):
        return model.get_metrics_result()
