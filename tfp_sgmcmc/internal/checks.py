"""Argument checks, whose messages name the argument, what it must be, and what it was."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_LARGEST = 2**63 - 1  # that a program's integers hold


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Returns `value` if it is an integer from `least` to `most` (None: 2^63 - 1).

    Raises TypeError for any other type, and ValueError for an integer out of range.

    Examples:
      >>> integer("num_results", 3, least=1)
      3
    """
    bounds = f"in {least} .. {_LARGEST if most is None else most}"
    if most is None and not (isinstance(value, int) and value > _LARGEST):
        bounds = f"at least {least}"
    return _integer(name, value, least, _LARGEST if most is None else most, "an integer", bounds)


def optional(check: Callable[..., Any], name: str, value: Any, *bounds: Any) -> Any:
    """Returns None for None, and what `check(name, value, *bounds)` returns for any other value.

    Examples:
      >>> optional(integer, "num_chains", 4, 1), optional(integer, "num_chains", None, 1)
      (4, None)
    """
    return None if value is None else check(name, value, *bounds)


def count_of_examples(name: str, value: Any, num_examples: int) -> int:
    """Returns `value` if it is an integer in 1 .. N, the number of examples in the data."""
    bounds = f"in 1 .. N = {num_examples}"
    expected = f"{bounds}, the number of examples in the data"
    return _integer(name, value, 1, num_examples, f"an integer {bounds}", expected)


def _integer(name: str, value: Any, least: int, most: int, kind: str, bounds: str) -> int:
    is_integer = isinstance(value, int | np.integer)  # NumPy counts spans of time among them
    if not is_integer or isinstance(value, bool | np.timedelta64):
        raise TypeError(f"{name} must be {kind}. Received: {value!r}.")
    require(name, value, least <= value <= most, bounds)
    return int(value)


def numbers(name: str, value: Any, expected: str = "a finite number") -> None:
    """Checks that the numbers of a nest are as `expected`, where they are known before a run.

    `expected` is one of the messages `"a finite number"`, `"a positive finite number"` and
    `"a finite number of at least 0"`. Raises TypeError for an entry that is not a number, and
    ValueError for a number that is not as expected.
    """
    import tensorflow as tf  # here, as reading a run on disk needs the other checks without it

    leaves = tf.nest.flatten(value)
    if not leaves:
        raise TypeError(f"{name} must be a number. Received: {value!r}.")
    for leaf in leaves:
        refuse_masked(name, leaf)
        try:
            is_numpy = isinstance(leaf, np.ndarray | np.generic) or not hasattr(leaf, "dtype")
            known = leaf if is_numpy else tf.get_static_value(tf.convert_to_tensor(leaf))
            if known is None and leaf is not None:
                continue
            entries = np.asarray(known)
            if entries.dtype == tf.bfloat16.as_numpy_dtype:
                entries = entries.astype(np.float32)
        except (TypeError, ValueError):  # ragged, sparse or symbolic
            entries = np.asarray(None)
        if entries.dtype.kind not in "iuf":
            raise TypeError(f"{name} must be a number. Received: {leaf!r}.")
        is_wrong = ~np.isfinite(entries)
        if expected != "a finite number":
            is_wrong |= entries <= 0 if expected == "a positive finite number" else entries < 0
        require(name, entries, not np.any(is_wrong), expected)


def integers(
    name: str, value: Any, rank: int | None = None, below: int | None = None, least: int = 0
) -> Any:
    """Returns integers, of a `rank` if given, as a tensor.

    With `below`, eager ones must be in `least` .. `below` - 1.
    """
    import tensorflow as tf  # as in `numbers`

    try:
        found = tf.convert_to_tensor(value, dtype_hint=tf.int64)
    except (TypeError, ValueError):
        found = tf.constant("")
    if not found.dtype.is_integer:
        raise TypeError(f"{name} must hold integers. Received: {value!r}.")
    holds = rank is None or found.shape.rank in (rank, None)
    require(name, f"shape {found.shape}", holds, f"of rank {rank}")
    if below is not None and tf.executing_eagerly():
        known = found.numpy()
        holds = np.all((known >= least) & (known < below))
        require(name, known, holds, f"in {least} .. {below - 1}")
    return found


