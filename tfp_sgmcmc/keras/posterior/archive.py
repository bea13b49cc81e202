"""Samples of a model's variables in a file: which variable each array belongs to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.internal.checks import integer
from tfp_sgmcmc.keras.posterior.sample_arrays import checked, checked_weights
from tfp_sgmcmc.storage import npz

_FORMAT = "tfp_sgmcmc.keras.Posterior"
# Version 1 has no weights, version 2 has them, and version 3 says so and has dtypes of the samples.
_VERSIONS = (1, 2, 3)
_KEYS = ("path", "shape", "dtype")

Description = tuple[str, tuple[int, ...], str]  # path without the model's name, shape, dtype


def write(
    path: str | os.PathLike[str],
    model: keras.Model,
    variables: list[keras.Variable],
    samples: Sequence[Any],
    num_chains: int | None,
    weights: np.ndarray | None,
) -> None:
    """Writes samples; an existing file stays whole until the new one is complete."""
    header: dict[str, Any] = {
        "format": _FORMAT,
        "version": 1 if weights is None else 2,
        "num_chains": num_chains,
        "variables": [dict(zip(_KEYS, _description(v, model), strict=True)) for v in variables],
    }
    stored = [np.dtype(s.dtype).name for s in samples]
    if stored != [v.dtype for v in variables]:
        header |= {"version": 3, "weighted": weights is not None, "stored": stored}
    arrays = {str(i): values for i, values in enumerate(samples)}
    npz.write(path, header, arrays if weights is None else {**arrays, "weights": weights})


def read(
    path: str | os.PathLike[str], model: keras.Model
) -> tuple[list[keras.Variable], list[np.ndarray], int | None, np.ndarray | None]:
    """Returns variables of `model`, their samples, the number of chains and the weights.

    Raises:
      FileNotFoundError: `path` does not exist.
      ValueError: the file is damaged or of another kind, or holds samples of another model.
    """
    with npz.reading(path, "Posterior.save") as (header, array):
        if header["format"] != _FORMAT or header["version"] not in _VERSIONS:
            raise ValueError(f"its format is {header['format']!r} {header['version']!r}")
        num_chains = header["num_chains"]
        if num_chains is not None:
            num_chains = integer("num_chains", num_chains, 1)
        described = [_described(v) for v in header["variables"]]
        variables = _matching(described, model)
        dtypes = [v.dtype for v in variables or ()]
        is_weighted = header["version"] == 2
        if header["version"] == 3:
            dtypes, is_weighted = dtypes and header["stored"], header["weighted"]
        samples = [array(str(i), dtype) for i, dtype in enumerate(dtypes)]
        weights = array("weights", "float64") if is_weighted else None
    if variables is None:
        raise ValueError(
            f"{os.fspath(path)} must hold samples of the model {model.name!r}. Received: samples "
            f"of another model: {_difference(described, model)}. A model that was loaded by "
            "keras.models.load_model, or whose layers are given names, keeps its variables' paths."
        )
    try:
        checked(samples, variables, num_chains)
        checked_weights(weights, len(samples[0]))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is damaged: {error}") from error
    return variables, samples, num_chains, weights


def _described(entry: dict[str, Any]) -> Description:
    """Returns a variable's entry in the header; raises an error if it cannot be one."""
    path, shape, dtype = (entry[key] for key in _KEYS)
    if not isinstance(path, str) or not isinstance(dtype, str) or not isinstance(shape, list):
        raise ValueError(f"its header describes a variable as {entry!r}")
    return path, tuple(integer("shape", n, 0) for n in shape), dtype


def _description(variable: keras.Variable, model: keras.Model) -> Description:
    # A Sequential model that was loaded leaves its name out of the paths.
    path = variable.path.removeprefix(f"{model.name}/")
    return path, tuple(variable.shape), variable.dtype


def _matching(described: list[Description], model: keras.Model) -> list[keras.Variable] | None:
    """Returns the model's variables in the file's order, or None if a trained one is missing."""
    left = list(model.variables)
    found = []
    for description in described:
        same = [v for v in left if _description(v, model) == description]
        if not same:
            return None
        left = [v for v in left if v is not same[0]]
        found.append(same[0])
    return None if any(v.trainable for v in left) else found


def _difference(described: list[Description], model: keras.Model) -> str:
    there = {path: f"{dtype} {shape}" for path, shape, dtype in described}
    here, said = {}, []
    for variable in model.variables:
        path, shape, dtype = _description(variable, model)
        here[path] = f"{dtype} {shape}"
        if path not in there and variable.trainable:
            said.append(f"{path} is in the model only")
    said += [f"{path} is in the file only" for path in there if path not in here]
    pairs = [(path, there[path], here[path]) for path in there if path in here]
    said += [f"{path} is {x} in the file, {y} in the model" for path, x, y in pairs if x != y]
    return "; ".join(said) or "several variables share a path"
