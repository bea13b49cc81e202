"""Initial states of the chains, from initializers, arrays, models, files or posteriors."""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import a_type, numbers
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.posterior.posterior import Posterior

_MEMBER = "a built keras.Model, the path of its weights, or a Posterior of a single chain"
_Values = list[tuple[str, np.ndarray]]  # name and value of each floating variable of a model


def check_starts(starts: Any) -> None:
    """Raises an error unless `starts` are what `Chains` takes; the model is not known yet.

    Raises:
      ValueError: an unknown word.
      TypeError: neither a word, nor a list or a `Posterior`.
    """
    expected = (
        'initial_states must be "initializers", "fresh", "model", a Posterior, a list of one array '
        "for each trainable variable, or of one model for each chain. Received: "
    )
    if isinstance(starts, str):
        if starts not in ("initializers", "fresh", "model"):
            raise ValueError(f"{expected}{starts!r}.")
    elif not isinstance(starts, list | tuple | Posterior):
        raise TypeError(f"{expected}{a_type(starts)}.")


def stacked_starts(
    model: keras.Model, variables: list[keras.Variable], num_chains: int, starts: Any, seed: Any
) -> list[tf.Tensor]:
    """Returns the initial states of the chains, `[num_chains, ...]` for each variable.

    Args:
      model: a built model.
      variables: the sampled variables. Their values start chain 0 unless arrays are given.
      num_chains: C.
      starts: "initializers" draws the other chains' states from the initializer of each variable.
        It is the layer's attribute with Keras' name (`kernel_initializer` for `kernel`), or the one
        with which the layer's `build` adds the variable. "fresh" draws the state of chain 0 as
        well. "model" starts all chains where chain 0 starts. A sequence of arrays
        `[num_chains, ...]`, one per variable, sets all states.
      seed: seed of the draws.

    Raises:
      ValueError: arrays with the wrong number or shape, or a variable without a known initializer.
    """
    if not isinstance(starts, str):
        return _given(starts, variables, num_chains)
    values = [v.numpy() for v in variables]
    if starts == "model":
        return [tf.stack([tf.constant(x)] * num_chains) for x in values]
    initializers = _initializers(model)
    stacked = []
    for i, (variable, value) in enumerate(zip(variables, values, strict=True)):
        if id(variable) not in initializers:
            raise ValueError(
                f"The layer of {variable.path} must have an initializer of this variable, from "
                "which chains can start. Pass initial_states='model', or arrays [num_chains, ...], "
                "as in chains=sgmcmc.keras.Chains(5, initial_states='model')."
            )
        seeds = [_integer(seed, i, chain) for chain in range(num_chains)]
        draws = [_draw(initializers[id(variable)], value, s) for s in seeds]
        if starts == "initializers":
            draws[0] = value
        stacked.append(tf.stack(draws))
    return stacked


