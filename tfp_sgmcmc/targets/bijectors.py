"""Bijectors part by part: constrained parameters behind an unconstrained state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc.state import State


def check_bijectors(bijector: Any) -> None:
    """Raises TypeError unless `bijector` is None, a bijector or a nest of these."""
    for leaf in tf.nest.flatten(bijector):
        if leaf is not None and not isinstance(leaf, tfp.bijectors.Bijector):
            raise TypeError(f"bijector holds {leaf!r}; a tfp.bijectors.Bijector is expected.")


def map_bijectors(
    bijector: Any,
    fn: Callable[[Any, Any], Any],
    state: State,
    otherwise: Callable[[Any], Any] = lambda x: x,
) -> State:
    """Applies `fn(bijector, part)`; a part without a bijector goes through `otherwise`.

    `target(*[x])` sees x alone, and `target(**named)` a dict where the state was a namedtuple: a
    list of one part is taken as that part, and named parts go by name.
    """
    called, bijector = as_called(state), as_called(bijector)
    if bijector is None:
        return state
    try:
        matched = tree.map_structure_up_to(called, _check, called, bijector, check_types=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"bijector is {bijector}, which has not the structure of the state, "
            f"{tf.nest.map_structure(lambda x: x.shape, state)}; None stands for no bijector."
        ) from error
    mapped = tree.map_structure_up_to(
        called, lambda x, b: otherwise(x) if b is None else fn(b, x), called, matched
    )
    if hasattr(state, "_asdict"):
        return type(state)(**mapped)
    return mapped if called is state else type(state)([mapped])


def as_called(nest: Any) -> Any:
    """A nest of parts as a function gets it that is called with them: by name, or one by one."""
    if hasattr(nest, "_asdict"):
        return nest._asdict()
    return nest[0] if isinstance(nest, list | tuple) and len(nest) == 1 else nest


def _check(_: Any, bijector: Any) -> Any:
    check_bijectors(bijector)
    if tf.nest.is_nested(bijector):
        raise ValueError("a nest for a part")
    return bijector
