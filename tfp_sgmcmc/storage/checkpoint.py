"""The state of a run in one file, which is written whole or not at all."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tree

FORMAT_VERSION = 1


class Checkpoint(NamedTuple):
    """What a file holds.

    Attributes:
      path: of the file, for messages.
      header: the JSON values saved with the arrays.
      leaves: name -> array (or None), of all nests, in order; see `names_and_leaves`.
    """

    path: Path
    header: dict[str, Any]
    leaves: dict[str, Any]

    def restore(self, name: str, like: Any) -> Any:
        """Returns nest `name` as NumPy arrays in the structure of `like`.

        Args:
          name: key of the nest when it was saved.
          like: nest of arrays, tensors, variables or None.

        Raises:
          ValueError: other leaves, shapes or dtypes than those of `like`.
        """
        expected = {n: describe(x) for n, x in names_and_leaves({name: like}).items()}
        saved = {n: x for n, x in self.leaves.items() if n == name or n.startswith(f"{name}[")}
        check_same(
            f"The checkpoint {self.path}", {n: describe(x) for n, x in saved.items()}, expected
        )
        return tree.unflatten_as(like, [saved[n] for n in expected])


def save(path: Path, header: Mapping[str, Any], nests: Mapping[str, Any]) -> None:
    """Writes a checkpoint: into a new file, flushed to the disk, which then takes the name `path`.

    Whenever the process or the machine stops, the file is the old or the new one, whole.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "checkpoint.npz"
    ...     save(path, {"seed": 1}, {"state": {"w": np.ones(3, np.float32)}, "step": np.int64(5)})
    ...     loaded = load(path)
    >>> loaded.header["seed"], loaded.restore("state", {"w": np.zeros(3, np.float32)})
    (1, {'w': array([1., 1., 1.], dtype=float32)})

    Args:
      path: of the file; one that exists is replaced.
      header: values that JSON can hold.
      nests: name -> nest of arrays, tensors, or None.
    """
    arrays = {
        name: None if x is None else np.asarray(x) for name, x in names_and_leaves(nests).items()
    }
    for name, x in arrays.items():
        if x is not None and x.dtype.hasobject:
            raise TypeError(f"{name} holds Python objects; numbers are expected.")
    text = json.dumps(
        {
            "format": FORMAT_VERSION,
            "header": dict(header),
            "leaves": [[name, None if x is None else x.dtype.name] for name, x in arrays.items()],
        }
    )
    members: dict[str, Any] = {
        str(i): x.view(stored_dtype(x.dtype))
        for i, x in enumerate(arrays.values())
        if x is not None
    }
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            np.savez(file, contents=np.frombuffer(text.encode(), np.uint8), **members)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def load(path: Path) -> Checkpoint:
    """Reads a checkpoint; the checksum of each array is verified, and nothing is unpickled.

    Raises:
      ValueError: the file is damaged, or was written in another format.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            contents = json.loads(file["contents"].tobytes())
            if contents["format"] == FORMAT_VERSION:
                leaves = {
                    name: None if dtype is None else _from_bits(file[str(i)], dtype)
                    for i, (name, dtype) in enumerate(contents["leaves"])
                }
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, TypeError) as error:
        raise ValueError(
            f"The checkpoint {path} is damaged ({error}); the run cannot go on from it. The draws "
            "in samples.zarr beside it can be read as before."
        ) from error
    if contents["format"] != FORMAT_VERSION:
        raise ValueError(
            f"The checkpoint {path} has format {contents['format']}; format {FORMAT_VERSION} is "
            "expected: go on with the version of the library that wrote it."
        )
    return Checkpoint(path, contents["header"], leaves)


def check_same(what: str, saved: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises ValueError that names the first few entries of two mappings that differ."""
    missing = "nothing of this name"
    differences = [
        f"{name}: {saved.get(name, missing)}, but here {expected.get(name, missing)}"
        for name in [*expected, *(n for n in saved if n not in expected)]
        if name not in saved or name not in expected or saved[name] != expected[name]
    ]
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise ValueError(
            f"{what} is of another run, and this one cannot go on from it. It has "
            + "; ".join(differences[:3])
            + f"{more}."
        )


def names_and_leaves(nests: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by name: `state`, `state[0]`, `results['step']`; None is a leaf, `()` has none."""
    return {
        str(path[0]) + "".join(f"[{key!r}]" for key in path[1:]): leaf
        for path, leaf in tree.flatten_with_path(dict(nests))
    }


def describe(leaf: Any) -> str:
    """Dtype and shape of a leaf, such as `float32 [3, 2]`."""
    if leaf is None:
        return "None"
    if not hasattr(leaf, "dtype"):
        leaf = np.asarray(leaf)
    dtype = leaf.dtype if isinstance(leaf.dtype, str) else leaf.dtype.name
    return f"{dtype} {list(leaf.shape)}"


def sync_directory(path: Path) -> None:
    """Flushes the names in a directory to the disk."""
    if os.name != "posix":  # elsewhere directories cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """Of a dtype that NumPy's files do not know (`bfloat16`, ...), that of its bits."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype


def _from_bits(x: np.ndarray, dtype: str) -> np.ndarray:
    if x.dtype.name == dtype:
        return x
    import tensorflow as tf  # knows the names of those dtypes

    return x.view(tf.as_dtype(dtype).as_numpy_dtype)
