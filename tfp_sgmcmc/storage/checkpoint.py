"""The state of a run in one file: nests of arrays on top of `npz`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tree

from tfp_sgmcmc.storage import npz, tolerant_equality

FORMAT_VERSION = 1


class Checkpoint(NamedTuple):
    """The contents of a checkpoint file.

    Attributes:
      path: the file, for messages.
      header: the JSON values saved with the arrays.
      leaves: name -> array (or None), for all nests, in order; see `names_and_leaves`.
    """

    path: Path
    header: dict[str, Any]
    leaves: dict[str, Any]

    def restore(self, name: str, like: Any) -> Any:
        """Returns the nest that was saved as `name`, as NumPy arrays in the structure of `like`.

        `like` is a nest of arrays, tensors, variables or None.

        Raises:
          ValueError: the leaves saved differ from those of `like` in name, shape or dtype.
        """
        expected = {n: describe(x) for n, x in names_and_leaves({name: like}).items()}
        saved = {n: x for n, x in self.leaves.items() if n == name or n.startswith(f"{name}[")}
        described = {n: describe(x) for n, x in saved.items()}
        check_same(f"The checkpoint {self.path}", described, expected)
        return tree.unflatten_as(like, [saved[n] for n in expected])


def save(path: Path, header: Mapping[str, Any], nests: Mapping[str, Any]) -> None:
    """Writes a checkpoint, whole or not at all; see `npz.write` and `Checkpoint.restore`.

    JSON must be able to hold the header. The nests are of arrays, tensors, or None, by name.

    Raises:
      TypeError: a leaf holds Python objects.
    """
    named = names_and_leaves(nests).items()
    leaves = {name: None if x is None else np.asarray(x) for name, x in named}
    for name, x in leaves.items():
        if x is not None and x.dtype.hasobject:
            raise TypeError(f"{name} must hold numbers. Received: Python objects.")
    contents = {
        "format": FORMAT_VERSION,
        "header": dict(header),
        "leaves": [[name, None if x is None else x.dtype.name] for name, x in leaves.items()],
    }
    arrays = {str(i): x for i, x in enumerate(leaves.values()) if x is not None}
    npz.write(path, contents, arrays)


def load(path: Path, begin: tuple[str, ...] = ("",)) -> Checkpoint:
    """Reads the leaves of a checkpoint whose names `begin` so, and verifies their checksums.

    Nothing is unpickled.

    Raises:
      ValueError: the file is damaged, or was written in another format.
    """
    advice = " The run cannot go on from it. The draws in samples.zarr beside it can still be read."
    with npz.reading(path, "a run", advice) as (contents, array):
        if (version := contents["format"]) == FORMAT_VERSION:
            leaves = {
                str(name): None if dtype is None else array(str(i), dtype)
                for i, (name, dtype) in enumerate(contents["leaves"])
                if str(name).startswith(begin)
            }
            return Checkpoint(path, contents["header"], leaves)
    raise ValueError(
        f"The checkpoint {path} must have format {FORMAT_VERSION}. Received: format {version}. Go "
        "on with the version of the library that wrote it."
    )


def is_of_run(path: Path) -> bool:
    """Returns whether a file is a checkpoint of a run, by its header alone."""
    try:
        with npz.reading(path, "a run") as (contents, _):
            return "fingerprint" in contents["header"] and "leaves" in contents
    except (FileNotFoundError, ValueError):
        return False


def check_same(what: str, saved: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises a ValueError that names the first three entries in which two mappings differ."""
    found = differences(saved, expected)
    if found:
        raise ValueError(
            f"{what} belongs to another run, and this run cannot go on from it. It has {found}. "
            "Give the arguments and data of that run, or another directory to begin anew."
        )


def differences(saved: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Returns the first three entries in which two mappings differ, in words; "" if none do.

    Entries made by `tolerant_equality.record` may differ by rounding.
    """
    found = [
        f"{name}: {_in_words(saved, name)}, but here {_in_words(expected, name)}"
        for name in [*expected, *(n for n in saved if n not in expected)]
        if name not in saved or name not in expected or not agree(saved[name], expected[name])
    ]
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{'; '.join(found[:3])}{more}"


def agree(one: Any, other: Any) -> bool:
    """Returns whether two described values are the same, records within their tolerance."""
    if tolerant_equality.is_record(one) and tolerant_equality.is_record(other):
        return tolerant_equality.are_same(one, other)
    return one == other


def _in_words(values: Mapping[str, Any], name: str) -> Any:
    value = values.get(name, "nothing of this name")
    return tolerant_equality.words(value) if tolerant_equality.is_record(value) else value


def names_and_leaves(nests: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the leaves by name, such as `state` or `results['step']`; None is a leaf."""
    return {
        str(path[0]) + "".join(f"[{key!r}]" for key in path[1:]): leaf
        for path, leaf in tree.flatten_with_path(dict(nests))
    }


def describe(leaf: Any) -> str:
    """Returns dtype and shape of a leaf, such as `float32 [3, 2]`."""
    if leaf is None:
        return "None"
    leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    dtype = leaf.dtype if isinstance(leaf.dtype, str) else leaf.dtype.name
    return f"{dtype} {list(leaf.shape)}"
