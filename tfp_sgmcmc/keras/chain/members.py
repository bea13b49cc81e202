"""First states of chains from trained models, files of weights, and posteriors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.keras.posterior.posterior import Posterior

_MEMBER = "a built keras.Model, the path of its weights, or a Posterior of a single chain"


def are_members(starts: Any) -> bool:
    """Returns whether `initial_states` names models, files or posteriors, and no arrays."""
    if isinstance(starts, Posterior):
        return True
    kinds = (keras.Model, Posterior, str, os.PathLike)
    return isinstance(starts, list | tuple) and any(isinstance(x, kinds) for x in starts)


def member_values(model: keras.Model, starts: Any, num_chains: int) -> dict[int, np.ndarray]:
    """Returns values `[num_chains, ...]` of the model's floating variables, by their `id`.

    Args:
      model: a built model, which stays as it is.
      starts: a list with one entry for each chain: a model, the path of a file that `save` or
        `save_weights` wrote, or a `Posterior`, whose last sample counts. A single `Posterior` has
        one sample for each chain, or as many chains, whose last samples count.
      num_chains: C.

    Raises:
      ValueError: another number, or an entry that has not the model's variables or is not finite.
      FileNotFoundError: there is no such file.
      TypeError: an entry is something else.
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


_Values = list[tuple[str, np.ndarray]]  # name and value of each floating variable of a model


def _floating(model: keras.Model) -> list[keras.Variable]:
    return [v for v in model.weights if v.dtype.startswith(("float", "bfloat"))]


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
        raise TypeError(f"{called} must be {_MEMBER}. Received: a {type(member).__name__}.")
    if not member.built:
        raise ValueError(f"{called} must be {_MEMBER}. Received: {member.name!r}, not built.")
    return [(v.name, v.numpy()) for v in _floating(member)]


def _of_posterior(posterior: Posterior, num_chains: int) -> list[_Values]:
    found = len(posterior) if posterior.num_chains is None else posterior.num_chains
    if found != num_chains:
        kind = "samples" if posterior.num_chains is None else "chains"
        raise ValueError(
            f"initial_states must be a Posterior with {num_chains} samples, one for each chain, or "
            f"with so many chains. Received: one with {found} {kind}."
        )
    if posterior.num_chains is None:
        states = [[x[i] for x in posterior.samples] for i in range(num_chains)]
    else:
        last = [np.asarray(x[len(posterior) - 1]) for x in posterior.samples]
        states = [[x[i] for x in last] for i in range(num_chains)]
    return [_sampled(posterior, state) for state in states]


def _sampled(posterior: Posterior, state: Sequence[Any]) -> _Values:
    """Returns a sample, with the values of the model for variables that were not sampled."""
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
