"""The compiled loss as a negative log likelihood; all private names of Keras are used here only.

Keras has no public way to evaluate a compiled loss with another reduction, nor to build a model
from the first batch of `fit`. Used, and why:

  `Model._compile_loss`, its `_flat_losses`: the resolved losses with their outputs and weights;
  its `_user_loss`, `_user_loss_weights`: what these are resolved from;
  `Model._compile_metrics`: new with every `compile`, as `_compile_loss` is;
  `Model._symbolic_build`: creates variables of model, loss and metrics before the first step;
  `Model._loss_tracker`: the metric that reports `loss`;
  `Model._initial_epoch`: the epoch that a restored `fit` begins at, as `BackupAndRestore` sets it;
  `Layer._call_has_training_arg`: whether `training` may be passed;
  `Layer._flatten_layers`: all layers, those within layers too;
  `Loss.fn`, `Loss._fn_kwargs`: the function that a loss of Keras' own evaluates;
  `_keras_mask` of a tensor: what was masked;
  `_keras_logits` of a tensor: what it is the sigmoid or softmax of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfp_sgmcmc.keras.model import replicas


class Forward(NamedTuple):
    """A forward pass that left the model's variables as they were.

    Attributes:
      outputs: what the model returned.
      losses: the values of regularisers and `add_loss` terms, scalars.
      updates: the values that the pass would assign to `model.non_trainable_variables` (moving
        statistics, seeds of dropout), by position in that list.
      metrics: the values that it would assign to `model.metrics_variables`, by position.
      marks: the masks and logits that Keras attached to the outputs (see `marks`).
    """

    outputs: Any
    losses: list[tf.Tensor]
    updates: dict[int, tf.Tensor]
    metrics: dict[int, tf.Tensor]
    marks: dict[str, dict[int, tf.Tensor]]


def check_model(model: keras.Model) -> None:
    """Raises ValueError for a model whose training step is not Keras' own."""
    if not model.compiled:
        raise ValueError("The model is not compiled; call model.compile(loss=...) before fit.")
    for name in ("train_step", "compute_loss"):
        if name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(
                f"{type(model).__name__} overrides {name}, from which no log likelihood can be "
                "read: pass the negative log likelihood to model.compile(loss=...)."
            )
    if getattr(model.optimizer, "use_ema", False):
        raise ValueError(
            "The model's optimizer has use_ema=True and would replace the weights by its "
            "averages after fit; the optimizer is not used, compile with any other."
        )
    if model._compile_loss is None:
        raise ValueError(
            "The model is compiled without a loss; the negative log likelihood is expected: "
            "model.compile(loss=...)."
        )


def begin_at_epoch(model: keras.Model, epoch: int | None) -> None:
    """Has the `fit` that is being set up begin at an epoch; None is as it was called."""
    model._initial_epoch = epoch


def compilation(model: keras.Model) -> tuple[Any, ...]:
    """What a train function is made of; it serves further fits until one of these changes."""
    return (
        model._compile_loss,
        model._compile_metrics,
        model.jit_compile,
        model.run_eagerly,
        model.steps_per_execution,
    )


def build(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> None:
    """Creates the variables that the first batch of `fit`, or one of its shapes, would create."""
    model._symbolic_build(data_batch=(x, y, sample_weight))


def layers(model: keras.Model) -> list[keras.Layer]:
    """The model, its layers and theirs, outermost first."""
    return list(model._flatten_layers())


def forward(
    model: keras.Model,
    variables: list[keras.Variable],
    values: list[tf.Tensor],
    x: Any,
    training: bool,
) -> Forward:
    """Calls the model with `values` in place of its `variables`."""
    mapping = list(zip(variables, values, strict=True))
    arguments = {"training": training} if model._call_has_training_arg else {}
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        outputs = model(x, **arguments)
        losses = [tf.reduce_sum(tf.cast(loss, keras.config.floatx())) for loss in model.losses]
    given = {id(v): value for v, value in mapping}

    def assigned(variables: list[keras.Variable]) -> dict[int, tf.Tensor]:
        values = {i: scope.get_current_value(v) for i, v in enumerate(variables)}
        return {
            i: x
            for i, x in values.items()
            if x is not None and x is not given.get(id(variables[i]))
        }

    updates, metrics = assigned(model.non_trainable_variables), assigned(model.metrics_variables)
    return Forward(outputs, losses, updates, metrics, marks(outputs))


def map_arrays(fn: Callable[[Any], Any], nest: Any) -> Any:
    """Maps the leaves of a nest but those that are None, which stay."""
    return keras.tree.map_structure(lambda a: None if a is None else fn(a), nest)


def changed_by_call(model: keras.Model, x: Any) -> list[keras.Variable]:
    """The variables that a forward pass in training assigns; of `x` the shapes count."""
    changed: list[keras.Variable] = []

    @tf.function(autograph=False)
    def trace(x: Any) -> None:
        variables = model.trainable_variables
        values = [keras.ops.convert_to_tensor(v) for v in variables]
        updates = forward(model, variables, values, x, training=True).updates
        changed.extend(model.non_trainable_variables[i] for i in updates)

    trace.get_concrete_function(map_arrays(lambda a: tf.TensorSpec(a.shape, a.dtype), x))
    return changed


def mask(outputs: tf.Tensor) -> tf.Tensor | None:
    """The mask that Keras has hung on outputs, `[rows, ...]`."""
    return getattr(outputs, "_keras_mask", None)


def marks(outputs: Any) -> dict[str, dict[int, tf.Tensor]]:
    """What Keras has hung on outputs, by name and their place among the flat ones.

    Logits are what they are the sigmoid or softmax of. Without them Keras' crossentropies clip the
    probabilities, and examples that are far out have no gradient.
    """
    flat = list(enumerate(keras.tree.flatten(outputs)))
    names = ("_keras_mask", "_keras_logits")
    return {n: {i: x for i, y in flat if (x := getattr(y, n, None)) is not None} for n in names}


def with_marks(outputs: Any, marks: dict[str, dict[int, tf.Tensor]]) -> Any:
    """Hangs them on outputs that have lost them."""
    flat = keras.tree.flatten(outputs)
    for name, own in marks.items():
        for place, x in own.items():
            setattr(flat[place], name, x)
    return outputs


def reported_loss(
    model: keras.Model, y: Any, evaluated: Forward, sample_weight: Any, rows: tf.Tensor
) -> tf.Tensor:
    """Keras' own scaled loss, handed to the metric that reports it; layers' metrics are updated."""
    # Keras divides it by the number of replicas.
    compiled = replicas.count() * model._compile_loss(y, evaluated.outputs, sample_weight)
    loss = compiled + sum(tf.cast(x, compiled.dtype) for x in evaluated.losses)
    model._loss_tracker.update_state(loss, sample_weight=rows)
    for i, value in evaluated.metrics.items():
        model.metrics_variables[i].assign(value)
    return loss
