"""Masses of a network's weights, from the size of each layer's inputs."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.layer_calls import replaced_calls

_BLOCK_ROWS = 32  # that the model evaluates at once, which bounds the memory of its layers
_UNLIKE = 100.0  # the ratio of columns' largest entries beyond which each has a mass
_INNER = ("recurrent_kernel", "pointwise_kernel")  # whose inputs are not those of the layer
_LARGE = 10.0  # the root mean squared input beyond which initial weights are divided by it


class LayerMass(NamedTuple):
    """The mass of a variable, and the variance of its prior where the run begins.

    Attributes:
      mass: m, a number or an array that broadcasts with the variable.
      variance: 2 / m for the weights of a layer, and 1 for other variables.
      center: the mean input of a layer whose masses are those of centred inputs, an array that
        broadcasts with its weights; None for other layers and for other variables.
      bias: the place of that layer's biases among the trainable variables, or None.
      divisor: of initial weights, a number or an array that broadcasts with the variable.
    """

    mass: Any
    variance: Any
    center: np.ndarray | None = None
    bias: int | None = None
    divisor: Any = 1.0


# Inputs of a layer: their mean squares, around the mean input if that is given.
_Inputs = tuple[Any, np.ndarray | None]
_UNKNOWN: _Inputs = (1.0, None)


def layer_masses(model: keras.Model, x: Any) -> list[LayerMass]:
    r"""Returns the masses of a built model's trainable variables.

    The weights of a layer have the mass

    \[ m = \text{fan-in} \times \text{mean squared input of the layer}, \]

    so that a step changes the outputs of wide and narrow layers alike. The mean squared input is
    measured for layers whose inputs come from the data before any trainable layer, and taken as 1
    for the others. Inputs of dense layers and convolutions with biases are centred first: their
    outputs at the mean input take the place of the biases (`centers` of `AnnealedSGHMC`), so that
    inputs may be pixels, zeros and ones, or years. If the columns of a table that enters a dense
    layer differ in size by more than a factor of 100, such as raw measurements in different units,
    each column has the mass of its mean squared input instead of all columns'. Biases, scales and
    shifts have the mass 1, and so have embeddings, which are weights of one-hot inputs.

    Initialisers of layers expect inputs of about 1. Where the root mean squared input is above 10,
    it is the divisor of a layer's initial weights, and that of each column where columns have
    masses of their own and it is above 1. Layers with several weights that may meet the inputs keep
    them as they are.

    Args:
      model: a built model.
      x: some rows of inputs; None takes 1 for the mean squares of all inputs.
    """
    owners: dict[int, keras.Layer] = {}
    for layer in internals.layers(model):  # outermost first
        owners |= {id(v): layer for v in layer.trainable_variables}
    measured = {} if x is None else _measured(model, [*owners.values()], x)
    places = {id(v): k for k, v in enumerate(model.trainable_variables)}
    counts = [_fan_in(owners[id(v)], v) for v in model.trainable_variables]
    # How many weights of a layer may meet its inputs, by the layer's id.
    num_meeting = Counter(
        id(owners[id(v)])
        for v, count in zip(model.trainable_variables, counts, strict=True)
        if count is not None and v.name not in _INNER
    )
    masses = []
    for variable, count in zip(model.trainable_variables, counts, strict=True):
        layer = owners[id(variable)]
        if count is None:
            masses.append(LayerMass(1.0, 1.0))
            continue
        gets_others = variable.name in _INNER or _is_second_of_low_rank(variable)
        is_linear = not gets_others and not isinstance(layer, keras.layers.Embedding)
        square, center = measured.get(id(layer), _UNKNOWN) if is_linear else _UNKNOWN
        mass = count * square
        bias = None if center is None else places[id(layer.bias)]
        divisor = _divisor(square) if num_meeting[id(layer)] == 1 else 1.0
        masses.append(LayerMass(mass, 2 / mass, center, bias, divisor))
    return masses


def _fan_in(layer: keras.Layer, variable: keras.Variable) -> int | None:
    """Returns how many inputs a weight's output adds up; None for biases, scales and the like."""
    shape = tuple(variable.shape)
    if len(shape) < 2 or "bias" in variable.name:
        return None
    if _is_second_of_low_rank(variable):
        return math.prod(shape[:-1])
    if isinstance(layer, keras.layers.Embedding):
        return 1
    if isinstance(layer, keras.layers.EinsumDense):
        inputs, outputs = layer.equation.replace(" ", "").split("->")
        labels = inputs.split(",")[1]
        return math.prod(n for a, n in zip(labels, shape, strict=True) if a not in outputs)
    is_depthwise = isinstance(layer, keras.layers.DepthwiseConv1D | keras.layers.DepthwiseConv2D)
    if is_depthwise or variable.name == "depthwise_kernel":
        return math.prod(shape[:-2])
    return math.prod(shape[:-1])


