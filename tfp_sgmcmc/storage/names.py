"""Names of arrays, from the keys of a nest."""

from __future__ import annotations

from typing import Any

import tree


def variable_names(nest: Any, root: str) -> list[str]:
    """Returns names that ArviZ and zarr allow for the leaves, in the order of `tf.nest.flatten`.

    >>> variable_names({"w": [1, 2], "b": {"x/y": 3}}, "state")
    ['b.x.y', 'w.0', 'w.1']
    >>> variable_names([1, 2], "state"), variable_names(1, "state")
    (['state.0', 'state.1'], ['state'])

    Raises:
      ValueError: two leaves have the same name.
    """
    names = []
    for path, _ in tree.flatten_with_path(nest):
        keys = [str(key).replace("/", ".") for key in path]
        is_named = path and isinstance(path[0], str)
        names.append(".".join(keys if is_named else [root, *keys]))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Two arrays are named {twice[0]!r}. Give the parts other keys.")
    return names
