"""Deliberately broken samplers, for negative controls."""

import inspect
import sys
import textwrap
from typing import Any


def mutant(kernel: type, *changes: tuple[str, str]) -> Any:
    """Returns `kernel` compiled from its source with `old` replaced by `new` in each pair.

    Raises:
      ValueError: an `old` does not occur exactly once.
    """
    source = textwrap.dedent(inspect.getsource(kernel))
    for old, new in changes:
        if (count := source.count(old)) != 1:
            raise ValueError(f"{old!r} must occur once in {kernel.__name__}. Received: {count}.")
        source = source.replace(old, new)
    namespace = dict(vars(sys.modules[kernel.__module__]))
    exec(source, namespace)
    return namespace[kernel.__name__]