def shape_and_dtype(shape: Any, dtype: Any) -> Any:
    """Returns the dtype of floating numbers to draw; raises for others and for wrong shapes."""
    import tensorflow as tf  # as in `numbers`

    shape_if_known("shape", shape)
    if not (found := tf.as_dtype(dtype)).is_floating:
        raise TypeError(f"dtype must be a floating dtype. Received: {dtype!r}.")
    return found


def shape_if_known(name: str, value: Any) -> None:
    """Raises ValueError for what is known not to be a list of integers of at least 0."""
    import tensorflow as tf  # as in `numbers`

    found = as_array(tf.get_static_value(value) if tf.is_tensor(value) else value)
    is_unknown = found.dtype.kind == "O" and value is not None  # symbolic
    is_right = found.ndim == 1 and (not found.size or found.dtype.kind in "iu")
    is_right = is_right and bool(np.all(found >= 0))
    require(name, repr(value), is_unknown or is_right, "a list of integers of at least 0")


def require(name: str, value: Any, holds: bool | np.bool_, expected: str) -> None:
    """Raises ValueError for `value` unless `holds`, a condition that is false for NaN."""
    if not holds:
        raise ValueError(f"{name} must be {expected}. Received: {value}.")


def number(
    name: str,
    value: Any,
    expected: str = "a finite number",
    holds: Callable[[float], bool] = lambda x: True,
) -> float:
    """Returns `value`, one real number, as a float if it is finite and `holds` is true of it.

    Raises TypeError for anything but one number, and ValueError for another number.

    Examples:
      >>> number("decay", 0.5, "in (0, 1)", lambda x: 0 < x < 1)
      0.5
    """
    found = as_array(value)
    if found.shape != () or found.dtype.kind not in "iuf":
        joined = ", " if expected.startswith("a ") else " "
        kind = expected if "number" in expected else f"a number{joined}{expected}"
        raise TypeError(f"{name} must be {kind}. Received: {value!r}.")
    require(name, value, bool(np.isfinite(found)) and holds(float(found)), expected)
    return float(found)


def positive(name: str, value: Any) -> float:
    """Returns `value` as a float if it is positive and finite; raises as `number` otherwise."""
    return number(name, value, "a positive finite number", lambda x: x > 0)


def as_array(value: Any) -> np.ndarray:
    """Returns `value` as a NumPy array, or one that holds None where NumPy cannot make it."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, NotImplementedError):  # ragged, or a symbolic tensor
        return np.asarray(None)


def refuse_masked(name: str, value: Any) -> None:
    """Raises TypeError for an array with masked entries, which others would take as numbers."""
    if np.ma.is_masked(value):
        raise TypeError(
            f"{name} must have no masked entries, whose mask would be lost. Received: "
            f"{np.ma.count_masked(value)} of {np.size(value)}. Give .filled(value), or leave them "
            "out."
        )


def array(name: str, value: Any, least_ndim: int = 1, finite: bool = True) -> np.ndarray:
    """Returns `value` as a NumPy array if it holds real numbers; raises otherwise.

    Raises TypeError for anything but an array of numbers, and ValueError for an array that is
    empty, has fewer than `least_ndim` axes, or, if `finite`, has NaN or infinite entries.
    """
    refuse_masked(name, value)
    found = as_array(value)
    if found.dtype.kind not in "biuf" and found.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be an array of numbers. Received: {value!r}.")
    if found.ndim < least_ndim or not found.size:
        raise ValueError(
            f"{name} must be an array with at least {least_ndim} axes and an entry. Received: "
            f"shape {found.shape}."
        )
    holds = not finite or bool(np.all(np.isfinite(found)))
    require(name, "NaN or infinite entries", holds, "finite")
    return found


def vector(name: str, value: Any, expected: str, holds: Callable[[np.ndarray], Any]) -> np.ndarray:
    """Returns `value` as a vector of numbers whose entries are as `expected`; raises otherwise.

    `holds` returns whether they are, for all or each of them. Raises as `array`, and ValueError.
    """
    found = array(name, value)
    require(name, value, found.ndim == 1 and bool(np.all(holds(found))), expected)
    return found


def path(name: str, value: Any) -> Path:
    """Returns `value` as a path, with `~` for the user's home.

    Raises TypeError, or ValueError if no file can have that name.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a string or a path. Received: {value!r}.")
    text = os.fspath(value)
    require(
        name,
        repr(value),
        bool(text) and "\0" not in text,
        "a path without null bytes that is not empty",
    )
    return Path(os.path.expanduser(text))