def values_for_chains(
    variables: list[keras.Variable],
    num_chains: int,
    seed: Any,
    given: Mapping[int, np.ndarray],
) -> list[tf.Tensor]:
    """Returns non-trainable variables' values for each chain, `[num_chains, ...]`.

    `given` holds values by `id` of the variable. The others are equal for all chains, except that
    each chain has its own seeds.
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
            if variable.name == "bias" and getattr(layer, "unit_forget_bias", False):
                continue  # its initializer is none of the attributes
            name = variable.name  # the initializer of a recurrent_kernel is recurrent_initializer
            # A depthwise convolution calls its depthwise_kernel "kernel".
            others = ["depthwise"] if name == "kernel" else []
            for owner in (name, name.removesuffix("_kernel"), *others):
                initializer = getattr(layer, f"{owner}_initializer", None)
                if callable(initializer):  # Keras takes functions, too
                    found.setdefault(id(variable), initializer)
    for layer in reversed(internals.layers(model)):  # a layer comes before those that it has
        missing = [v for v in _own_variables(layer) if v.trainable and id(v) not in found]
        if missing:
            declared = _declared(layer)
            found |= {id(v): declared[id(v)] for v in missing if id(v) in declared}
    return found


def _declared(layer: keras.Layer) -> dict[int, Any]:
    """Returns the initializers with which a layer adds its variables, by `id` of the variable.

    The scale of `RMSNormalization` and of attention, the matrices of `enable_lora`, and weights of
    a user's layer often have an initializer that no attribute holds. So a second layer with the
    same configuration is built, and its calls of `add_weight` are recorded. Its variables are those
    at the same places, or with the same names if it has others, as when it cannot be built. Making
    it draws from Python's random generator, whose state is restored.
    """
    added: list[tuple[keras.Variable, Any]] = []

    def add_weight(self: keras.Layer, *arguments: Any, **options: Any) -> keras.Variable:
        variable = type(layer).add_weight(self, *arguments, **options)
        given = arguments[1] if len(arguments) > 1 else options.get("initializer")
        initializer = keras.initializers.get(given or "glorot_uniform")  # Keras' default
        added.append((variable, initializer))
        return variable

    again, state = None, random.getstate()
    # A user's layer may not support being built this way.
    with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
        config, parameters = layer.get_config(), inspect.signature(type(layer).__init__).parameters
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            config = {k: v for k, v in config.items() if k in parameters}
        watched: Any = type("Watched", (type(layer),), {"add_weight": add_weight})
        again = watched.from_config(config)
        again.build_from_config(layer.get_build_config())
    random.setstate(state)
    own, others = _own_variables(layer), [] if again is None else _own_variables(again)
    if [v.shape for v in own] == [v.shape for v in others]:
        initializers = {id(v): initializer for v, initializer in added}
        pairs = zip(own, others, strict=True)
        return {id(v): initializers[id(o)] for v, o in pairs if id(o) in initializers}
    named = {(v.name, tuple(v.shape)): initializer for v, initializer in added}
    keys = {id(v): (v.name, tuple(v.shape)) for v in own}
    return {i: named[key] for i, key in keys.items() if key in named}


def _own_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Returns the variables of a layer without those of the layers that it has."""
    of_parts = {id(v) for part in internals.layers(layer)[1:] for v in part.weights}
    return [v for v in layer.weights if id(v) not in of_parts]


def _draw(initializer: Any, like: np.ndarray, seed: int) -> np.ndarray:
    config = initializer.get_config() if isinstance(initializer, keras.Initializer) else {}
    if "seed" in config:
        initializer = type(initializer).from_config({**config, "seed": seed})
    return np.asarray(initializer(like.shape, dtype=like.dtype.name))


def _integer(seed: Any, *place: int) -> int:
    words = np.asarray(seed).astype(np.uint32)
    return int(np.random.SeedSequence([*words, *place]).generate_state(1)[0] >> 1)


def are_members(starts: Any) -> bool:
    """Returns whether `initial_states` holds models, files or posteriors instead of arrays."""
    if isinstance(starts, Posterior):
        return True
    kinds = (keras.Model, Posterior, str, os.PathLike)
    return isinstance(starts, list | tuple) and any(isinstance(x, kinds) for x in starts)


def member_values(model: keras.Model, starts: Any, num_chains: int) -> dict[int, np.ndarray]:
    """Returns values `[num_chains, ...]` of the model's floating variables, by their `id`.

    Args:
      model: a built model, which stays as it is.
      starts: a list with one entry per chain: a model, the path of a file that `save` or
        `save_weights` wrote, or a `Posterior`, whose last sample is taken. Or a single `Posterior`
        with one sample per chain, or with as many chains, whose last samples are taken.
      num_chains: C.

    Raises:
      ValueError: the wrong number of entries, or an entry that is not finite or does not have the
        model's variables.
      FileNotFoundError: a file does not exist.
      TypeError: an entry has another type.
    """
    variables = _floating(model)
    if isinstance(starts, Posterior):
        members = _of_posterior(starts, num_chains)
    else:
        if len(starts) != num_chains:
            raise ValueError(
                f"initial_states must have one entry for each of the {num_chains} chains. "
                f"Received: {len(starts)}."
            )
        members = [_values(model, x, f"initial_states[{i}]") for i, x in enumerate(starts)]
    for i, member in enumerate(members):
        _check(member, variables, model, f"initial_states[{i}]")
    return {
        id(variable): np.stack([np.asarray(m[place][1], variable.dtype) for m in members])
        for place, variable in enumerate(variables)
    }


