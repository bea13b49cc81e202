"""Where the chains of a model's weights start."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import numbers
from tfp_sgmcmc.keras.model import internals


def stacked_starts(
    model: keras.Model, variables: list[keras.Variable], num_chains: int, starts: Any, seed: Any
) -> list[tf.Tensor]:
    """Returns the first states of the chains, `[num_chains, ...]` for each variable.

    Args:
      model: a built model.
      variables: the variables that are sampled. Their values start chain 0 unless arrays are given.
      num_chains: C.
      starts: "initializers" draws the other chains' states from the initializer of each variable,
        which is found in its layer as Keras names it (`kernel_initializer` for `kernel`), or where
        the layer's `build` adds the variable. "model" starts all chains where chain 0 starts. A
        sequence of arrays `[num_chains, ...]`, one for each variable, gives all states.
      seed: names the draws.

    Raises:
      ValueError: an unknown option, arrays of another number or shape, or a variable whose
        initializer is not found.
    """
    if not isinstance(starts, str):
        return _given(starts, variables, num_chains)
    if starts not in ("initializers", "model"):
        raise ValueError(
            "initial_states must be 'initializers', 'model', a Posterior, or a list of arrays or "
            f"models. Received: {starts!r}."
        )
    values = [v.numpy() for v in variables]
    if starts == "model":
        return [tf.stack([tf.constant(x)] * num_chains) for x in values]
    initializers = _initializers(model)
    stacked = []
    for i, (variable, value) in enumerate(zip(variables, values, strict=True)):
        if id(variable) not in initializers:
            raise ValueError(
                f"The layer of {variable.path} must have an initializer of this variable, from "
                "which chains can start. Pass initial_states='model', or arrays [num_chains, ...]."
            )
        seeds = [_integer(seed, i, chain) for chain in range(1, num_chains)]
        draws = [_draw(initializers[id(variable)], value, s) for s in seeds]
        stacked.append(tf.stack([value, *draws]))
    return stacked


def values_for_chains(
    variables: list[keras.Variable],
    num_chains: int,
    seed: Any,
    given: Mapping[int, np.ndarray],
) -> list[tf.Tensor]:
    """Returns non-trainable variables' values for each chain, `[num_chains, ...]`.

    Values that are not `given`, by `id` of the variable, are the same for all chains, except that
    each has seeds of its own.
    """
    stacked = []
    for i, variable in enumerate(variables):
        if id(variable) in given:
            stacked.append(tf.constant(given[id(variable)]))
            continue
        values = np.stack([variable.numpy()] * num_chains)
        if not np.issubdtype(values.dtype, np.floating) and values.shape[1:] == (2,):
            # The state of a SeedGenerator: seed and counter.
            values[1:, 0] = [_integer(seed, i, chain) for chain in range(1, num_chains)]
        stacked.append(tf.constant(values))
    return stacked


def _given(
    starts: Sequence[Any], variables: list[keras.Variable], num_chains: int
) -> list[tf.Tensor]:
    if not isinstance(starts, list | tuple):
        raise TypeError(
            'initial_states must be "initializers", "model", a Posterior, a list of one array for '
            f"each trainable variable, or of one model for each chain. Received: {starts!r}."
        )
    if len(starts) != len(variables):
        raise ValueError(
            f"initial_states must have one array for each of the {len(variables)} trainable "
            f"variables. Received: {len(starts)} arrays."
        )
    numbers("initial_states", starts)
    for array, variable in zip(starts, variables, strict=True):
        if np.shape(array) != (num_chains, *variable.shape):
            raise ValueError(
                f"initial_states must have shape {(num_chains, *variable.shape)} for "
                f"{variable.path}. Received: shape {np.shape(array)}."
            )
    return [tf.convert_to_tensor(a, v.dtype) for a, v in zip(starts, variables, strict=True)]


def _initializers(model: keras.Model) -> dict[int, Any]:
    """Returns the initializers of the layers' variables, by `id` of the variable."""
    found = {}
    for layer in internals.layers(model):
        for variable in layer.trainable_variables:
            name = variable.name  # the initializer of a recurrent_kernel is recurrent_initializer
            # A depthwise convolution calls its depthwise_kernel "kernel".
            others = ["depthwise"] if name == "kernel" else []
            for owner in (name, name.removesuffix("_kernel"), *others):
                initializer = getattr(layer, f"{owner}_initializer", None)
                if callable(initializer):  # Keras takes functions, too
                    found.setdefault(id(variable), initializer)
    for layer in reversed(internals.layers(model)):  # a layer comes before those that it has
        missing = [v for v in layer.trainable_variables if id(v) not in found]
        if missing and not isinstance(layer, keras.Model):
            declared = _declared(layer)
            keys = {id(v): (v.name, tuple(v.shape)) for v in missing}
            found |= {i: declared[key] for i, key in keys.items() if key in declared}
    return found


def _declared(layer: keras.Layer) -> dict[Any, Any]:
    """Returns the initializers with which a layer's `build` adds variables, by name and shape.

    The scale of `RMSNormalization` and of attention, the matrices of `enable_lora`, and weights of
    a user's layer often have an initializer that no attribute tells. A second layer of the same
    configuration is built and watched. It draws numbers from Python's generator, which is set back.
    """
    found, state = {}, random.getstate()
    with contextlib.suppress(Exception):  # of a user's layer, which may be built in this way or not
        again = type(layer).from_config(layer.get_config())
        add = again.add_weight

        def watched(*arguments: Any, **options: Any) -> keras.Variable:
            variable = add(*arguments, **options)
            given = inspect.signature(add).bind(*arguments, **options).arguments
            initializer = given.get("initializer") or "glorot_uniform"  # Keras' default
            found[variable.name, tuple(variable.shape)] = keras.initializers.get(initializer)
            return variable

        again.add_weight = watched
        again.build_from_config(layer.get_build_config())
    random.setstate(state)
    return found


def _draw(initializer: Any, like: np.ndarray, seed: int) -> np.ndarray:
    config = initializer.get_config() if isinstance(initializer, keras.Initializer) else {}
    if "seed" in config:
        initializer = type(initializer).from_config({**config, "seed": seed})
    return np.asarray(initializer(like.shape, dtype=like.dtype.name))


def _integer(seed: Any, *place: int) -> int:
    words = np.asarray(seed).astype(np.uint32)
    return int(np.random.SeedSequence([*words, *place]).generate_state(1)[0] >> 1)
