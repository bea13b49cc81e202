"""Values for a model's variables, by patterns of their paths."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import keras


def by_variable(model: keras.Model, values: Mapping[str, Any], default: Any = None) -> list[Any]:
    """Returns the value of each variable in `model.trainable_variables`, as a list.

    Kernels inside `fit` take such lists wherever they take a nest in the structure of the state:
    step sizes, masses, the scales of `tfp_sgmcmc.preconditioners.Diagonal`.

    A pattern names one or more neighbouring parts of a variable's `path`, which is split at its
    slashes; each part is matched whole, in shell style (`fnmatch.fnmatchcase`: `*`, `?`, `[ab]`).
    So "conv_1" is all variables of that layer, "conv*" of all layers so named, "bias" is every
    bias, "conv*/kernel" the kernels of those layers, and "*" everything. A pattern of one part does
    not look at the model's own name, with which most paths begin. Of several that match a variable,
    the first in the order of `values` wins.

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
      model: built.
      values: pattern -> value.
      default: of the variables that no pattern matches; None is no default: there must be none.

    Raises:
      ValueError: a model without variables; a pattern that is the first to match no variable; a
        variable that no pattern matches, without a default.
      TypeError: `values` is no mapping from strings.
    """
    return assigned("values", values, model, default)


def check_patterns(name: str, values: Any) -> None:
    """Raises TypeError unless `values` maps strings, and ValueError if it is empty."""
    if not isinstance(values, Mapping):
        raise TypeError(
            f"{name} is a {type(values).__name__}; a dict from patterns of variables' paths to "
            "values is expected."
        )
    if not values:
        raise ValueError(f"{name} is an empty dict; a pattern such as '*' is expected.")
    for pattern in values:
        if not isinstance(pattern, str):
            raise TypeError(f"{name} has the key {pattern!r}; a pattern, a string, is expected.")


def assigned(
    name: str, values: Mapping[str, Any], model: keras.Model, default: Any = None
) -> list[Any]:
    """`by_variable` for an argument called `name`."""
    check_patterns(name, values)
    paths = [v.path for v in model.trainable_variables]
    known = f"The model {model.name!r} has {', '.join(paths) or 'no trainable variables'}."
    if not paths:
        raise ValueError(f"{name} is by variable, but the model is not built. {known}")
    found = [next((p for p in values if _matches(p, path, model)), None) for path in paths]
    if unused := [p for p in values if p not in found]:
        raise ValueError(
            f"{name} has patterns that match no variable, or none that those before them leave: "
            f"{', '.join(map(repr, unused))}. {known}"
        )
    unmatched = [path for path, p in zip(paths, found, strict=True) if p is None]
    if unmatched and default is None:
        raise ValueError(
            f"{name} has no pattern that matches {', '.join(unmatched)}; a last pattern '*' would."
        )
    return [default if p is None else values[p] for p in found]


def _matches(pattern: str, path: str, model: keras.Model) -> bool:
    wanted, parts = pattern.split("/"), path.split("/")
    if len(wanted) == 1 < len(parts) and parts[0] == model.name:
        del parts[0]
    runs = (parts[i : i + len(wanted)] for i in range(len(parts) - len(wanted) + 1))
    return any(all(map(fnmatchcase, run, wanted)) for run in runs)
