"""Arrays of samples, in memory, on disk or in a file, with the variables they are values of."""

from __future__ import annotations

import math
import os
import re
import warnings
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics.weighted import checked_step_sizes
from tfp_sgmcmc.internal.checks import a_type, integer
from tfp_sgmcmc.storage import npz
from tfp_sgmcmc.targets.data import rows_not_finite

_HALF = ("float16", "bfloat16")
_WIDE = ("float32", "float64")  # dtypes of variables whose samples may be in half precision
_FORMAT = "tfp_sgmcmc.keras.Posterior"
# Version 1 has no weights. Version 2 has them. Version 3, which is written, records whether it has
# them, and the dtypes of the samples.
_VERSIONS = (1, 2, 3)
_KEYS = ("path", "shape", "dtype")

Description = tuple[str, tuple[int, ...], str]  # path without the model's name, shape, dtype


class SampleArrays(NamedTuple):
    """Samples of a model's variables.

    Attributes:
      arrays: one array `[num_kept, ...]` for each variable, or `[num_kept, num_chains, ...]`.
      num_chains: the number of chains, or None for arrays without an axis of chains.
      weights: the weight of each kept sample, `[num_kept]`; None weights all by 1.
    """

    arrays: Sequence[Any]
    num_chains: int | None
    weights: np.ndarray | None

    @property
    def num_kept(self) -> int:
        """The number of samples in each chain."""
        return self.arrays[0].shape[0]

    def flat(self, values: np.ndarray) -> np.ndarray:
        """Returns values of all samples, `[S, ...]`, without the axis of chains."""
        return values if self.num_chains is None else values.reshape(-1, *values.shape[2:])

    def with_chains(self, values: Any) -> np.ndarray:
        """Returns values `[samples, chains, ...]`, with one chain if there is no such axis."""
        values = np.asarray(values[:])
        return values[:, np.newaxis] if self.num_chains is None else values

    def shares(self) -> np.ndarray:
        """Returns the weights of all samples, `[S]`, which add up to 1."""
        weights = self._flat_weights()
        return weights / weights.sum()

    def running_shares(self) -> np.ndarray:
        """Returns each sample's weight over the sum of the weights up to it, `[S]`."""
        weights = self._flat_weights()
        total = np.cumsum(weights)
        return np.divide(weights, total, out=np.zeros_like(total), where=total > 0)

    def _flat_weights(self) -> np.ndarray:
        weights = np.ones([self.num_kept]) if self.weights is None else self.weights
        return np.repeat(weights, self.num_chains or 1)


def checked(
    samples: Sequence[Any], variables: Sequence[keras.Variable], num_chains: int | None
) -> list[Any]:
    """Returns samples in the variables' dtypes, or in half precision.

    Raises:
      TypeError: `samples` is not a sequence of arrays.
      ValueError: the samples do not fit the variables, or NumPy arrays are not finite.
    """
    is_list = isinstance(samples, Sequence) and not isinstance(samples, np.ndarray | str)
    for values in samples if is_list else [samples]:
        if not is_list or not hasattr(values, "shape") or not hasattr(values, "dtype"):
            raise TypeError(
                "samples must be a list of arrays, one for each variable. Received: "
                f"{'a list with ' if is_list else ''}{a_type(values)}."
            )
    if len(samples) != len(variables) or not samples:
        raise ValueError(
            f"samples must have one array for each of the {len(variables)} variables, and at least "
            f"one. Received: {len(samples)} arrays."
        )
    length = samples[0].shape[0] if samples[0].shape else 0
    chains = [] if num_chains is None else [num_chains]
    arrays = []
    for variable, values in zip(variables, samples, strict=True):
        dtype = npz.numpy_dtype(variable.dtype)
        if dtype.itemsize < 4 and values.dtype == np.float32:
            values = _Narrowed(values, dtype)
        expected = (max(length, 1), *chains, *variable.shape)
        is_half = np.dtype(values.dtype).name in _HALF and dtype.name in _WIDE
        if tuple(values.shape) != expected or not (values.dtype == dtype or is_half):
            raise ValueError(
                f"The samples of {variable.path} must be {dtype} of shape {expected}. Received: "
                f"{values.dtype} of shape {tuple(values.shape)}."
            )
        if isinstance(values, np.ndarray) and len(rows_not_finite(values)):
            raise ValueError(
                f"The samples of {variable.path} must be finite. Received: NaN or infinity."
            )
        arrays.append(values)
    return arrays


