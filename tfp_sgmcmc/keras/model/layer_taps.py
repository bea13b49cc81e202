"""Records the inputs of linear layers and the gradients with respect to their outputs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.covariance.factored_scores import FactoredScores, Lookups, OuterProducts
from tfp_sgmcmc.keras.model import internals

_LINEAR = (keras.layers.Dense, keras.layers.Embedding, *internals.CONVOLUTIONS)


class Tap(NamedTuple):
    """One call of a layer: its inputs, and a zero that was added to its pre-activation."""

    layer: keras.Layer
    inputs: tf.Tensor
    delta: tf.Tensor


@contextlib.contextmanager
def tapped(layers: Sequence[keras.Layer], tape: tf.GradientTape) -> Generator[list[Tap]]:
    """Records the calls of `layers` within this context, and has `tape` watch their deltas.

    The gradient with respect to a delta equals the gradient with respect to the pre-activation.
    Calls within loops or mapped functions, whose tensors are out of reach, are not recorded.
    """
    taps: list[Tap] = []
    graph = tf.compat.v1.get_default_graph()

    def tap(layer: keras.Layer) -> Any:
        call, activation = layer.call, getattr(layer, "activation", None)

        def tapped_call(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            def add_delta(outputs: tf.Tensor) -> tf.Tensor:
                if tf.compat.v1.get_default_graph() is graph:
                    delta = tf.zeros_like(outputs)
                    tape.watch(delta)
                    taps.append(Tap(layer, inputs, delta))
                    outputs += delta
                return outputs if activation is None else activation(outputs)

            if not hasattr(layer, "activation"):
                return add_delta(call(inputs, *args, **kwargs))
            vars(layer)["activation"] = add_delta
            try:
                return call(inputs, *args, **kwargs)
            finally:
                vars(layer)["activation"] = activation

        return tapped_call

    # Through `vars`, because Keras would look for variables in attributes that are set.
    try:
        for layer in layers:
            vars(layer)["call"] = tap(layer)
        yield taps
    finally:
        for layer in layers:
            vars(layer).pop("call", None)


def factors(
    taps: Sequence[Tap], gradients: Sequence[tf.Tensor | None]
) -> dict[int, tuple[tf.Tensor, ...]]:
    """Returns factors of the scores of the tapped layers' variables, by `id` of the variable.

    `gradients` of the log likelihood are those with respect to the taps' deltas. The factors for a
    kernel or a table are inputs `[n, positions, inputs]` (indices `[n, positions]`) and gradients
    `[n, positions, outputs]`. For a bias, they are gradients alone. The calls of a shared layer are
    concatenated along the positions.
    """
    calls: dict[int, list[tuple[tf.Tensor, tf.Tensor]]] = {}
    layers = {id(tap.layer): tap.layer for tap in taps}
    for tap, gradient in zip(taps, gradients, strict=True):
        d = tf.zeros_like(tap.delta) if gradient is None else gradient
        calls.setdefault(id(tap.layer), []).append(_along_positions(tap.layer, tap.inputs, d))
    found: dict[int, tuple[tf.Tensor, ...]] = {}
    for key, pairs in calls.items():
        inputs, d = (x[0] if len(x) == 1 else tf.concat(x, 1) for x in zip(*pairs, strict=True))
        layer = layers[key]
        if isinstance(layer, keras.layers.Embedding):
            found[id(layer.embeddings)] = inputs, d
            continue
        found[id(layer.kernel)] = inputs, d
        if layer.bias is not None:
            found[id(layer.bias)] = (d,)
    return found


def as_scores(
    of_variable: tuple[tf.Tensor, ...], event_shape: Any, scale: Any = 1.0
) -> tf.Tensor | FactoredScores:
    """Returns scores of a variable, `[chains..., n, event...]`, from its factors times `scale`."""
    *inputs, d = of_variable
    if not inputs:
        return scale * tf.reduce_sum(d, axis=-2)
    kind = Lookups if inputs[0].dtype.is_integer else OuterProducts
    return kind(*inputs, d, event_shape, scale)


def _along_positions(
    layer: keras.Layer, inputs: tf.Tensor, d: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the inputs and gradients of a call, reshaped as `factors` says."""
    count = d.shape[1:-1].num_elements()
    shape = [tf.shape(d)[0] if d.shape[0] is None else d.shape[0], -1 if count is None else count]
    d = tf.cast(tf.reshape(d, [*shape, d.shape[-1]]), layer.variable_dtype)
    if isinstance(layer, keras.layers.Embedding):
        return tf.reshape(tf.cast(inputs, tf.int32), shape), d
    if isinstance(layer, internals.CONVOLUTIONS):
        inputs = patches(layer, inputs)
    inputs = tf.reshape(inputs, [*shape, inputs.shape[-1]])
    return tf.cast(inputs, layer.variable_dtype), d


