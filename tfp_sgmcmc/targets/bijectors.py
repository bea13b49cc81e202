"""Bijectors part by part: constrained parameters behind an unconstrained state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.targets.base import State


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
    """Applies `fn(bijector, part)`; a part without a bijector goes through `otherwise`."""
    if bijector is None:
        return state
    if not tf.nest.is_nested(state) and not tf.nest.is_nested(bijector):
        return fn(bijector, state)
    try:
        tf.nest.assert_same_structure(state, bijector, check_types=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"bijector is {bijector}, which has not the structure of the state, "
            f"{tf.nest.map_structure(lambda x: x.shape, state)}; None stands for no bijector."
        ) from error
    parts = zip(tf.nest.flatten(bijector), tf.nest.flatten(state), strict=True)
    return tf.nest.pack_sequence_as(
        state, [otherwise(x) if b is None else fn(b, x) for b, x in parts]
    )