def in_half_precision(
    samples: Sequence[Any], variables: Sequence[keras.Variable], name: str
) -> list[Any]:
    """Returns samples of floating variables in the dtype `name`, and others unchanged.

    Raises:
      ValueError: a sample is too large for this dtype.
    """
    narrow = list(samples)
    for i, (variable, values) in enumerate(zip(variables, samples, strict=True)):
        if variable.dtype not in _WIDE:
            continue
        with np.errstate(over="ignore"):
            narrow[i] = np.asarray(values[:]).astype(npz.numpy_dtype(name))
        if len(rows_not_finite(narrow[i])):
            raise ValueError(
                f"The samples of {variable.path} must be at most {tf.as_dtype(name).max} in "
                f"magnitude for {name}. Received: larger ones."
            )
    return narrow


def checked_weights(weights: Any, num_kept: int) -> np.ndarray | None:
    """Returns weights `[num_kept]` in double precision, or None.

    Raises:
      TypeError: they are not numbers.
      ValueError: they are not finite, negative, all zero, or not `num_kept` of them.
    """
    if weights is None:
        return None
    weights = checked_step_sizes(weights, "weights")
    if weights.shape != (num_kept,):
        raise ValueError(
            f"weights must have shape [{num_kept}], one for each sample. Received: shape "
            f"{list(weights.shape)}."
        )
    return weights


def checksum_of_rest(model: keras.Model, variables: Sequence[keras.Variable]) -> str:
    """Returns a checksum of the model's weights that are not sampled; "" if there are none.

    It does not depend on their order. Numbers that are no weights, such as states of random
    generators, are left out.
    """
    sampled = {id(v) for v in variables}
    rest = [v for v in model.variables if id(v) not in sampled and "float" in v.dtype]
    sums = sorted(zlib.crc32(tf.convert_to_tensor(v).numpy().tobytes()) for v in rest)
    return f"{zlib.crc32(np.array(sums, np.uint32).tobytes()):08x}" if sums else ""


def warn_if_changed(
    model: keras.Model, variables: Sequence[keras.Variable], before: str, stacklevel: int
) -> str:
    """Returns the checksum of the weights that are not sampled; warns if there was another one."""
    found = checksum_of_rest(model, variables)
    if before and found != before:
        warnings.warn(
            f"The weights of {model.name!r} that are not sampled are others than those with which "
            "these samples were drawn, so predictions do not fit. Give the model the former ones, "
            "as by model.save before they change and keras.models.load_model.",
            stacklevel=stacklevel + 1,
        )
    return found


class _Narrowed:
    """Half-precision samples that are stored in single precision, as zarr has no bfloat16."""

    def __init__(self, values: Any, dtype: np.dtype):
        self._values, self.shape, self.dtype = values, values.shape, dtype

    def __getitem__(self, item: Any) -> np.ndarray:
        return np.asarray(self._values[item]).astype(self.dtype)


def write_file(
    path: str | os.PathLike[str],
    model: keras.Model,
    variables: list[keras.Variable],
    samples: SampleArrays,
    temperature: float | None,
    rest: str,
) -> None:
    """Writes samples; an existing file stays whole until the new one is complete."""
    is_weighted = samples.weights is not None
    header: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSIONS[-1],
        "num_chains": samples.num_chains,
        "variables": [dict(zip(_KEYS, _description(v, model), strict=True)) for v in variables],
        "weighted": is_weighted,
        "stored": [np.dtype(x.dtype).name for x in samples.arrays],
        "rest": rest,
    }
    if temperature != 1:
        header |= {"temperature": temperature}
    arrays = {str(i): values for i, values in enumerate(samples.arrays)}
    npz.write(path, header, {**arrays, "weights": samples.weights} if is_weighted else arrays)


