"""Scores of a layer's weights, from its inputs and the gradient with respect to its outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfp_sgmcmc.covariance.factored_scores import EmbeddingScores, FactoredScores, OuterProducts
from tfp_sgmcmc.keras.model import internals

# Layers that multiply a normalised input by a gain and add an offset. GroupNormalization is not
# among them, because its outputs have no static number of rows.
_NORMALISATIONS = tuple(
    getattr(keras.layers, name)
    for name in ("LayerNormalization", "RMSNormalization")
    if hasattr(keras.layers, name)  # some are not in older versions of Keras
)
#: Layers whose scores are known. Subclasses may compute something else.
TAPPED = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Embedding,
    *internals.CONVOLUTIONS,
    *_NORMALISATIONS,
)


class Tap(NamedTuple):
    """One call of a layer: its inputs, and a zero that was added to its pre-activation."""

    layer: keras.Layer
    inputs: tf.Tensor
    delta: tf.Tensor


def factors(
    taps: Sequence[Tap], gradients: Sequence[tf.Tensor | None]
) -> dict[int, tuple[tf.Tensor, ...]]:
    """Returns factors of the scores of the tapped layers' variables, by `id` of the variable.

    `gradients` of the log likelihood are those with respect to the taps' deltas. The factors for a
    kernel or a table are inputs `[n, positions, inputs]` (indices `[n, positions]`) and gradients
    `[n, positions, outputs]`. Other variables have a single factor, `[n, positions, entries]`,
    whose sum over positions is the score. The calls of a shared layer are concatenated along the
    positions.
    """
    calls: dict[int, list[tuple[tf.Tensor, ...]]] = {}
    for tap, gradient in zip(taps, gradients, strict=True):
        d = tf.zeros_like(tap.delta) if gradient is None else gradient
        d = tf.cast(d, tap.layer.variable_dtype)
        for variable, found in _of_call(tap.layer, tap.inputs, d):
            if variable is not None:
                calls.setdefault(id(variable), []).append(found)
    return {
        key: found[0]
        if len(found) == 1
        else tuple(tf.concat(x, axis=1) for x in zip(*found, strict=True))
        for key, found in calls.items()
    }


def as_scores(
    of_variable: tuple[tf.Tensor, ...], event_shape: Any, scale: Any = 1.0
) -> tf.Tensor | FactoredScores:
    """Returns scores of a variable, `[chains..., n, event...]`, from its factors times `scale`."""
    *inputs, d = of_variable
    if not inputs:
        scores = scale * tf.reduce_sum(d, axis=-2)
        if len(event_shape) == 1:
            return scores
        return tf.reshape(scores, tf.concat([tf.shape(scores)[:-1], event_shape], axis=0))
    kind = EmbeddingScores if inputs[0].dtype.is_integer else OuterProducts
    return kind(*inputs, d, event_shape, scale)


def _of_call(
    layer: keras.Layer, inputs: tf.Tensor, d: tf.Tensor
) -> list[tuple[keras.Variable | None, tuple[tf.Tensor, ...]]]:
    """Returns the layer's variables with the factors of their scores from one call."""
    if isinstance(layer, _NORMALISATIONS):
        return _of_normalisation(layer, inputs, d)
    if isinstance(layer, keras.layers.EinsumDense):
        return _of_einsum(layer, tf.cast(inputs, layer.variable_dtype), d)
    d = _along_positions(d)
    if isinstance(layer, keras.layers.Embedding):
        shape = [tf.shape(d)[i] if n is None else n for i, n in enumerate(d.shape[:2])]
        return [(layer.embeddings, (tf.reshape(tf.cast(inputs, tf.int32), shape), d))]
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


def _of_normalisation(
    layer: keras.Layer, inputs: tf.Tensor, d: tf.Tensor
) -> list[tuple[keras.Variable | None, tuple[tf.Tensor, ...]]]:
    r"""Returns \( d \hat x \) for the gain and d for the offset, where they are the last axes."""
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


def _of_einsum(
    layer: keras.Layer, a: tf.Tensor, d: tf.Tensor
) -> list[tuple[keras.Variable | None, tuple[tf.Tensor, ...]]]:
    """Returns the factors of `EinsumDense`, none where the equation mixes the examples.

    The kernel has factors if its axes are those that it shares with the inputs followed by those
    that it shares with the outputs, or the other way round, as in attention. Otherwise, as for a
    kernel of diagonal blocks, the scores are products of inputs and gradients.
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
