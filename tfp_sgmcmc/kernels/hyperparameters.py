"""Settings of samplers, such as step sizes: numbers or schedules, checked and evaluated."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal.checks import numbers, require
from tfp_sgmcmc.internal.nest import State, by_part, number_as_dtype

StepSize = Any  # number, tensor, callable step -> value, or a nest of these


def is_schedule(value: Any) -> bool:
    """Returns whether `value` is a callable from step to value."""
    return callable(value) and not tf.is_tensor(value)


def setting_at(value: Any, step: tf.Tensor) -> Any:
    """Returns a schedule's value at `step`, and any other setting unchanged."""
    return value(step) if is_schedule(value) else value


def check_positive(name: str, value: StepSize, zero_allowed: bool = False) -> None:
    """Raises as `numbers` does for a setting (a schedule at step 0) that is not positive."""
    expected = "a finite number of at least 0" if zero_allowed else "a positive finite number"
    for leaf in tf.nest.flatten(value):
        if is_schedule(leaf):
            numbers(f"{name} at step 0", _first_value(name, leaf), expected)
        else:
            numbers(name, leaf, expected)


def _first_value(name: str, schedule: Any) -> Any:
    try:
        return schedule(tf.zeros([], tf.int64))
    except Exception as error:  # whatever the user's function raises
        raise TypeError(
            f"{name} must be numbers or a schedule, a function of one argument, the step. "
            f"Received: {schedule!r}, which raised at step 0: {error}"
        ) from error


def value_at(value: StepSize, step: tf.Tensor, state: State, name: str = "step_size") -> State:
    """Evaluates numbers and schedules at `step`, one for each part; raises as `by_part` does."""
    return by_part(name, value, state, lambda v: setting_at(v, step))


def number_at(
    value: StepSize, step: tf.Tensor, state: State, chain_ndims: int, name: str
) -> tf.Tensor:
    """Evaluates a number or schedule at `step`: a scalar or `[chains...]`; raises otherwise."""
    part, value = tf.nest.flatten(state)[0], setting_at(value, step)
    expected = "a number, or an array or tensor of one number for each chain"
    require(name, value, not tf.nest.is_nested(value), expected)
    value, chains = number_as_dtype(name, value, part.dtype), part.shape[:chain_ndims]
    if value.shape.rank and not value.shape.is_compatible_with(chains):
        raise ValueError(
            f"{name} must be a scalar, or have one number for each chain, shape {chains}. "
            f"Received: shape {value.shape}."
        )
    return value
