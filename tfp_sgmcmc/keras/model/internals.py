"""Access to the parts of Keras that have no public counterpart.

Keras has no public way to build a model from the first batch of `fit`, or to list what a forward
pass would assign. Only this file, `compiled_loss.py` and `data/training_data.py` use private names
of Keras. The names used here, and why:

  `Model._compile_loss`: shows whether a loss was compiled, and computes the reported loss;
  its `_user_loss_weights`: the argument of `compile`;
  `Model._compile_metrics`: changes with every `compile`, as `_compile_loss` does;
  `Model._symbolic_build`: creates the variables of model, loss and metrics before the first step;
  `Model._loss_tracker`: the metric that reports `loss`;
  `Model._initial_epoch`: the epoch at which `fit` starts; `BackupAndRestore` sets it, too;
  `Optimizer._learning_rate`: the schedule or variable behind the current learning rate;
  `Layer._call_has_training_arg`: shows whether `training` may be passed;
  `Layer._flatten_layers`: lists all layers, nested ones included;
  `Functional._inputs_struct` and `_outputs_struct`: the nests of its symbolic tensors;
  `keras.src`, for `DataAdapter`: the class of data that `fit` takes as they are;
  `_keras_history` of a symbolic tensor: the layer that it comes from;
  `_keras_mask` of a tensor: its mask;
  `_keras_logits` of a tensor: the logits whose sigmoid or softmax the tensor is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.internal.checks import a_type

DataAdapter = keras.src.trainers.data_adapters.data_adapter.DataAdapter
_WITH_COPIES = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.TPUStrategy,
)
CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)


def learning_rate(model: keras.Model) -> Any:
    """Returns the learning rate of a model's optimizer: a variable, a schedule or a function.

    Raises:
      ValueError: the model has no optimizer.
    """
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if optimizer is None:
        raise ValueError(
            "The model must be compiled with an optimizer, whose learning rate is the step size. "
            "Received: a model without one."
        )
    return optimizer._learning_rate


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


def check_model_type(model: Any) -> None:
    """Raises TypeError unless `model` is a Keras model."""
    if not isinstance(model, keras.Model):
        is_old = type(model).__module__.startswith("tf_keras")
        where = " of tf_keras, which is Keras 2; make it with Keras 3" * is_old
        raise TypeError(f"model must be a keras.Model. Received: {a_type(model)}{where}.")


def has_all_variables(model: keras.Model) -> bool:
    """Returns whether a model and all its layers are built; a first call may build some of them."""
    return model.built and all(layer.built for layer in layers(model))


def check_built(model: Any) -> None:
    """Raises TypeError unless `model` is a Keras model, and ValueError unless it has variables."""
    check_model_type(model)
    if not model.built:
        raise ValueError(
            f"model must be built, so that it has its variables. Received: {model.name!r}, which "
            "is not. Give it a keras.Input, or call it on inputs."
        )


def check_model(model: keras.Model) -> None:
    """Raises unless the model is compiled, has Keras' training step, and keeps no state of rows."""
    check_model_type(model)
    for name in ("train_step", "compute_loss"):
        if name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(
                f"model must have the {name} of keras.Model. Received: {type(model).__name__}, "
                f"which overrides {name}, so that no log likelihood can be read from it. Remove "
                f"this {name}, and pass the negative log likelihood of an example to "
                "model.compile(loss=...); terms of a layer belong into its add_loss."
            )
    if not model.compiled or model._compile_loss is None:
        received = "compiled without a loss" if model.compiled else "not compiled"
        raise ValueError(
            "model must be compiled with a loss, the negative log likelihood. Received: a model "
            f"that is {received}. Call model.compile(loss=...) before fit."
        )
    for layer in layers(model):
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise ValueError(
                "Recurrent layers must have stateful=False, because the likelihood of a row would "
                "depend on the batches before it, in whichever order they came. Received: "
                f"{layer.name!r}, {a_type(layer)} with stateful=True. Give each row its "
                "whole sequence."
            )
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if getattr(optimizer, "use_ema", False):
        raise ValueError(
            "The model's optimizer must have use_ema=False. Received: use_ema=True, which would "
            "replace the weights by their averages after fit. Sampling does not use the "
            "optimizer, so compile with any other."
        )


def check_distribution(model: keras.Model, **single: Any) -> None:
    """Raises ValueError unless `fit` with chains supports how a compiled model is distributed.

    `single` are options that need a model on a single replica (None if not given).
    """
    strategy = model.distribute_strategy
    replicas.check_cluster(strategy)
    if strategy.num_replicas_in_sync == 1 and not replicas.are_several(strategy):
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


def symbolic_outputs(model: keras.Model) -> Any:
    """Returns the nest of a model's symbolic outputs, or None if it has none (by subclassing)."""
    if isinstance(model, keras.Sequential):
        return model.outputs[0] if model.built and model.outputs else None
    return getattr(model, "_outputs_struct", None)