def read_file(path: str | os.PathLike[str], model: keras.Model) -> tuple[tuple[Any, ...], str]:
    """Returns the arguments of a `Posterior` after `model`, and the checksum of other weights.

    The checksum is "" if there are none, and in files of earlier versions.

    Raises:
      FileNotFoundError: `path` does not exist.
      ValueError: the file is damaged or of another kind, or holds samples of another model.
    """
    with npz.reading(path, "Posterior.save") as (header, array):
        if header["format"] != _FORMAT or header["version"] not in _VERSIONS:
            raise ValueError(f"its format is {header['format']!r} {header['version']!r}")
        temperature, rest = header.get("temperature", 1.0), header.get("rest", "")
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
            "keras.models.load_model, or whose layers are given names, keeps their names."
        )
    try:
        checked(samples, variables, num_chains)
        checked_weights(weights, len(samples[0]))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is damaged: {error}") from error
    return (variables, samples, num_chains, weights, temperature), rest


def _described(entry: dict[str, Any]) -> Description:
    """Returns the description in a header's entry; raises an error if it is not one."""
    path, shape, dtype = (entry[key] for key in _KEYS)
    if not isinstance(path, str) or not isinstance(dtype, str) or not isinstance(shape, list):
        raise ValueError(f"its header describes a variable as {entry!r}")
    return path, tuple(integer("shape", n, 0) for n in shape), dtype


def _description(variable: keras.Variable, model: keras.Model) -> Description:
    # A Sequential model that was loaded leaves its name out of the paths.
    path = variable.path.removeprefix(f"{model.name}/")
    return path, tuple(variable.shape), variable.dtype


def _matching(described: list[Description], model: keras.Model) -> list[keras.Variable] | None:
    """Returns the model's variables in the file's order, or None if a trained one is missing.

    Keras numbers layers without a name of their own in the order in which a process makes them. So
    if paths differ, they are compared without such numbers, where the file has all variables that
    are alike then; and then without the models within models, which a loaded model may leave out.
    """
    here = [_description(v, model) for v in model.variables]
    found = _taken(described, here, model.variables)
    for shortened in (_unnumbered, _of_layer):
        if found is None:
            here, described = [*map(shortened, here)], [*map(shortened, described)]
            if all(here.count(d) == described.count(d) for d in described):
                found = _taken(described, here, model.variables)
    return found


def _of_layer(description: Description) -> Description:
    """Returns the description with the path from the variable's layer on."""
    path, shape, dtype = description
    return "/".join(path.split("/")[-2:]), shape, dtype


def _taken(
    described: list[Description], here: list[Description], variables: Sequence[keras.Variable]
) -> list[keras.Variable] | None:
    """Returns the first variable for each description that no other one has taken."""
    left = [*zip(here, variables, strict=True)]
    found = []
    for description in described:
        place = next((i for i, (d, _) in enumerate(left) if d == description), None)
        if place is None:
            return None
        found.append(left.pop(place)[1])
    return None if any(v.trainable for _, v in left) else found


def _unnumbered(description: Description) -> Description:
    path, shape, dtype = description
    return re.sub(r"_\d+(?=/|$)", "", path), shape, dtype


def _difference(described: list[Description], model: keras.Model) -> str:
    there = {path: f"{dtype} {shape}" for path, shape, dtype in described}
    here, differences = {}, []
    for variable in model.variables:
        path, shape, dtype = _description(variable, model)
        here[path] = f"{dtype} {shape}"
        if path not in there and variable.trainable:
            differences.append(f"{path} is in the model only")
    differences += [f"{path} is in the file only" for path in there if path not in here]
    pairs = [(path, there[path], here[path]) for path in there if path in here]
    differences += [
        f"{path} is {x} in the file, {y} in the model" for path, x, y in pairs if x != y
    ]
    return "; ".join(differences) or "several variables share a path"


