"""Bijectors for the parts of a state, which map them to constrained parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
import tree

from tfp_sgmcmc.state import State


def check_bijectors(bijector: Any) -> None:
    """Raises TypeError unless `bijector` is None, a bijector, or a nest of None and bijectors."""
    for leaf in tf.nest.flatten(bijector):
        if leaf is not None and not isinstance(leaf, tfp.bijectors.Bijector):
            raise TypeError(
                f"bijector must hold tfp.bijectors.Bijector or None. Received: {leaf!r}."
            )


def map_bijectors(
    bijector: Any,
    fn: Callable[[Any, Any], Any],
    state: State,
    otherwise: Callable[[Any], Any] = lambda x: x,
) -> State:
    """Applies `fn(bijector, part)` to each part, or `otherwise` if it has no bijector.

    A list of one part is treated as that part, and a namedtuple as a dict, because
    `target(*[x])` sees x alone and `target(**named)` sees a dict.
    """
    called, bijector = _as_called(state), _as_called(bijector)
    if bijector is None:
        return state
    try:
        matched = tree.map_structure_up_to(called, _check, called, bijector, check_types=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "bijector must have the structure of the state, whose parts have shapes "
            f"{tf.nest.map_structure(lambda x: x.shape, state)}; None stands for no bijector. "
            f"Received: {bijector}."
        ) from error
    mapped = tree.map_structure_up_to(
        called, lambda x, b: otherwise(x) if b is None else fn(b, x), called, matched
    )
    if hasattr(state, "_asdict"):
        return type(state)(**mapped)
    return mapped if called is state else type(state)([mapped])


def _as_called(nest: Any) -> Any:
    """Returns the parts as a function sees them: a dict for names, or a single part alone."""
    if hasattr(nest, "_asdict"):
        return nest._asdict()
    return nest[0] if isinstance(nest, list | tuple) and len(nest) == 1 else nest


def _check(_: Any, bijector: Any) -> Any:
    if tf.nest.is_nested(bijector):
        raise ValueError("a nest for a part")
    return bijector