def input_specs(model: keras.Model) -> Any:
    """Returns specifications of a batch of two rows, or None for a model without known inputs."""
    inputs = getattr(model, "_inputs_struct", None)
    if isinstance(model, keras.Sequential) and model.built and model.inputs:
        inputs = model.inputs[0]
    return keras.tree.map_structure(
        lambda x: tf.TensorSpec([2, *(n or 1 for n in x.shape[1:])], x.dtype), inputs
    )


def layer_of(output: Any) -> Any:
    """Returns the layer that a symbolic output comes from, or None if not known."""
    return getattr(output, "_keras_history", (None,))[0]


def activation_name(output: Any) -> str | None:
    """Returns the name of the activation of a symbolic output's layer, or None if not known."""
    layer, _, index = getattr(output, "_keras_history", (None, 0, 0))
    if isinstance(layer, keras.Model) and getattr(layer, "outputs", None):
        return activation_name(keras.tree.flatten(layer.outputs)[index])
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    known = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Activation, *CONVOLUTIONS)
    if not isinstance(layer, known):
        return None
    name = "linear" if layer.activation is None else getattr(layer.activation, "__name__", None)
    if name == "linear" and isinstance(layer, keras.layers.Activation):  # as of a last cast
        return activation_name(layer.input)
    return name


def begin_at_epoch(model: keras.Model, epoch: int | None) -> None:
    """Sets the epoch at which `fit` starts; None keeps the caller's."""
    model._initial_epoch = epoch


def compilation(model: keras.Model) -> tuple[Any, ...]:
    """Returns the parts of a compiled model whose change requires a new train function."""
    return (
        model._compile_loss,
        model._compile_metrics,
        model.jit_compile,
        model.run_eagerly,
        model.steps_per_execution,
    )


def loss_weights(model: keras.Model) -> Any:
    """Returns the `loss_weights` that a model was compiled with, or None."""
    return model._compile_loss._user_loss_weights


def compiled_loss(model: keras.Model) -> Any:
    """Returns the compiled loss, another object after each `compile`."""
    return model._compile_loss


@contextlib.contextmanager
def with_loss(model: keras.Model, loss: Any) -> Generator[None]:
    """Gives a model what `compiled_loss` has returned before, while the context lasts."""
    now, model._compile_loss = model._compile_loss, loss
    try:
        yield
    finally:
        model._compile_loss = now