def concatenated(posteriors: Any, kind: type) -> tuple[Any, ...]:
    """Returns the arguments of the posterior, of class `kind`, that has the chains of all."""
    if not isinstance(posteriors, list | tuple):
        raise TypeError(f"posteriors must be a list of Posterior. Received: {a_type(posteriors)}.")
    if not posteriors:
        raise ValueError("posteriors must hold at least one Posterior. Received: none.")
    first = posteriors[0]
    for number, part in enumerate(posteriors):
        if not isinstance(part, kind):
            raise TypeError(
                f"posteriors must be a list of Posterior. Received: {a_type(part)} at "
                f"place {number}."
            )
        if part.model is not first.model:
            raise ValueError(
                f"posteriors must be of one model. Received: another, {part.model.name!r}, at "
                f"place {number}. Posterior.save(path) and Posterior.load(path, model) bring "
                "samples that were drawn elsewhere to one model."
            )
        if [id(v) for v in part.variables] != [id(v) for v in first.variables]:
            paths = [", ".join(v.path for v in p.variables) for p in (first, part)]
            raise ValueError(
                "posteriors must have samples of the same variables. Received: samples of "
                f"{paths[0]} at place 0, and of {paths[1]} at place {number}."
            )
        if len(part) != len(first):
            raise ValueError(
                "posteriors must have equally many samples in each chain. Received: "
                f"{', '.join(str(len(p)) for p in posteriors)}. Take the last ones of each by "
                "with_samples."
            )
        if not np.array_equal(part.weights, first.weights):
            raise ValueError(
                "posteriors must weight their samples alike, because a weight belongs to the same "
                f"sample of all chains. Received: other weights at place {number}."
            )

        if part.temperature != first.temperature:
            raise ValueError(
                "posteriors must have one temperature. Received: "
                f"{first.temperature} at place 0, and {part.temperature} at place {number}."
            )

    parts = [SampleArrays(p.samples, p.num_chains, None) for p in posteriors]
    samples = [
        np.concatenate([part.with_chains(part.arrays[i]) for part in parts], axis=1)
        for i in range(len(first.samples))
    ]
    num_chains = sum(p.num_chains or 1 for p in posteriors)
    return (
        first.model, first.variables, samples, num_chains, first.weights, first.temperature
    )  # fmt: skip


def checked_variables(variables: Any, model: keras.Model) -> list[keras.Variable]:
    """Returns a list of variables; raises TypeError or ValueError if one is not the model's."""
    found = list(variables) if isinstance(variables, list | tuple) else [variables]
    for variable in found:
        if not isinstance(variable, keras.Variable):
            raise TypeError(
                "variables must be a list of the model's variables, such as "
                f"model.trainable_variables. Received: {a_type(variable)}."
            )
        if not any(variable is v for v in model.variables):
            raise ValueError(
                f"variables must be variables of the model {model.name!r}. Received: "
                f"{variable.path}, which it does not have."
            )
    return found


def thinning(samples: Sequence[Any], max_bytes: int) -> int:
    """Returns the smallest k for which every k-th sample of each chain fits into these bytes.

    Raises:
      ValueError: one sample of each chain does not fit.
    """
    integer("max_bytes", max_bytes, 1)
    size = sum(math.prod(s.shape[1:]) * np.dtype(s.dtype).itemsize for s in samples)
    if size > max_bytes:
        raise ValueError(
            f"max_bytes must be at least {size}, which one sample of each chain takes. "
            f"Received: {max_bytes}."
        )
    return max(1, math.ceil(len(samples[0]) / (max_bytes // size)))
