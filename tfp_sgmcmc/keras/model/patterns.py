"""Assigns values to a model's variables by patterns of their paths."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import keras

from tfp_sgmcmc.keras.model import internals


def by_variable(model: keras.Model, values: Mapping[str, Any], default: Any = None) -> list[Any]:
    """Returns the value of each variable in `model.trainable_variables`, as a list.

    Kernels inside `fit` take such lists wherever they take a nest in the structure of the state:
    step sizes, masses, the scales of `tfp_sgmcmc.preconditioners.Diagonal`.

    A variable's `path` is split at its slashes. A pattern matches one or more neighbouring parts of
    it, each part as a whole and in shell style (`fnmatch.fnmatchcase`: `*`, `?`, `[ab]`). So
    "conv_1" matches all variables of that layer, "conv*" those of all layers whose names begin so,
    "bias" every bias, "conv*/kernel" the kernels of those layers, and "*" everything. A pattern of
    one part does not match the model's name, with which most paths begin. If several patterns match
    a variable, the first in the order of `values` wins.

    Examples:
      >>> import keras, numpy as np
      >>> import tfp_sgmcmc as sgmcmc
      >>> model = keras.Sequential([
      ...     keras.Input([3]), keras.layers.Dense(4, name="body"),
      ...     keras.layers.Dense(1, use_bias=False, name="head")], name="net")
      >>> [v.path for v in model.trainable_variables]
      ['net/body/kernel', 'net/body/bias', 'net/head/kernel']
      >>> sgmcmc.keras.by_variable(model, {"bias": 1e-4, "body": 1e-6}, default=1e-5)
      [1e-06, 0.0001, 1e-05]

    Args:
      model: a built model.
      values: a dict from patterns to values.
      default: the value of variables that no pattern matches. With None, every variable must match.

    Raises:
      ValueError: the model has no variables, a pattern is not the first match of any variable, or
        a variable has neither a pattern nor a default.
      TypeError: `values` is not a mapping from strings.
    """
    return assigned("values", values, model, default)


def check_patterns(name: str, values: Any) -> None:
    """Raises TypeError unless `values` maps strings, and ValueError if it is empty."""
    if not isinstance(values, Mapping):
        raise TypeError(
            f"{name} must be a dict from patterns of variables' paths to values. Received: a "
            f"{type(values).__name__}."
        )
    if not values:
        raise ValueError(f"{name} must have a pattern, such as '*'. Received: an empty dict.")
    for pattern in values:
        if not isinstance(pattern, str):
            raise TypeError(f"{name} must have strings as keys. Received: the key {pattern!r}.")


def assigned(
    name: str, values: Mapping[str, Any], model: keras.Model, default: Any = None
) -> list[Any]:
    """Returns what `by_variable` does, for an argument called `name` in messages."""
    check_patterns(name, values)
    internals.check_model_type(model)
    paths = [v.path for v in model.trainable_variables]
    known = f"The model {model.name!r} has {', '.join(paths) or 'no trainable variables'}."
    if not paths:
        raise ValueError(f"{name} must match variables, but the model is not built. {known}")
    found = [next((p for p in values if _matches(p, path, model)), None) for path in paths]
    if unused := [p for p in values if p not in found]:
        raise ValueError(
            f"Each pattern in {name} must be the first that matches some variable. Received: "
            f"{', '.join(map(repr, unused))}, which match no variable, or only those that earlier "
            f"patterns match. {known}"
        )
    unmatched = [path for path, p in zip(paths, found, strict=True) if p is None]
    if unmatched and default is None:
        raise ValueError(
            f"{name} must have a pattern for each variable. It has no pattern that matches "
            f"{', '.join(unmatched)}. A last pattern '*' would match."
        )
    return [default if p is None else values[p] for p in found]


def _matches(pattern: str, path: str, model: keras.Model) -> bool:
    wanted, parts = pattern.split("/"), path.split("/")
    if len(wanted) == 1 < len(parts) and parts[0] == model.name:
        del parts[0]
    runs = (parts[i : i + len(wanted)] for i in range(len(parts) - len(wanted) + 1))
    return any(all(map(fnmatchcase, run, wanted)) for run in runs)
