"""Snapshots: what settings and functions hold now, to see later whether a program still fits.

A compiled program keeps the numbers that its functions read while they were traced. Another
evaluation of the same lambda expression gives an equal function, unless a variable that it reads
has another value since.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

_MOST_ENTRIES = 1_000  # of an array or a nest that is compared by its values
_DEPTH = 3  # of attributes of attributes


class _Array(NamedTuple):
    """The values of a small array, which may be written to later."""

    shape: tuple[int, ...]
    dtype: str
    values: bytes


class _Function(NamedTuple):
    """A function's code, and what it reads besides its arguments."""

    code: CodeType
    defaults: Any
    keyword_defaults: Any
    enclosed: Any
    read: Any


def snapshot(value: Any) -> Any:
    """Returns what `value` holds now, for `is_same`.

    It looks into nests, small arrays and functions. A function holds its defaults, the variables of
    enclosing functions and of its module that it reads, and their attributes that it reads.
    Anything else is the object itself, whatever it holds.

    Examples:
      >>> scale = [1.0]
      >>> before, same = (snapshot(lambda x: scale[0] * x) for _ in range(2))
      >>> scale[0] = 2.0
      >>> is_same(before, same), is_same(before, snapshot(lambda x: scale[0] * x))
      (True, False)
    """
    return _held(value, None, frozenset())


def is_same(a: Any, b: Any) -> bool:
    """Returns whether two snapshots hold the same objects, or equal numbers and names."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k]) for k in a)
    return isinstance(a, int | float | str | bytes | CodeType) and a == b


def _held(value: Any, module: Any, seen: frozenset[int]) -> Any:
    """Looks into `value`, read by a function of `module`, and not into the functions `seen`."""
    if isinstance(value, FunctionType):
        is_foreign = module is not None and value.__globals__ is not module
        return value if is_foreign or id(value) in seen else _function(value, seen)
    if isinstance(value, np.ndarray) and value.size <= _MOST_ENTRIES and value.dtype != object:
        return _Array(value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, tuple | list) and len(value) <= _MOST_ENTRIES:
        return type(value), *(_held(x, module, seen) for x in value)
    if type(value) is dict and len(value) <= _MOST_ENTRIES:
        return {k: _held(x, module, seen) for k, x in value.items()}
    return value


def _function(function: FunctionType, seen: frozenset[int]) -> _Function:
    module, seen = function.__globals__, seen | {id(function)}
    names = {*_names(function.__code__)}

    def look(value: Any, depth: int = _DEPTH) -> Any:
        """Looks into a variable and, if it is an object, into its attributes by these names."""
        held = _held(value, module, seen)
        if held is not value or depth == 0 or isinstance(value, FunctionType):
            return held
        attributes = {k: v for k, v in getattr(value, "__dict__", {}).items() if k in names}
        return value, {k: look(v, depth - 1) for k, v in attributes.items()}

    def enclosed() -> Iterator[Any]:
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # a variable without a value yet
                yield function
            else:
                yield look(value)

    return _Function(
        function.__code__,
        _held(function.__defaults__, module, seen),
        _held(function.__kwdefaults__, module, seen),
        tuple(enclosed()),
        {name: look(module[name]) for name in sorted(names) if name in module},
    )


def _names(code: CodeType) -> Iterator[str]:
    """Yields the names of variables and attributes that code reads, with those of inner code."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
