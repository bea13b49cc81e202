"""The entries of a model's weights whose traces `Traces` writes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.internal import checks

Weights = Sequence[tuple[str, tuple[int, ...]]]  # paths of variables, with the index of an entry
Entry = tuple[int, tuple[int, ...]]  # number of a variable, and the index


def check_weights(weights: Any) -> None:
    """Raises TypeError or ValueError unless it is a number or pairs of a path and an index."""
    if isinstance(weights, int):
        checks.integer("weights", weights, 0)
        return
    try:
        pairs = [(path, [*map(operator.index, at)]) for path, at in weights]
    except (TypeError, ValueError):
        pairs = [(None, [])]
    if not all(isinstance(path, str) for path, _ in pairs):
        raise TypeError(
            "weights must be an integer, or pairs of a variable's path and the index of an entry, "
            f'such as [("dense/kernel", (0, 3))]. Received: {weights!r}.'
        )


def traced_entries(variables: list[keras.Variable], weights: int | Weights) -> list[Entry]:
    """Returns the entries of variables that a number of weights, or pairs, stand for.

    Raises:
      ValueError: a pair names no entry of one variable.
    """
    if isinstance(weights, int):
        return [*dict.fromkeys(_spread(variables, weights))]  # small variables have few entries
    return [_found(variables, path, tuple(at)) for path, at in weights]


def _spread(variables: list[keras.Variable], count: int) -> Iterator[Entry]:
    """Yields numbers of variables in turn, with indices of entries spread over each."""
    rounds = -(-count // len(variables))
    for k in range(count):
        turn, i = divmod(k, len(variables))
        shape = tuple(variables[i].shape)
        at = int((turn + 0.5) / rounds * math.prod(shape))
        yield i, tuple(int(n) for n in np.unravel_index(at, shape)) if shape else ()


def _found(variables: list[keras.Variable], path: str, at: tuple[int, ...]) -> Entry:
    """Returns the number of the variable that a path names, and the index.

    Raises:
      ValueError: no or several variables have it, or the variable has no such entry.
    """
    found = [i for i, v in enumerate(variables) if f"/{v.path}".endswith(f"/{path}")]
    if len(found) != 1:
        raise ValueError(
            f"weights must name trainable variables of the model. Received: {path!r}, which fits "
            f"{len(found)} of {', '.join(v.path for v in variables)}."
        )
    shape = tuple(variables[found[0]].shape)
    if len(at) != len(shape) or any(not 0 <= n < size for n, size in zip(at, shape, strict=True)):
        raise ValueError(
            f"weights must have indices of entries. Received: {at} for {path!r} of shape {shape}."
        )
    return found[0], at