def check_shared(
    model: keras.Model, members: Mapping[int, np.ndarray], others: Sequence[keras.Variable]
) -> None:
    """Raises ValueError if members disagree with the model about weights that chains share.

    These are frozen weights, of which the model has one value for all chains.

    Args:
      model: the model that is sampled.
      members: values of its non-trainable floating variables, as `member_values` returns them.
      others: its non-trainable variables with a value for each chain.
    """
    own = {id(v) for v in others}
    for variable in model.non_trainable_variables:
        values = members.get(id(variable))
        if values is None or id(variable) in own:
            continue
        differing = [i for i, x in enumerate(values) if not np.array_equal(x, variable.numpy())]
        if differing:
            raise ValueError(
                f"initial_states must have the model's values of {variable.path}, which is not "
                f"sampled, so that all chains share it. Received: other values for chain "
                f"{differing[0]}. Set the model's weights to those that the members share, or "
                "sample these weights too (trainable=True)."
            )


def _floating(model: keras.Model) -> list[keras.Variable]:
    return [v for v in model.weights if internals.is_floating(v)]


def _values(model: keras.Model, member: Any, called: str) -> _Values:
    if isinstance(member, str | os.PathLike):
        return _of_file(model, member, called)
    if isinstance(member, Posterior):
        if member.num_chains is not None:
            raise ValueError(
                f"{called} must be a Posterior of a single chain. Received: one of "
                f"{member.num_chains} chains. Pass it alone, initial_states=posterior, to start "
                "each chain where one of these ended."
            )
        return _sampled(member, [x[len(member) - 1] for x in member.samples])
    if not isinstance(member, keras.Model):
        raise TypeError(f"{called} must be {_MEMBER}. Received: {a_type(member)}.")
    if not member.built:
        raise ValueError(f"{called} must be {_MEMBER}. Received: {member.name!r}, not built.")
    return [(v.name, v.numpy()) for v in _floating(member)]


def _of_posterior(posterior: Posterior, num_chains: int) -> list[_Values]:
    found = len(posterior) if posterior.num_chains is None else posterior.num_chains
    if found != num_chains:
        kind = "samples" if posterior.num_chains is None else "chains"
        raise ValueError(
            f"initial_states must be a Posterior with {num_chains} samples, one for each chain, or "
            f"with {num_chains} chains. Received: one with {found} {kind}."
        )
    states = posterior.samples
    if posterior.num_chains is not None:
        states = [np.asarray(x[len(posterior) - 1]) for x in states]
    return [_sampled(posterior, [x[i] for x in states]) for i in range(num_chains)]


def _sampled(posterior: Posterior, state: Sequence[Any]) -> _Values:
    """Returns a sample, completed by the model's values of variables that were not sampled."""
    sampled = {id(v): np.asarray(x) for v, x in zip(posterior.variables, state, strict=True)}
    return [(v.name, sampled.get(id(v), v.numpy())) for v in _floating(posterior.model)]


def _of_file(model: keras.Model, path: str | os.PathLike[str], called: str) -> _Values:
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"{called} must be a file that save or save_weights of a model wrote. Received: "
            f"{os.fspath(path)}, which does not exist."
        )
    before = [(v, v.numpy()) for v in model.variables]
    try:
        model.load_weights(path)
        return [(v.name, v.numpy()) for v in _floating(model)]
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(
            f"{called} must be a file with the weights of {model.name!r}. Received: "
            f"{os.fspath(path)}, which Keras refuses: {error}"
        ) from error
    finally:
        for variable, value in before:
            variable.assign(value)


def _check(
    member: _Values, variables: list[keras.Variable], model: keras.Model, called: str
) -> None:
    found = [(name, np.shape(x)) for name, x in member]
    expected = [(v.name, tuple(v.shape)) for v in variables]
    if found != expected:
        pairs = zip(found, expected, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if place is None:
            differs = f"{len(found)} variables in place of {len(expected)}"
        else:
            differs = (
                f"{found[place][0]} of shape {found[place][1]} in the place of "
                f"{variables[place].path} of shape {expected[place][1]}"
            )
        raise ValueError(
            f"{called} must have the variables of {model.name!r}, in their order. Received: "
            f"{differs}."
        )
    for name, value in member:
        if not np.isfinite(np.asarray(value, np.float64)).all():
            raise ValueError(f"{called} must be finite. Received: NaN or infinity in {name}.")
