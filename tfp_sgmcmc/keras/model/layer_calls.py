"""Records the calls of layers, so that the backward pass gives the scores of their variables."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.covariance.factored_scores import FactoredScores
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.layer_factors import SCORED_LAYERS, LayerCall, as_scores, factors


@contextlib.contextmanager
def recorded_calls(
    layers: Sequence[keras.Layer], tape: tf.GradientTape
) -> Generator[list[LayerCall]]:
    """Records the calls of `layers` within this context, and makes `tape` watch their deltas.

    The gradient with respect to a delta equals the gradient with respect to the pre-activation.
    Calls inside loops and mapped functions are not recorded, because their tensors are not
    available outside.
    """
    calls: list[LayerCall] = []
    graph = tf.compat.v1.get_default_graph()

    def recording(layer: keras.Layer) -> Any:
        call, activation = layer.call, getattr(layer, "activation", None)

        def recorded_call(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            def add_delta(outputs: tf.Tensor) -> tf.Tensor:
                if tf.compat.v1.get_default_graph() is graph:
                    delta = tf.zeros_like(outputs)
                    tape.watch(delta)
                    calls.append(LayerCall(layer, inputs, delta))
                    outputs += delta
                return outputs if activation is None else activation(outputs)

            if not hasattr(layer, "activation"):
                return add_delta(call(inputs, *args, **kwargs))
            vars(layer)["activation"] = add_delta
            try:
                return call(inputs, *args, **kwargs)
            finally:
                vars(layer)["activation"] = activation

        return recorded_call

    # Through `vars`, because Keras would look for variables in attributes that are set.
    try:
        for layer in layers:
            vars(layer)["call"] = recording(layer)
        yield calls
    finally:
        for layer in layers:
            vars(layer).pop("call", None)


def layers_with_scores(model: keras.Model, x: Any) -> list[keras.Layer]:
    """Returns the layers whose recorded calls give the scores of their variables.

    Random batches of two and of three rows test this: each call must see one row for each example,
    and the scores must add up to the gradient. The test excludes layers that share weights, change
    them before use, or are called in loops. Only shapes and dtypes of `x` are used.
    """
    leaves = keras.tree.flatten(x)
    layers = [
        layer
        for layer in internals.layers(model)
        if type(layer) in SCORED_LAYERS
        and layer.trainable_variables
        and "call" not in vars(layer)
        and getattr(layer, "groups", 1) == 1
        and getattr(layer, "data_format", "channels_last") == "channels_last"
    ]
    if not all(tf.is_tensor(x) and x.shape[1:].is_fully_defined() for x in leaves):
        return []
    for rows in (2, 3):
        if layers:
            agree = _sums_agree(model, layers, random_rows(x, rows), rows)
            layers = [layer for layer, agrees in zip(layers, agree, strict=True) if agrees]
    return layers


def random_rows(x: Any, rows: int) -> Any:
    """Returns random arrays `[rows, ...]` in the structure, shapes and dtypes of inputs x."""
    generator = np.random.default_rng(rows)

    def random_array(like: Any) -> np.ndarray:
        shape, dtype = [rows, *like.shape[1:]], tf.as_dtype(like.dtype)
        if dtype == tf.string:
            return np.full(shape, b"")
        values = generator.random(shape) if dtype.is_floating else np.zeros(shape)
        return values.astype(dtype.as_numpy_dtype)

    return keras.tree.map_structure(random_array, x)


def _sums_agree(model: keras.Model, layers: list[keras.Layer], x: Any, rows: int) -> list[bool]:
    """Returns for each layer whether the scores of its variables add up to their gradients."""
    variables = model.trainable_variables
    generator = np.random.default_rng(1)
    dtypes = [tf.as_dtype(layer.compute_dtype) for layer in layers]
    precision = max(float(np.spacing(d.as_numpy_dtype(1))) for d in dtypes) ** 0.5

    @tf.function(autograph=False)
    def check() -> list[tf.Tensor]:
        values = [tf.identity(keras.ops.convert_to_tensor(v)) for v in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            with recorded_calls(layers, tape) as calls:
                inputs = keras.tree.map_structure(tf.constant, x)
                outputs = internals.forward(model, variables, values, inputs, training=True).outputs
            total = tf.zeros([])
            for y in keras.tree.flatten(outputs):
                if y.dtype.is_floating:
                    weights = tf.constant(generator.normal(size=y.shape), y.dtype)
                    total += tf.cast(tf.reduce_sum(weights * y), tf.float32)
        gradient, by_deltas = tape.gradient(total, [values, [call.delta for call in calls]])
        not_by_rows = {id(call.layer) for call in calls if call.delta.shape[0] != rows}
        pairs = zip(calls, by_deltas, strict=True)
        usable = [(call, d) for call, d in pairs if id(call.layer) not in not_by_rows]
        found = factors(*zip(*usable, strict=True)) if usable else {}
        gradients = {id(v): g for v, g in zip(variables, gradient, strict=True)}

        def agrees(variable: keras.Variable) -> tf.Tensor:
            g = gradients[id(variable)]
            if id(variable) not in found or g is None:
                return tf.constant(False)
            scores = as_scores(found[id(variable)], variable.shape)
            scores = scores.rows() if isinstance(scores, FactoredScores) else scores
            g = tf.convert_to_tensor(g)  # a table's gradient is tf.IndexedSlices
            error = tf.reduce_max(tf.abs(tf.reduce_sum(scores, axis=0) - g))
            size = tf.reduce_max(tf.abs(g))
            if len(found[id(variable)]) == 1:  # may cancel, as for the bias of a key in attention
                parts = tf.reduce_sum(tf.abs(found[id(variable)][0]), axis=[0, 1])
                size = tf.maximum(size, tf.reduce_max(parts))
            return error <= precision * size

        return [tf.reduce_all([agrees(v) for v in layer.trainable_variables]) for layer in layers]

    # Traced before the init_scope, in which tapes do not record.
    traced = check.get_concrete_function()
    with tf.init_scope():
        return [bool(agree) for agree in traced()]
