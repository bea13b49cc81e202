"""Samples of a model's variables in a file: an npz with a header in JSON, and no pickle."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.posterior.sample_loops import bytes_of_one
from tfp_sgmcmc.storage.checkpoint import stored_dtype

_FORMAT, _VERSION = "tfp_sgmcmc.keras.Posterior", 1
_KEYS = ("path", "shape", "dtype")
_PIECE_BYTES = 2**26  # samples in memory at once
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError)

Description = tuple[str, tuple[int, ...], str]  # path without the model's name, shape, dtype


def write(
    path: str | os.PathLike[str],
    model: keras.Model,
    variables: list[keras.Variable],
    samples: Sequence[Any],
    num_chains: int | None,
) -> None:
    """Writes samples; a file that is there already stays whole until the new one is."""
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "num_chains": num_chains,
        "variables": [dict(zip(_KEYS, _description(v, model), strict=True)) for v in variables],
    }
    part = Path(f"{os.fspath(path)}.part")
    with zipfile.ZipFile(part, "w") as file:
        file.writestr("header.json", json.dumps(header))
        for i, values in enumerate(samples):
            with file.open(f"{i}.npy", "w", force_zip64=True) as entry:
                _write_array(entry, values)
    part.replace(path)


def read(
    path: str | os.PathLike[str], model: keras.Model
) -> tuple[list[keras.Variable], list[np.ndarray], int | None]:
    """The variables of `model` that the samples are values of, samples, and number of chains.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a file that is damaged, or none of these; samples of another model.
    """
    try:
        with zipfile.ZipFile(path) as file:
            header = json.loads(file.read("header.json"))
            if (header["format"], header["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"its format is {header['format']!r} {header['version']!r}")
            described: list[Description] = [
                (v["path"], tuple(v["shape"]), v["dtype"]) for v in header["variables"]
            ]
            variables = _matching(described, model)
            samples = [_read_array(file, f"{i}.npy", v) for i, v in enumerate(variables or ())]
    except _DAMAGED as error:
        raise ValueError(
            f"{os.fspath(path)} is damaged, or was not written by Posterior.save: {error}."
        ) from error
    if variables is None:
        raise ValueError(
            f"{os.fspath(path)} holds samples of another model than {model.name!r}: "
            f"{_difference(described, model)}. A model that was loaded by keras.models.load_model, "
            "or whose layers are given names, keeps its variables' paths."
        )
    return variables, samples, header["num_chains"]


def _description(variable: keras.Variable, model: keras.Model) -> Description:
    # A Sequential model that was loaded has left its own name out of the paths.
    path = variable.path.removeprefix(f"{model.name}/")
    return path, tuple(variable.shape), variable.dtype


def _matching(described: list[Description], model: keras.Model) -> list[keras.Variable] | None:
    """The model's variables in the file's order; None unless all that it trains are among them."""
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
    here = {}
    said = []
    for variable in model.variables:
        path, shape, dtype = _description(variable, model)
        here[path] = f"{dtype} {shape}"
        if path not in there and variable.trainable:
            said.append(f"{path} is in the model only")
    said += [f"{path} is in the file only" for path in there if path not in here]
    said += [
        f"{path} is {there[path]} in the file, {here[path]} in the model"
        for path in there
        if path in here and here[path] != there[path]
    ]
    return "; ".join(said) or "several variables share a path"


def _write_array(entry: Any, values: Any) -> None:
    """As `np.save` does, a piece at a time."""
    dtype = stored_dtype(np.dtype(values.dtype))
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(entry, {**description, "shape": tuple(values.shape)})
    size = max(1, _PIECE_BYTES // max(1, bytes_of_one(values)))
    for start in range(0, values.shape[0], size):
        entry.write(np.ascontiguousarray(values[start : start + size]).view(dtype).tobytes())


def _read_array(file: zipfile.ZipFile, name: str, variable: keras.Variable) -> np.ndarray:
    dtype = np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
    with file.open(name) as entry:
        values = np.lib.format.read_array(entry, allow_pickle=False)
        if values.dtype != stored_dtype(dtype) or entry.read(1):
            raise ValueError(f"{name} is not as the header says")
    return values.view(dtype)
