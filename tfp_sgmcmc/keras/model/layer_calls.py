"""Records the calls of layers, so that the backward pass gives the scores of their variables.

The scores of a layer's weights come from its inputs and the gradient with respect to its outputs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.covariance.factored_scores import EmbeddingScores, FactoredScores, OuterProducts
from tfp_sgmcmc.internal.nest import sizes_of
from tfp_sgmcmc.keras.model import internals

# Layers that multiply a normalised input by a gain and add an offset. GroupNormalization is not
# among them, because its outputs have no static number of rows.
_NORMALISATIONS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)
#: Layers whose scores are known. Subclasses may compute something else.
SCORED_LAYERS = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Embedding,
    *internals.CONVOLUTIONS,
    *_NORMALISATIONS,
)


class LayerCall(NamedTuple):
    """The inputs of a layer's call, and a zero, `delta`, added to its pre-activation."""

    layer: keras.Layer
    inputs: tf.Tensor
    delta: tf.Tensor


def factors(
    calls: Sequence[LayerCall], gradients: Sequence[tf.Tensor | None]
) -> dict[int, tuple[tf.Tensor, ...]]:
    """Returns factors of the scores of the layers' variables, by `id` of the variable.

    `gradients` are the gradients of the log likelihood with respect to the calls' deltas. The
    factors for a kernel or a table are inputs `[n, positions, inputs]` (indices `[n, positions]`)
    and gradients `[n, positions, outputs]`. Other variables have a single factor,
    `[n, positions, entries]`, whose sum over positions is the score. The calls of a shared layer
    are concatenated along the positions.
    """
    by_variable: dict[int, list[tuple[tf.Tensor, ...]]] = {}
    for call, gradient in zip(calls, gradients, strict=True):
        d = tf.zeros_like(call.delta) if gradient is None else gradient
        d = tf.cast(d, call.layer.variable_dtype)
        for variable, found in _layer_factors(call.layer, call.inputs, d):
            if variable is not None:
                by_variable.setdefault(id(variable), []).append(found)
    return {
        key: found[0]
        if len(found) == 1
        else tuple(tf.concat(x, axis=1) for x in zip(*found, strict=True))
        for key, found in by_variable.items()
    }


def as_scores(
    parts: tuple[tf.Tensor, ...], event_shape: Any, scale: Any = 1.0
) -> tf.Tensor | FactoredScores:
    """Returns scores of a variable, `[chains..., n, event...]`, from its factors times `scale`."""
    *inputs, d = parts
    if not inputs:
        scores = scale * tf.reduce_sum(d, axis=-2)
        if len(event_shape) == 1:
            return scores
        return tf.reshape(scores, tf.concat([tf.shape(scores)[:-1], event_shape], axis=0))
    kind = EmbeddingScores if inputs[0].dtype.is_integer else OuterProducts
    return kind(*inputs, d, event_shape, scale)


def _layer_factors(
    layer: keras.Layer, inputs: tf.Tensor, d: tf.Tensor
) -> list[tuple[keras.Variable | None, tuple[tf.Tensor, ...]]]:
    """Returns the variables of a layer with the factors of their scores, for one call."""
    if isinstance(layer, _NORMALISATIONS):
        return _normalisation_factors(layer, inputs, d)
    if isinstance(layer, keras.layers.EinsumDense):
        return _einsum_factors(layer, tf.cast(inputs, layer.variable_dtype), d)
    d = _along_positions(d)
    if isinstance(layer, keras.layers.Embedding):
        rows = tf.reshape(tf.cast(inputs, tf.int32), sizes_of(d)[:2])
        return [(layer.embeddings, (rows, d))]
    if isinstance(layer, internals.CONVOLUTIONS):
        inputs = patches(layer, inputs)
    inputs = tf.cast(_along_positions(inputs), layer.variable_dtype)
    return [(layer.kernel, (inputs, d)), (layer.bias, (d,))]


def _along_positions(x: tf.Tensor, num_axes: int = 1) -> tf.Tensor:
    """Returns `[n, positions, entries]`, where the last `num_axes` axes are the entries."""
    axis = x.shape.rank - num_axes
    rows = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
    count = x.shape[1:axis].num_elements()
    return tf.reshape(x, [rows, -1 if count is None else count, x.shape[axis:].num_elements()])


