"""Copies of a model: from its configuration, and one that an ensemble trains.

The first has the state that a configuration leaves out. The second, distilled, predicts much as the
ensemble does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.layer_calls import random_rows
from tfp_sgmcmc.keras.posterior.batches import checked_inputs
from tfp_sgmcmc.keras.posterior.evaluate import Evaluation

if TYPE_CHECKING:
    from tfp_sgmcmc.keras.posterior.posterior import Posterior

_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)
_ROWS = 2  # of the batch on which a copy is compared


def copy_of(model: keras.Model, inputs: Any) -> tuple[Any, keras.Model, Any]:
    """Returns symbolic inputs, a copy of the model, and its symbolic outputs.

    The copy has the same architecture and preprocessing. Its variables have initial values.
    """
    known = _has_known_inputs(model)
    if inputs is None and not known:
        raise ValueError(
            "inputs must be given unless the model is Functional or Sequential, whose inputs are "
            f"known. Received: None for {checks.a_type(model)}. Pass "
            "to_keras_model(inputs=keras.Input(shape)), or a nest of them."
        )
    if inputs is not None and not all(map(keras.utils.is_keras_tensor, keras.tree.flatten(inputs))):
        raise TypeError(
            f"inputs must be a keras.Input, or a nest of them. Received: {type(inputs).__name__}."
        )
    if inputs is None:
        structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        inputs = keras.tree.map_structure(
            lambda x: keras.Input(x.shape[1:], dtype=x.dtype, name=x.name), structure
        )
    copied = _from_config(model)
    set_vocabularies(copied, vocabularies(model))
    outputs = internals.symbolic_outputs(model) if known else copied(inputs)
    set_low_ranks(copied, low_ranks(model))
    same = [(v.shape, v.dtype) for v in model.variables]
    if [(v.shape, v.dtype) for v in copied.variables] != same:
        raise ValueError(
            f"The model {model.name!r} must be made again with the same variables by its "
            "get_config and from_config. Received: one that is not."
        )
    return inputs, copied, outputs


def _has_known_inputs(model: keras.Model) -> bool:
    return bool(getattr(model, "inputs", None)) and internals.symbolic_outputs(model) is not None


def _from_config(model: keras.Model) -> keras.Model:
    """Returns a model of the same configuration; explains what Keras says if it cannot."""
    try:
        return _again(model)
    except (TypeError, NotImplementedError) as error:
        layer = _innermost_without_copy(model)
        name = "" if layer is model else f"its layer {layer.name!r}, "
        raise ValueError(
            f"The model {model.name!r} must be made again by its get_config and from_config. "
            f"Received: {name}{checks.a_type(layer)}, for which this fails. Let its __init__ "
            "take **kwargs and pass them to super().__init__, and let its get_config return the "
            "other arguments beside those of super().get_config()."
        ) from error
    except ValueError as error:
        lambdas = [x for x in internals.layers(model) if isinstance(x, keras.layers.Lambda)]
        if not lambdas:
            raise
        raise ValueError(
            f"The model {model.name!r} must be made of layers that Keras can copy and save. "
            f"Received: the Lambda layer {lambdas[0].name!r}, whose function has no name by which "
            "it is found. Write it as a subclass of keras.layers.Layer with call and get_config. "
            "Or call keras.config.enable_unsafe_deserialization() first, which lets Keras copy the "
            "function's code."
        ) from error


def _again(layer: Any) -> Any:
    """Returns a layer of the same configuration, whose classes and functions Keras need not know.

    Keras finds those that are registered or its own. The others are those of the layers at hand.
    """
    parts = [part for x in internals.layers(layer) for part in (x, *vars(x).values())]
    own = [x if inspect.isfunction(x) else type(x) for x in parts]
    named = {keras.saving.get_registered_name(x): x for x in own if not _is_of_keras(x)}
    with keras.saving.custom_object_scope(named):
        return type(layer).from_config(layer.get_config())


def _is_of_keras(kind: Any) -> bool:
    return kind.__module__.split(".")[0] == "keras"


def _innermost_without_copy(model: Any) -> Any:
    """Returns the layer for which `_again` fails, or the model if it is none of the layers."""
    for layer in model.layers if _has_known_inputs(model) else []:
        try:
            _again(layer)
        except (TypeError, NotImplementedError):
            return _innermost_without_copy(layer)
    return model


def low_ranks(model: keras.Model) -> list[list[Any]]:
    """Returns place, rank and scale of the layers that have a low-rank adaptation (LoRA).

    The configuration of MultiHeadAttention does not hold the adaptations of its layers.
    """
    layers = enumerate(internals.layers(model))
    enabled = [(i, x) for i, x in layers if getattr(x, "lora_enabled", False)]
    return [[i, x.lora_rank, x.lora_alpha] for i, x in enabled]


def set_low_ranks(model: keras.Model, given: list[list[Any]]) -> None:
    """Adds the low-rank adaptations that a model made from its configuration lacks."""
    layers = internals.layers(model)
    for place, rank, alpha in given:
        layer: Any = layers[place]
        if not layer.lora_enabled:
            layer.enable_lora(rank, alpha)


def vocabularies(model: keras.Model) -> list[list[Any]]:
    """Returns place, vocabulary and weights of the lookup layers that were adapted to data.

    Keras saves these vocabularies as files beside the configuration.
    """
    found = []
    for i, layer in enumerate(internals.layers(model)):
        if isinstance(layer, _LOOKUPS) and layer.input_vocabulary is None:
            tokens = np.asarray(layer.get_vocabulary()).tolist()
            weights = getattr(layer, "idf_weights", None)  # of output_mode="tf_idf"
            weights = None if weights is None else weights.numpy()[: len(tokens)].tolist()
            if layer.lookup_table.size() > 0:
                found.append([i, tokens, weights])
    return found


def set_vocabularies(model: keras.Model, given: list[list[Any]]) -> None:
    """Sets the vocabularies that a model made from its configuration lacks."""
    layers = internals.layers(model)
    for place, tokens, weights in given:
        layer: Any = layers[place]
        layer.set_vocabulary(tokens, weights)


def tables(model: keras.Model) -> list[Any]:
    """Returns the tables of the lookup layers, which a SavedModel must track."""
    return [x.lookup_table for x in internals.layers(model) if isinstance(x, _LOOKUPS)]


def normalizations(model: keras.Model) -> list[Any]:
    """Returns the layers that keep constants, made of their variables by `finalize_state`."""
    layers = internals.layers(model)
    return [x for x in layers if isinstance(x, keras.layers.Normalization)]


def random_batch(inputs: Any) -> Any:
    """Returns a batch for symbolic inputs, or None if an axis other than the rows is unknown."""
    leaves = keras.tree.flatten(inputs)
    if any(None in x.shape[1:] or getattr(x, "sparse", False) for x in leaves):
        return None
    return keras.tree.map_structure(tf.constant, random_rows(inputs, _ROWS))


def check_copy(
    model: keras.Model, evaluate: Callable[[], Any], evaluate_copy: Callable[[], Any]
) -> None:
    """Raises ValueError unless a copy's outputs equal those of `evaluate`, up to rounding.

    A model whose outputs are not reproducible passes, and one that refuses the inputs, such as
    words that are not in its vocabulary.
    """
    try:
        expected, again = keras.tree.flatten(evaluate()), keras.tree.flatten(evaluate())
    except tf.errors.InvalidArgumentError:
        return
    found = evaluate_copy()
    accuracy = internals.resolution(model) ** 0.5
    for want, same, got in zip(expected, again, keras.tree.flatten(found), strict=True):
        want, same, got = (np.asarray(x, np.float64) for x in (want, same, got))
        size = np.max(np.abs(want), initial=0, where=np.isfinite(want))
        error = np.abs(got - want)
        if np.array_equal(want, same, equal_nan=True) and (error > accuracy * size).any():
            raise ValueError(
                f"A copy of the model {model.name!r}, made by its get_config and from_config, must "
                "predict as the model does. Received: outputs of a random batch that differ by up "
                f"to {np.nanmax(error):.3g}. {_cause_of_difference(model)}"
            )


def _cause_of_difference(model: keras.Model) -> str:
    """Returns why a copy may differ from the model, and what mends it."""
    functions = [
        (value.__name__, layer.name)
        for layer in internals.layers(model)
        for value in vars(layer).values()
        if inspect.isfunction(value) and not _is_of_keras(value)
    ]
    for name, layer in functions:
        if hasattr(keras.activations, name):
            return (
                f"The function {name!r} of the layer {layer!r} has the name of one of Keras' "
                "activations, which takes its place in a copy. Give it another name."
            )
    return (
        "Some layer has state that is in neither its variables nor its configuration. Return this "
        "state from its get_config."
    )


class Distilled(NamedTuple):
    """One network that predicts much as an ensemble does, and what it loses.

    Attributes:
      model: the network, compiled as the ensemble's model with Adam.
      ensemble: the ensemble's scores on the validation data.
      network: the network's scores there.
    """

    model: keras.Model
    ensemble: Evaluation
    network: Evaluation

    @property
    def nats_lost(self) -> float:
        """By how much the network's log predictive density is below the ensemble's, in nats."""
        return self.ensemble.log_predictive_density - self.network.log_predictive_density

    def __repr__(self) -> str:
        return f"Distilled({self.model.name!r}, nats_lost={self.nats_lost:.4f})"


def distil(
    posterior: Posterior,
    x: Any,
    validation_data: tuple[Any, Any],
    epochs: int,
    batch_size: int,
    seed: Any,
) -> Distilled:
    """Returns the network that `Posterior.distil` trains."""
    model = posterior.model
    checks.integer("epochs", epochs, 1)
    checks.integer("batch_size", batch_size, 1)
    checked_inputs(model, x)
    if not isinstance(validation_data, tuple | list) or len(validation_data) not in (2, 3):
        raise TypeError(
            "validation_data must be a tuple (x, y) or (x, y, sample_weight). Received: "
            f"{checks.a_type(validation_data)}. Draws of the ensemble take the place of labels of "
            "the training inputs."
        )
    seed = random.as_seed(random.fresh_seed() if seed is None else seed)
    student = _student(posterior, x)
    of_ensemble = posterior.evaluate(*validation_data, verbose=0)  # checks them before training
    # Draws of the predictive in each epoch, whose mean loss is the crossentropy with it.
    draws = posterior.sample_predictive(x, epochs, seed=seed, batch_size=batch_size, verbose=0)
    order = np.random.default_rng(seed.numpy().view(np.uint32).tolist())
    for epoch in range(epochs):
        rows = order.permutation(len(keras.tree.flatten(x)[0]))
        inputs, labels = internals.map_arrays(
            lambda a, rows=rows: internals.text_as_tensor(np.asarray(a)[rows]),
            (x, internals.map_arrays(lambda d, e=epoch: d[e], draws)),
        )
        falls = 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        student.optimizer.learning_rate = 1e-3 * falls
        student.fit(inputs, labels, batch_size=batch_size, shuffle=False, verbose=0)
    # The loss keeps the nest of the labels that it was given first, which those of users may lack.
    _compile(student, model, student.optimizer)
    alone = type(posterior)(
        student, student.trainable_variables, [v.numpy()[None] for v in student.trainable_variables]
    )
    return Distilled(student, of_ensemble, alone.evaluate(*validation_data, verbose=0))


def _student(posterior: Posterior, x: Any) -> keras.Model:
    """Returns a compiled copy of a model of inputs x, with the weights of the last sample."""
    model, inputs = posterior.model, None
    if not _has_known_inputs(model):
        inputs = keras.tree.map_structure(
            lambda a: keras.Input(a.shape[1:], dtype=tf.as_dtype(a.dtype).name), x
        )
    _, student, _ = copy_of(model, inputs)
    places = {id(v): i for i, v in enumerate(model.variables)}
    values = [np.asarray(v) for v in model.variables]
    for variable, samples in zip(posterior.variables, posterior.samples, strict=True):
        last = samples[-1]
        values[places[id(variable)]] = last if posterior.num_chains is None else last[0]
    for variable, value in zip(student.variables, values, strict=True):
        variable.assign(value)
    for layer in normalizations(student):
        layer.finalize_state()
    # It learns from the ensemble, in which the prior counts already.
    for variable in student.trainable_variables:
        variable.regularizer = None
    for layer in internals.layers(student):
        layer.activity_regularizer = None
    _compile(student, model, "adam")
    return student


def _compile(student: keras.Model, model: keras.Model, optimizer: Any) -> None:
    student.compile(
        optimizer,
        model.loss,
        loss_weights=internals.loss_weights(model),
        jit_compile=model.jit_compile,
        run_eagerly=model.run_eagerly,
    )
