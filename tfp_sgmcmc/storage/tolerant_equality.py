"""Records of numbers that devices compute with different rounding, for later comparison.

A record is a JSON value: a few numbers, and the differences that rounding may make in them. A long
vector is represented by its length and its projections on fixed directions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_KEY, _ALLOWED = "about", "within"
_NUM_DIRECTIONS = 2
_GOLDEN = (5**0.5 - 1) / 2


def record(
    values: Any, rtol: float = 1e-3, atol: float = 0.0, singly: bool = False
) -> dict[str, Any]:
    """Returns a record of the numbers of an array, or of a list of arrays.

    >>> x = np.linspace(0.0, 1.0, 1000)
    >>> are_same(record(x), record(x * (1 + 1e-5)))
    True
    >>> are_same(record(x), record(x[::-1])), are_same(record(x), record(1.01 * x))
    (False, False)

    Args:
      values: an array, or a list of arrays, which are joined.
      rtol: the difference that rounding may make, relative to the length of the vector. Products of
        matrices have an error of about 5e-4 on GPUs that round their factors.
      atol: an additional difference.
      singly: whether to keep each of the numbers, which then differ relative to themselves.
    """
    arrays = [np.asarray(a) for a in (values if isinstance(values, list | tuple) else [values])]
    # A complex number is two numbers.
    parts = [
        f(a) for a in arrays for f in ([np.real, np.imag] if a.dtype.kind == "c" else [np.ravel])
    ]
    x = np.concatenate([np.ravel(p).astype(np.float64) for p in parts] or [np.zeros(0)])
    if not np.isfinite(x).all():
        return {_KEY: None, _ALLOWED: None}
    if singly or x.size == 1:
        return {_KEY: _rounded(x), _ALLOWED: _rounded(rtol * np.abs(x) + atol)}
    length = np.linalg.norm(x)
    found = np.array([length, *(x @ d for d in _directions(x.size))])
    return {_KEY: _rounded(found), _ALLOWED: _rounded(np.full(found.size, rtol * length + atol))}


def shifted(x: np.ndarray) -> np.ndarray:
    """Returns an array moved by about a tenth of each number and of one, along a fixed direction.

    Functions that agree at a special place, such as zero, differ there.
    """
    direction = np.reshape(_directions(x.size)[0], x.shape)
    return x + (0.1 * (1.0 + np.abs(x)) * direction).astype(x.dtype)


def is_record(value: Any) -> bool:
    """Returns whether `record` made `value`."""
    if not isinstance(value, dict) or value.keys() != {_KEY, _ALLOWED}:
        return False
    about, allowed = value[_KEY], value[_ALLOWED]
    if about is None or allowed is None:
        return about is allowed
    lists = isinstance(about, list) and isinstance(allowed, list) and len(about) == len(allowed)
    return lists and all(isinstance(x, int | float) for x in [*about, *allowed])


def are_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Returns whether two records differ by no more than rounding."""
    if one[_KEY] is None or other[_KEY] is None or len(one[_KEY]) != len(other[_KEY]):
        return one[_KEY] == other[_KEY]
    allowed = np.maximum(one[_ALLOWED], other[_ALLOWED])
    return bool(np.all(np.abs(np.subtract(one[_KEY], other[_KEY])) <= allowed))


def words(value: dict[str, Any]) -> str:
    """Returns the numbers of a record for a message."""
    if value[_KEY] is None:
        return "NaN or infinite numbers"
    found = [f"{x:g}" for x in value[_KEY]]
    return found[0] if len(found) == 1 else f"numbers that give ({', '.join(found)})"


def _directions(size: int) -> list[np.ndarray]:
    """Returns vectors of numbers with mean 0 and variance 1 that look random.

    Entry i is made from the fractional part of i^k times the golden ratio.
    """
    number = np.arange(1, size + 1, dtype=np.float64)
    powers = (number**k for k in range(1, _NUM_DIRECTIONS + 1))
    return [math.sqrt(12.0) * (np.mod(p * _GOLDEN, 1.0) - 0.5) for p in powers]


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{x:.7g}") for x in values]
