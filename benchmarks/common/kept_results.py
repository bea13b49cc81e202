"""Results of a long command in a folder, so that a command that was cut off goes on from there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")


def kept_result(
    folder: str,
    name: str,
    make: Callable[[], Found],
    read: Callable[[Any], Found] = lambda found: found,
) -> Found:
    """Returns the result `name` of `folder`, or that of `make()`, which is then written there.

    Results are written as JSON; `read` makes one of what JSON gives back, which has lists for
    tuples and arrays. Without a folder, an empty string, nothing is kept.
    """
    if not folder:
        return make()
    path = Path(folder, f"{name}.json")
    if path.exists():
        return read(json.loads(path.read_text(encoding="utf-8")))
    found = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, default=lambda x: x.tolist()), encoding="utf-8")
    return found
