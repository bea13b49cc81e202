"""Samplers broken on purpose, for negative controls."""

import inspect
import sys
import textwrap
from typing import Any


def mutant(kernel: type, *changes: tuple[str, str]) -> Any:
    """Returns `kernel` as its source would make it with each (old, new) replaced.

    Raises:
      ValueError: an `old` that does not occur just once.
    """
    source = textwrap.dedent(inspect.getsource(kernel))
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"{old!r} occurs {source.count(old)} times in {kernel.__name__}.")
        source = source.replace(old, new)
    namespace = dict(vars(sys.modules[kernel.__module__]))
    exec(source, namespace)
    return namespace[kernel.__name__]