def _normalisation_factors(
    layer: keras.Layer, inputs: tf.Tensor, d: tf.Tensor
) -> list[tuple[keras.Variable | None, tuple[tf.Tensor, ...]]]:
    r"""Returns \( d \hat x \) for the gain and d for the offset, on their (last) axes."""
    offset: Any = getattr(layer, "beta", None)
    gain: Any = getattr(layer, "gamma", None)
    if gain is None and isinstance(layer.scale, keras.Variable):
        gain = layer.scale
    found: list[tuple[keras.Variable | None, tuple[tf.Tensor, ...]]] = []
    plain = []
    if offset is not None:
        plain.append((offset, tf.zeros(offset.shape, offset.dtype)))
        found.append((offset, (_along_positions(d, len(offset.shape)),)))
    if gain is not None:
        plain.append((gain, tf.ones(gain.shape, gain.dtype)))
        with keras.StatelessScope(state_mapping=plain):
            normalised = tf.cast(layer(inputs), d.dtype)
        found.append((gain, (_along_positions(d * normalised, len(gain.shape)),)))
    return found


def _einsum_factors(
    layer: keras.Layer, a: tf.Tensor, d: tf.Tensor
) -> list[tuple[keras.Variable | None, tuple[tf.Tensor, ...]]]:
    """Returns the factors of `EinsumDense`; none if the equation mixes the examples.

    The kernel has factors if the axes that it shares with the inputs come before the axes that it
    shares with the outputs, or after them, as in attention. Otherwise, as for a kernel of diagonal
    blocks, the scores themselves are returned.
    """
    of_inputs, of_kernel, of_outputs = _axes(layer.equation, a.shape.rank, d.shape.rank)
    row = of_inputs[0]
    is_repeated = any(len({*x}) < len(x) for x in (of_inputs, of_kernel, of_outputs))
    bias = layer.bias
    if (
        of_outputs[0] != row
        or row in of_kernel
        or is_repeated
        or not {*of_kernel} <= {*of_inputs, *of_outputs}
        or (bias is not None and len(bias.shape) == d.shape.rank)
    ):
        return []
    found: list[tuple[keras.Variable | None, tuple[tf.Tensor, ...]]] = []
    if bias is not None:
        lead = d.shape.rank - len(bias.shape)
        of_length_1 = [lead + i for i, n in enumerate(bias.shape) if n == 1]
        summed = tf.reduce_sum(d, axis=of_length_1, keepdims=True)
        found.append((bias, (_along_positions(summed, len(bias.shape)),)))
    contracted = "".join(x for x in of_kernel if x not in of_outputs)
    made = "".join(x for x in of_kernel if x not in of_inputs)
    positions = "".join(x for x in of_inputs[1:] if x not in of_kernel)
    is_product = {*positions} == {*of_outputs[1:]} - {*of_kernel}
    if is_product and of_kernel in (contracted + made, made + contracted):
        a = _transposed(a, of_inputs, row + positions + contracted)
        d = _transposed(d, of_outputs, row + positions + made)
        pair = _along_positions(a, len(contracted)), _along_positions(d, len(made))
        found.append((layer.kernel, pair if of_kernel == contracted + made else pair[::-1]))
        return found
    scores = tf.einsum(f"{of_inputs},{of_outputs}->{row}{of_kernel}", a, d)
    found.append((layer.kernel, (_along_positions(scores, len(of_kernel)),)))
    return found


def _axes(equation: str, input_rank: int, output_rank: int) -> tuple[str, str, str]:
    """Returns one letter for each axis of inputs, kernel and outputs."""
    operands, of_outputs = equation.replace(" ", "").split("->")
    of_inputs, of_kernel = operands.split(",")
    free = [x for x in map(chr, range(ord("a"), ord("z") + 1)) if x not in equation]

    def expand(letters: str, rank: int) -> str:
        count = rank - len(letters.replace("...", ""))
        return letters.replace("...", "".join(free[:count]))

    return expand(of_inputs, input_rank), of_kernel, expand(of_outputs, output_rank)


def _transposed(x: tf.Tensor, letters: str, wanted: str) -> tf.Tensor:
    return x if letters == wanted else tf.transpose(x, [letters.index(c) for c in wanted])


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


@contextlib.contextmanager
def replaced_calls(
    layers: Sequence[keras.Layer], replacement: Callable[[keras.Layer], Any]
) -> Generator[None]:
    """Has `replacement(layer)` called in place of each layer's `call` within this context."""
    try:  # through `vars`, because Keras would look for variables in attributes that are set
        for layer in layers:
            vars(layer)["call"] = replacement(layer)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("call", None)


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

    with replaced_calls(layers, recording):
        yield calls


def layers_with_scores(model: keras.Model, x: Any) -> list[keras.Layer]:
    """Returns the layers whose recorded calls give the scores of their variables.

    Random batches of two and of three rows test this: each call must see one row for each example,
    and the scores must add up to the gradient. The test excludes layers that share weights, change
    them before use, or are called in loops. Only shapes and dtypes of `x` are used. A model that
    refuses random rows has none.
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
        try:
            return [bool(agree) for agree in traced()]
        except tf.errors.InvalidArgumentError:  # random rows have words of no vocabulary
            return [False] * len(layers)