def boolean(name: str, value: Any) -> bool:
    """Returns `value` if it is True or False; raises TypeError otherwise."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False. Received: {value!r}.")
    return bool(value)


def one_of(name: str, value: Any, options: Sequence[str]) -> str:
    """Returns `value` if it is one of the strings `options`; raises ValueError otherwise."""
    if not isinstance(value, str) or value not in options:
        expected = " or ".join(map(repr, options)) if len(options) == 2 else f"one of {[*options]}"
        raise ValueError(f"{name} must be {expected}. Received: {value!r}.")
    return value


def eager(name: str) -> None:
    """Raises RuntimeError inside a `tf.function` or a `tf.Graph`."""
    import tensorflow as tf  # as in `numbers`

    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{name} must be called eagerly, because it compiles its own programs and decides by "
            "the numbers that they return. Received: a call inside a tf.function or a tf.Graph. "
            "Call it outside. A kernel's one_step and tfp.mcmc.sample_chain can be called inside."
        )


def nonnegative_weights(name: str, value: np.ndarray, some: bool = True) -> None:
    """Raises ValueError unless weights are finite, not negative, and, if `some`, not all zero."""
    is_valid = np.isfinite(value).all() and (value >= 0).all() and (value.any() or not some)
    if value.size and not is_valid:
        positive = " and not all zero" if some else ""
        raise ValueError(
            f"{name} must have finite weights that are not negative{positive}. Received: weights "
            f"from {value.min():.3g} to {value.max():.3g}."
        )


def a_type(value: Any) -> str:
    """Returns the name of a value's type with its article.

    Examples:
      >>> a_type(3), a_type("SGLD")
      ('an int', 'a str')
    """
    name = type(value).__name__
    is_vowel = name[0] in "aeioAEIO" or name.startswith(("ndarray", "SG", "Un"))  # as it is spoken
    return f"{'an' if is_vowel else 'a'} {name}"


def function(name: str, value: Any, signature: str = "") -> Any:
    """Returns `value` if it can be called; raises TypeError otherwise.

    `signature` is shown in the message, such as "target -> kernel".
    """
    if not callable(value):
        expected = f"a callable, {signature}" if signature else "a callable"
        raise TypeError(f"{name} must be {expected}. Received: {a_type(value)}.")
    return value


def unary(name: str, value: Any, signature: str) -> Any:
    """Returns `value` if it can be called with one argument; raises TypeError otherwise.

    `signature` is shown in the message, such as "kernel results -> step size".
    """
    return accepts(name, function(name, value, signature), None)


def accepts(name: str, value: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Returns the callable `value` if it can be called with these arguments; else raises TypeError.

    Checks only the signature, and calls nothing.

    Examples:
      >>> accepts("log_prior_fn", lambda theta: -theta**2, 0.5)(0.5)
      -0.25
    """
    function(name, value)
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # a builtin without a signature
        return value
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        number = f"{len(args)} argument{'' if len(args) == 1 else 's'}"
        given = [number] if args or not kwargs else []
        given += [", ".join(f"{key}=..." for key in kwargs)] if kwargs else []
        raise TypeError(
            f"{name} must be callable with {' and '.join(given)}. Received: a callable with the "
            f"signature {signature} ({error})."
        ) from error
    return value