def build(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> None:
    """Creates the variables that `fit` would create at a first batch of these shapes."""

    x, y = keras.tree.map_structure(text_as_tensor, (x, y))
    model._symbolic_build(data_batch=(x, y, sample_weight))


def text_as_tensor(array: Any) -> Any:
    """Returns a tensor in place of strings of NumPy or pandas, of which Keras takes none."""
    array = array.to_numpy() if hasattr(array, "to_numpy") else array
    is_text = isinstance(array, np.ndarray) and array.dtype.kind in "OSU"
    return tf.convert_to_tensor(array) if is_text else array


def layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the model and all layers within it, outermost first."""
    return list(model._flatten_layers())


def has_unweighted_targets(y: Any, sample_weight: Any) -> bool:
    """Returns whether an output has targets and None for its weights, among others with weights."""
    targets, weights = keras.tree.flatten(y), keras.tree.flatten(sample_weight)
    if len(targets) != len(weights):
        return False
    return any(w is None and t is not None for t, w in zip(targets, weights, strict=True))


def resolution(model: keras.Model) -> float:
    """Returns the distance of 1 to the next number of the coarsest dtype that a layer computes."""
    dtypes = {tf.as_dtype(layer.compute_dtype) for layer in layers(model)}
    return max(float(np.spacing(x.as_numpy_dtype(1))) for x in dtypes if x.is_floating)


def has_half_precision(model: keras.Model) -> bool:
    """Returns whether a layer computes in float16, whose largest number is 65504, or bfloat16."""
    return any(layer.compute_dtype in ("float16", "bfloat16") for layer in layers(model))


@contextlib.contextmanager
def _told_of_fixed_sizes(model: keras.Model, x: Any) -> Generator[None]:
    """Raises ValueError if a call fails that has other rows than the model's fixed batch size."""
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        sizes = {a.shape[0] for a in keras.tree.flatten(getattr(model, "inputs", None) or [])}
        rows = array_leaves(x)[0].shape[0]
        if not sizes - {None} or rows in sizes:
            raise
        raise ValueError(
            "The model must take any number of rows, since checks and predictions use others than "
            f"fit. Received: inputs with the batch size {max(sizes - {None})}, and a layer that "
            f"fails with {rows} rows. Use keras.Input(shape) without it, and -1 for it in layers."
        ) from error


def forward(
    model: keras.Model,
    variables: list[keras.Variable],
    values: list[tf.Tensor],
    x: Any,
    training: bool,
) -> Forward:
    """Calls the model with `values`, cast to their dtypes, in place of its `variables`.

    Raises:
      ValueError: the model assigns weights that are sampled.
    """
    values = [tf.cast(x, v.dtype) for v, x in zip(variables, values, strict=True)]
    given = {id(v): value for v, value in zip(variables, values, strict=True)}
    # In the scope, Keras finds no value of another variable for its regulariser.
    others = [v for v in model.trainable_variables if v.regularizer and id(v) not in given]
    mapping = [*zip(variables, values, strict=True)]
    mapping += [(v, keras.ops.convert_to_tensor(v)) for v in others]
    arguments = {"training": training} if model._call_has_training_arg else {}
    scope = keras.StatelessScope(state_mapping=mapping, collect_losses=True)
    with _told_of_fixed_sizes(model, x), scope:
        outputs = model(x, **arguments)
        losses = [tf.reduce_sum(tf.cast(loss, keras.config.floatx())) for loss in model.losses]
    for v in model.trainable_variables:
        if given.get(id(v)) is not None and scope.get_current_value(v) is not given[id(v)]:
            raise ValueError(
                f"A call of the model must not assign {v.path}, which is sampled: predictions "
                "would use the weight, and the likelihood its new value. Received: a layer that "
                "assigns it, as SpectralNormalization does in training. Remove the layer, or set "
                "trainable=False."
            )

    def assigned(variables: list[keras.Variable]) -> dict[int, tf.Tensor]:
        found = [(i, scope.get_current_value(v), id(v)) for i, v in enumerate(variables)]
        return {i: x for i, x, key in found if x is not None and x is not given.get(key)}

    updates, metrics = assigned(model.non_trainable_variables), assigned(model.metrics_variables)
    return Forward(outputs, losses, updates, metrics, marks(outputs))


def is_floating(variable: keras.Variable) -> bool:
    """Returns whether a variable holds real numbers, which a posterior can have samples of."""
    return variable.dtype.startswith(("float", "bfloat"))


def map_arrays(fn: Callable[[Any], Any], nest: Any) -> Any:
    """Maps the leaves of a nest, except those that are None."""
    return keras.tree.map_structure(lambda a: None if a is None else fn(a), nest)


def array_leaves(nest: Any) -> list[Any]:
    """Returns the leaves of a nest, except those that are None."""
    return [a for a in keras.tree.flatten(nest) if a is not None]


def changed_by_call(model: keras.Model, x: Any) -> list[keras.Variable]:
    """Returns the variables that a forward pass in training assigns; only shapes of `x` matter."""
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
    """Returns the mask that Keras attached to outputs, `[rows, ...]`, or None."""
    return getattr(outputs, "_keras_mask", None)


def cast_with_mask(outputs: tf.Tensor, dtype: str) -> tf.Tensor:
    """Returns outputs in another dtype, with their mask."""
    return with_marks(tf.cast(outputs, dtype), {"_keras_mask": {0: mask(outputs)}})


def at_places(outputs: Any, values: dict[int, Any]) -> Any:
    """Returns a nest like `outputs` with `values` at their places and None elsewhere."""
    count = len(keras.tree.flatten(outputs))
    return keras.tree.pack_sequence_as(outputs, [values.get(i) for i in range(count)])


def shallow_copy(loss: Any) -> Any:
    """Copies like `copy.copy`, which serialises a Keras object and so fails for many losses."""
    copied = object.__new__(type(loss))
    vars(copied).update(vars(loss))
    return copied


def marks(outputs: Any) -> dict[str, dict[int, tf.Tensor]]:
    """Returns masks and logits that Keras attached to outputs, by name and place of the output.

    A place is a position among the flattened outputs. Without logits Keras' crossentropies clip the
    probabilities, and confident wrong predictions get no gradient.
    """
    flat = list(enumerate(keras.tree.flatten(outputs)))
    names = ("_keras_mask", "_keras_logits")  # AutoGraph takes no assignment expressions
    return {
        n: {i: getattr(y, n) for i, y in flat if getattr(y, n, None) is not None} for n in names
    }


def with_marks(outputs: Any, marks: dict[str, dict[int, tf.Tensor]]) -> Any:
    """Attaches marks to outputs that have lost them, and returns the outputs."""
    flat = keras.tree.flatten(outputs)
    for name, by_place in marks.items():
        for place, x in by_place.items():
            setattr(flat[place], name, x)
    return outputs


def reported_loss(
    model: keras.Model, y: Any, evaluated: Forward, sample_weight: Any, rows: tf.Tensor
) -> tf.Tensor:
    """Returns the loss that Keras reports, and updates its metric and the metrics of layers."""
    # Keras divides it by the number of replicas.
    compiled = replicas.count() * model._compile_loss(y, evaluated.outputs, sample_weight)
    loss = compiled + sum(tf.cast(x, compiled.dtype) for x in evaluated.losses)
    model._loss_tracker.update_state(loss, sample_weight=rows)
    for i, value in evaluated.metrics.items():
        model.metrics_variables[i].assign(value)
    return loss


def metrics_result(model: keras.Model) -> dict[str, tf.Tensor]:
    """Returns the model's metrics over the rows of all replicas."""
    summed = [v for v in model.metrics_variables if v.aggregation == "sum"]
    totals = replicas.total([keras.ops.convert_to_tensor(v) for v in summed])
    with keras.StatelessScope(state_mapping=list(zip(summed, totals, strict=True))):
        # The class's method, because a model in `fit` may have its own, which calls this function.
        return type(model).get_metrics_result(model)
