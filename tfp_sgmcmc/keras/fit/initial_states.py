"""Where the chains of a model's weights start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model import internals

OPTIONS = ("initializers", "model")


def stacked_starts(
    model: keras.Model, variables: list[keras.Variable], num_chains: int, starts: Any, seed: Any
) -> list[tf.Tensor]:
    """First states of the chains, `[num_chains, ...]` for each variable.

    Args:
      model: built.
      variables: those that are sampled; their values start chain 0, unless arrays are given.
      num_chains: C.
      starts: "initializers": the others draw anew from the initializer of each variable, which is
        found in its layer as Keras names it (`kernel_initializer` for `kernel`); "model": all
        start where chain 0 does; or a sequence of arrays `[num_chains, ...]`, one a variable.
      seed: of the draws.

    Raises:
      ValueError: an unknown option; arrays of other number or shapes; a variable whose initializer
        is not found.
    """
    if not isinstance(starts, str):
        return _given(starts, variables, num_chains)
    if starts not in OPTIONS:
        raise ValueError(
            f"initial_states is {starts!r}; one of {', '.join(OPTIONS)}, or arrays, is expected."
        )
    values = [v.numpy() for v in variables]
    if starts == "model":
        return [tf.stack([tf.constant(x)] * num_chains) for x in values]
    initializers = _initializers(model)
    stacked = []
    for i, (variable, value) in enumerate(zip(variables, values, strict=True)):
        if id(variable) not in initializers:
            raise ValueError(
                f"{variable.path} has no initializer in its layer, from which chains could start; "
                "pass initial_states='model', or arrays [num_chains, ...]."
            )
        draws = [value]
        for chain in range(1, num_chains):
            draws.append(_draw(initializers[id(variable)], value, _integer(seed, i, chain)))
        stacked.append(tf.stack(draws))
    return stacked


def own_values(variables: list[keras.Variable], num_chains: int, seed: Any) -> list[tf.Tensor]:
    """Values for each chain, `[num_chains, ...]`: the same ones, but seeds are their own."""
    stacked = []
    for i, variable in enumerate(variables):
        values = np.stack([variable.numpy()] * num_chains)
        if not np.issubdtype(values.dtype, np.floating) and values.shape[1:] == (2,):
            # The state of a SeedGenerator: seed and counter.
            values[1:, 0] = [_integer(seed, i, chain) for chain in range(1, num_chains)]
        stacked.append(tf.constant(values))
    return stacked


def _given(
    starts: Sequence[Any], variables: list[keras.Variable], num_chains: int
) -> list[tf.Tensor]:
    if len(starts) != len(variables):
        raise ValueError(
            f"initial_states has {len(starts)} arrays, but the model has {len(variables)} "
            "trainable variables; one for each is expected."
        )
    for array, variable in zip(starts, variables, strict=True):
        if np.shape(array) != (num_chains, *variable.shape):
            raise ValueError(
                f"initial_states has shape {np.shape(array)} for {variable.path}; "
                f"{(num_chains, *variable.shape)} is expected."
            )
    return [tf.convert_to_tensor(a, v.dtype) for a, v in zip(starts, variables, strict=True)]


def _initializers(model: keras.Model) -> dict[int, keras.Initializer]:
    """The initializers of the variables' layers, by `id` of the variable."""
    found = {}
    for layer in internals.layers(model):
        for variable in layer.trainable_variables:
            name = variable.name  # of a recurrent_kernel, it is the recurrent_initializer
            for owner in (name, name.removesuffix("_kernel")):
                own = getattr(layer, f"{owner}_initializer", None)
                if isinstance(own, keras.Initializer):
                    found.setdefault(id(variable), own)
    return found


def _draw(initializer: keras.Initializer, like: np.ndarray, seed: int) -> np.ndarray:
    config = initializer.get_config()
    if "seed" in config:
        initializer = type(initializer).from_config({**config, "seed": seed})
    return np.asarray(initializer(like.shape, dtype=like.dtype.name))


def _integer(seed: Any, *place: int) -> int:
    words = np.asarray(seed).astype(np.uint32)
    return int(np.random.SeedSequence([*words, *place]).generate_state(1)[0] >> 1)
