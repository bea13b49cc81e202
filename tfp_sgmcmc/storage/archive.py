"""The file format without pickle: an npz of named arrays with a header in JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
import zipfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NUMPY_NAMES = {np.dtype(code).name for code in "?bhilqBHILQefdFD"}
_PIECE_BYTES = 2**26  # of an array, in memory at once while it is written


def write(path: str | os.PathLike[str], header: dict[str, Any], arrays: Mapping[str, Any]) -> None:
    """Writes a new file, flushes it to the disk and then gives it the name `path`.

    So the file at `path` is complete, the old or the new one, even if the machine stops.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/a.npz", {"seed": 1}, {"w": np.ones(3, np.float32)})
    ...     with reading(f"{folder}/a.npz", writer="write") as (header, array):
    ...         header, array("w", "float32")
    ({'seed': 1}, array([1., 1., 1.], dtype=float32))

    Args:
      path: the file; an existing one is replaced.
      header: values that JSON can hold, among them the names and dtypes of the arrays.
      arrays: name -> array, or an object that is sliced like one and has `shape` and `dtype`.
    """
    path = Path(path)
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as opened:
            with zipfile.ZipFile(opened, "w") as file:
                with file.open("header.json", "w") as entry:
                    entry.write(json.dumps(header).encode())
                for name, values in arrays.items():
                    with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        _write_array(entry, values)
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextlib.contextmanager
def reading(
    path: str | os.PathLike[str], writer: str, advice: str = ""
) -> Generator[tuple[dict[str, Any], Callable[[str, str], np.ndarray]]]:
    """Opens a file; gives its header and a function that reads an array by its name and dtype.

    An error within the context, such as a missing key of the header, counts as damage. Its message
    says who the `writer` of such files is, and gives `advice`.

    Raises:
      FileNotFoundError: `path` does not exist.
      ValueError: the file is damaged or was not written by `writer`.
    """
    with open(path, "rb") as opened:
        try:
            with zipfile.ZipFile(opened) as file:
                if "contents.npy" in file.namelist():  # a checkpoint of version 0.1.0
                    text = _read_array(file, "contents", "uint8").tobytes()
                else:
                    text = file.read("header.json")
                yield json.loads(text), lambda name, dtype: _read_array(file, name, dtype)
        except Exception as error:  # damage has many kinds, such as an offset outside of the file
            raise ValueError(
                f"{os.fspath(path)} is damaged, or was not written by {writer}: {error}.{advice}"
            ) from error


def numpy_dtype(name: str) -> np.dtype:
    """Returns the dtype of a name, including names that NumPy does not know, such as bfloat16."""
    if name in _NUMPY_NAMES:
        return np.dtype(name)
    import tensorflow as tf  # here, as most runs can be read without it

    return np.dtype(tf.as_dtype(name).as_numpy_dtype)


def sync(path: Path) -> None:
    """Flushes a file, or the names in a directory, to the disk."""
    if os.name != "posix" and path.is_dir():  # other systems cannot open directories
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_array(entry: Any, values: Any) -> None:
    """Writes what `np.save` writes, in pieces."""
    dtype = _stored_dtype(np.dtype(values.dtype))
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(entry, {**description, "shape": tuple(values.shape)})
    rows = values if len(values.shape) else np.asarray(values)[np.newaxis]
    size = max(1, _PIECE_BYTES // max(1, math.prod(rows.shape[1:]) * dtype.itemsize))
    for start in range(0, rows.shape[0], size):
        entry.write(np.ascontiguousarray(rows[start : start + size]).view(dtype).tobytes())


def _read_array(file: zipfile.ZipFile, name: str, dtype: str) -> np.ndarray:
    expected = numpy_dtype(dtype)
    with file.open(f"{name}.npy") as entry:
        values = np.lib.format.read_array(entry, allow_pickle=False)
        # Reading to the end verifies the checksum.
        if entry.read(1) or values.dtype != _stored_dtype(expected):
            raise ValueError(f"{name}.npy is not the array of {dtype} that the header describes")
    return values.view(expected)


def _stored_dtype(dtype: np.dtype) -> np.dtype:
    """Returns the dtype of the bits if NumPy's files cannot hold `dtype`, such as bfloat16."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype
