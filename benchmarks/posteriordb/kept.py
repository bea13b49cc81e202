"""Results of a long command in a folder, so that a command that was cut off goes on from there."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")


def kept(folder: str, name: str, make: Callable[[], Found]) -> Found:
    """Returns the result `name` of `folder`, or that of `make()`, which is then written there.

    Without a folder, an empty string, nothing is kept.
    """
    if not folder:
        return make()
    path = Path(folder, f"{name}.pkl")
    if path.exists():
        return pickle.loads(path.read_bytes())
    found = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(found))
    return found