def _is_second_of_low_rank(variable: keras.Variable) -> bool:
    """Returns whether a variable is the second factor that `enable_lora` adds."""
    return variable.name.startswith("lora") and variable.name.endswith("_b")


def _measured(model: keras.Model, layers: list[keras.Layer], x: Any) -> dict[int, _Inputs]:
    """Returns the inputs of layers that trainable weights do not reach, by the layer's id.

    These are the layers whose inputs stay the same when all trainable weights change.
    """
    variables = model.trainable_variables
    values = [tf.convert_to_tensor(v.value) for v in variables]
    starts = range(0, len(keras.tree.flatten(x)[0]), _BLOCK_ROWS)
    blocks = [internals.map_arrays(lambda a, s=s: a[s : s + _BLOCK_ROWS], x) for s in starts]
    first, second = (
        _inputs(model, layers, variables, given, blocks[0])
        for given in (values, [1.5 * v + 0.1 for v in values])
    )
    unreached = [
        layer
        for layer in dict.fromkeys(layers)
        if id(layer) in first.keys() & second.keys()
        and np.array_equal(first[id(layer)], second[id(layer)])
    ]
    found = [first, *(_inputs(model, unreached, variables, values, b) for b in blocks[1:])]
    measured = {}
    for layer in unreached:
        key = id(layer)
        array = np.concatenate([part[key] for part in found]).astype(np.float64)
        center = _center(layer, array)
        if center is not None:
            array = array - center
        square = float(np.mean(array**2)) if array.size else 0.0
        if not math.isfinite(square) or square <= 0:
            continue
        if isinstance(layer, keras.layers.Dense) and array.ndim == 2:
            square = _of_columns(array, square)
        column = None if center is None else center.reshape(-1, 1).astype(np.float32)
        measured[key] = square, column
    return measured


def _center(layer: keras.Layer, array: np.ndarray) -> np.ndarray | None:
    """Returns the mean input of a layer by feature; None without biases that make up for it."""
    is_convolution = isinstance(layer, internals.CONVOLUTIONS) and layer.groups == 1
    if not isinstance(layer, keras.layers.Dense) and not is_convolution:
        return None
    given = [id(v) for v in layer.trainable_variables]
    if id(layer.bias) not in given or id(layer.kernel) not in given or not array.size:
        return None
    is_first = is_convolution and layer.data_format == "channels_first"
    channels = 1 if is_first else array.ndim - 1
    axes = tuple(axis for axis in range(array.ndim) if axis != channels)
    return array.mean(axis=axes, keepdims=is_first)


def _of_columns(table: np.ndarray, square: float) -> Any:
    """Returns the mean squares `[columns, 1]` of columns of unlike sizes, and else `square`."""
    largest = np.abs(table).max(axis=0)
    is_used = largest > 0
    if largest.max() <= _UNLIKE * largest[is_used].min():
        return square
    each = np.mean(np.square(table, dtype=np.float64), axis=0)
    return np.where(is_used, each, square)[:, np.newaxis].astype(np.float32)


def _divisor(square: Any) -> Any:
    """Returns the divisor of initial weights for the mean squares of a layer's inputs."""
    size = np.sqrt(square)
    if np.ndim(size):
        return np.maximum(size, 1)
    return float(size) if size > _LARGE else 1.0


def _inputs(
    model: keras.Model, layers: list[keras.Layer], variables: Any, values: Any, x: Any
) -> dict[int, np.ndarray]:
    """Returns the first input of each layer in one evaluation of the model, by the layer's id."""
    found: dict[int, np.ndarray] = {}

    def recording(layer: keras.Layer) -> Any:
        call = layer.call

        def recorded(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            first = keras.tree.flatten(inputs)[0]
            is_number = isinstance(first, tf.Tensor) and first.dtype.is_floating
            if is_number and hasattr(first, "numpy"):
                found.setdefault(id(layer), first.numpy())
            return call(inputs, *args, **kwargs)

        return recorded

    layers = [layer for layer in dict.fromkeys(layers) if "call" not in vars(layer)]
    # Outside XLA, some CPUs have no convolution with channels first. Inputs up to it are known.
    with contextlib.suppress(tf.errors.UnimplementedError), replaced_calls(layers, recording):
        internals.forward(model, variables, values, x, training=False)
    return found
