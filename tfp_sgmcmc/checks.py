"""Checks of arguments: what was expected, what was received, and for which argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Returns `value` if it is an integer from `least` to `most`.

    Examples:
      >>> integer("num_results", 3, least=1)
      3

    Args:
      name: the argument's name, for messages.
      value: the argument.
      least: the smallest integer allowed.
      most: the largest integer allowed. None sets no limit.

    Raises:
      TypeError: `value` is not an integer.
      ValueError: `value` is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer. Received: {value!r}.")
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"in {least} .. {most}"
        raise ValueError(f"{name} must be {bounds}. Received: {value}.")
    return int(value)


def count_of_examples(name: str, value: Any, num_examples: int) -> int:
    """Returns `value` if it is an integer in 1 .. N, the number of examples in the data.

    Raises:
      TypeError: `value` is not an integer.
      ValueError: `value` is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(
            f"{name} must be an integer in 1 .. N = {num_examples}. Received: {value!r}."
        )
    if not 1 <= value <= num_examples:
        raise ValueError(
            f"{name} must be in 1 .. N = {num_examples}, the number of examples in the data. "
            f"Received: {value}."
        )
    return int(value)


def numbers(name: str, value: Any, expected: str = "a finite number") -> None:
    """Raises unless all numbers of a nest are as `expected`.

    Args:
      name: the argument's name, for messages.
      value: numbers and arrays. Tensors whose values are known only when the program runs pass.
      expected: `"a finite number"`, `"a positive finite number"` or
        `"a finite number of at least 0"`.

    Raises:
      TypeError: an entry is not a number.
      ValueError: a number is not as expected.
    """
    for leaf in tf.nest.flatten(value):
        is_numpy = isinstance(leaf, np.ndarray | np.generic) or not hasattr(leaf, "dtype")
        entries = np.asarray(leaf) if is_numpy else tf.get_static_value(tf.convert_to_tensor(leaf))
        if entries is None:
            continue
        if not np.issubdtype(entries.dtype, np.number):
            raise TypeError(f"{name} must be a number. Received: {leaf!r}.")
        is_wrong = ~np.isfinite(entries)
        if expected != "a finite number":
            is_wrong |= entries <= 0 if expected == "a positive finite number" else entries < 0
        require(name, entries, not np.any(is_wrong), expected)


def require(name: str, value: Any, holds: bool | np.bool_, expected: str) -> None:
    """Raises ValueError for `value` unless `holds`, a condition that is false for NaN."""
    if not holds:
        raise ValueError(f"{name} must be {expected}. Received: {value}.")


def one_of(name: str, value: Any, options: Sequence[str]) -> str:
    """Returns `value` if it is one of the strings `options`.

    Raises:
      ValueError: `value` is anything else.
    """
    if not isinstance(value, str) or value not in options:
        expected = " or ".join(map(repr, options)) if len(options) == 2 else f"one of {[*options]}"
        raise ValueError(f"{name} must be {expected}. Received: {value!r}.")
    return value


def function(name: str, value: Any, signature: str = "") -> Any:
    """Returns `value` if it can be called.

    Args:
      name: the argument's name, for messages.
      value: the argument.
      signature: what the function takes and returns, such as "target -> kernel".

    Raises:
      TypeError: `value` is not callable.
    """
    if not callable(value):
        expected = f"a callable, {signature}" if signature else "a callable"
        raise TypeError(f"{name} must be {expected}. Received: a {type(value).__name__}.")
    return value