def patches(layer: keras.Layer, x: tf.Tensor) -> tf.Tensor:
    """Returns the inputs of each output position, `[n, spatial..., kernel size * channels]`."""
    padding, cuts = [], []
    dims = zip(x.shape[1:-1], layer.kernel_size, layer.strides, layer.dilation_rate, strict=True)
    for size, width, stride, rate in dims:
        reach = (width - 1) * rate + 1
        count = (size - reach) // stride + 1 if layer.padding == "valid" else -(-size // stride)
        missing = max((count - 1) * stride + reach - size, 0)
        low = {"valid": 0, "same": missing // 2, "causal": reach - 1}[layer.padding]
        padding.append([low, max(missing - low, 0)])
        starts = range(0, width * rate, rate)
        cuts.append([slice(i, i + (count - 1) * stride + 1, stride) for i in starts])
    x = tf.pad(x, [[0, 0], *padding, [0, 0]])
    return tf.concat([x[(slice(None), *cut)] for cut in itertools.product(*cuts)], axis=-1)


def tapped_layers(model: keras.Model, x: Any) -> list[keras.Layer]:
    """Returns the layers whose taps give the scores of their variables.

    Random batches of two and of three rows test this: each call must see one row for each example,
    and the scores must add up to the gradient. So the test excludes layers that share weights, that
    change them before use, or that are called in loops. Only shapes and dtypes of `x` are used.
    """
    leaves = keras.tree.flatten(x)
    layers = [
        layer
        for layer in internals.layers(model)
        if type(layer) in _LINEAR
        and layer.trainable_variables
        and "call" not in vars(layer)
        and getattr(layer, "groups", 1) == 1
        and getattr(layer, "data_format", "channels_last") == "channels_last"
    ]
    if not all(tf.is_tensor(x) and x.shape[1:].is_fully_defined() for x in leaves):
        return []
    generator = np.random.default_rng(0)

    def random_batch(like: tf.Tensor, rows: int) -> np.ndarray:
        shape = [rows, *like.shape[1:]]
        values = generator.random(shape) if like.dtype.is_floating else np.zeros(shape)
        return values.astype(like.dtype.as_numpy_dtype)

    for rows in (2, 3):
        if layers:
            inputs = keras.tree.map_structure(lambda like, rows=rows: random_batch(like, rows), x)
            agree = _sums_agree(model, layers, inputs, rows)
            layers = [layer for layer, agrees in zip(layers, agree, strict=True) if agrees]
    return layers


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
            with tapped(layers, tape) as taps:
                inputs = keras.tree.map_structure(tf.constant, x)
                outputs = internals.forward(model, variables, values, inputs, training=True).outputs
            total = tf.zeros([])
            for y in keras.tree.flatten(outputs):
                if y.dtype.is_floating:
                    weights = tf.constant(generator.normal(size=y.shape), y.dtype)
                    total += tf.cast(tf.reduce_sum(weights * y), tf.float32)
        gradient, by_deltas = tape.gradient(total, [values, [tap.delta for tap in taps]])
        not_by_rows = {id(tap.layer) for tap in taps if tap.delta.shape[0] != rows}
        pairs = zip(taps, by_deltas, strict=True)
        usable = [(tap, d) for tap, d in pairs if id(tap.layer) not in not_by_rows]
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
            return error <= precision * tf.reduce_max(tf.abs(g))

        return [tf.reduce_all([agrees(v) for v in layer.trainable_variables]) for layer in layers]

    # Traced before the init_scope, in which tapes do not record.
    traced = check.get_concrete_function()
    with tf.init_scope():
        return [bool(agree) for agree in traced()]
