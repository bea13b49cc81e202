"""The file format without pickle: an npz of named arrays with a header in JSON."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import zipfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_NUMPY_NAMES = {np.dtype(code).name for code in "?bhilqBHILQefdFD"}
_PIECE_BYTES = 2**26  # of an array, in memory twice while it is written or read
_MOST_HEADER_BYTES = 2**26


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

    Raises:
      OSError: the disk cannot be written; the message names the file.
    """
    path = Path(path)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    try:
        with new.open("xb") as opened:  # "x" does not follow a symbolic link
            with zipfile.ZipFile(opened, "w") as file:
                with file.open("header.json", "w") as entry:
                    entry.write(json.dumps(header).encode())
                for name, values in arrays.items():
                    with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        _write_array(entry, values)
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(path)
    except BaseException as error:
        new.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # as of a full disk
            error.filename = os.fspath(path)
        raise
    sync(path.parent)


@contextlib.contextmanager
def reading(
    path: str | os.PathLike[str], writer: str, advice: str = ""
) -> Generator[tuple[dict[str, Any], Callable[[str, str], np.ndarray]]]:
    """Opens a file; gives its header and a function that reads an array by its name and dtype.

    An error within the context, such as a missing key of the header, counts as damage. The message
    names the `writer` of such files and gives `advice`.

    Raises:
      FileNotFoundError: `path` does not exist.
      ValueError: the file is damaged or was not written by `writer`.
    """
    with open_regular(path) as opened:
        try:
            with zipfile.ZipFile(opened) as file:
                _check_sizes(file)
                if "contents.npy" in file.namelist():  # a checkpoint of version 0.1.0
                    text = _read_array(file, "contents", "uint8").tobytes()
                else:
                    text = file.read("header.json")
                header = json.loads(text)
                if not isinstance(header, dict):
                    raise ValueError("its header is not a JSON object")
                yield header, lambda name, dtype: _read_array(file, name, dtype)
        # Damage has many kinds, such as an offset outside of the file or nested brackets without
        # end.
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise ValueError(
                f"{os.fspath(path)} is damaged, or was not written by {writer}: {reason}.{advice}"
            ) from error


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading, and does not wait if it is a pipe.

    Raises:
      FileNotFoundError: `path` does not exist.
      ValueError: `path` is not a regular file.
    """
    path = os.fspath(path)  # an integer would be a file that is open already
    try:
        mode = os.stat(path).st_mode  # one look, as others may remove it
    except (OSError, ValueError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path!r} must be a file. Received: a folder or a device.")
    return open(path, "rb")


def _check_sizes(file: zipfile.ZipFile) -> None:
    """Raises unless the entries are stored as `write` stores them, before anything is unpacked.

    They are not compressed, so that none is larger than the file.
    """
    entries = file.infolist()
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"{entry.filename} is compressed")
        if entry.filename == "header.json" and entry.file_size > _MOST_HEADER_BYTES:
            raise ValueError(f"its header has {entry.file_size} bytes")
        if entry.flag_bits & 0x1:
            raise ValueError(f"{entry.filename} is encrypted")
    size = os.fstat(file.fp.fileno()).st_size if file.fp else 0
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError(f"its entries have more bytes than its {size}")
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError("two entries have the same name")


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
    except OSError as error:  # some file systems flush no directories
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def _write_array(entry: Any, values: Any) -> None:
    """Writes an array in the format of `np.save`, in pieces."""
    dtype = _stored_dtype(np.dtype(values.dtype))
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(entry, {**description, "shape": tuple(values.shape)})
    rows = values if len(values.shape) else np.asarray(values)[np.newaxis]
    size = max(1, _PIECE_BYTES // max(1, math.prod(rows.shape[1:]) * dtype.itemsize))
    for start in range(0, rows.shape[0], size):
        entry.write(np.ascontiguousarray(rows[start : start + size]).view(dtype).tobytes())


def _read_array(file: zipfile.ZipFile, name: str, dtype: str) -> np.ndarray:
    expected = numpy_dtype(dtype)
    size = file.getinfo(f"{name}.npy").file_size
    with file.open(f"{name}.npy") as opened:
        entry: Any = opened
        version = np.lib.format.read_magic(entry)
        if version != (1, 0):
            raise ValueError(f"{name}.npy has version {version}")
        shape, fortran_order, found = np.lib.format.read_array_header_1_0(entry)
        num_bytes = math.prod(shape) * found.itemsize
        if found.hasobject:
            raise ValueError(f"{name}.npy has Python objects, never read with allow_pickle=False")
        if (found, fortran_order) != (_stored_dtype(expected), False):
            raise ValueError(f"{name}.npy is not the array of {dtype} that the header describes")
        if any(n < 0 for n in shape) or num_bytes != size - entry.tell():
            raise ValueError(f"{name}.npy has {size} bytes, which is not that of shape {shape}")
        values = np.empty(shape, found)
        flat = values.reshape(-1).view(np.uint8)
        pieces = [flat[i : i + _PIECE_BYTES] for i in range(0, num_bytes, _PIECE_BYTES)]
        # Reading to the end verifies the checksum.
        if any(entry.readinto(piece) != piece.size for piece in pieces) or entry.read(1):
            raise ValueError(f"{name}.npy is cut off")
    return values.view(expected)


def _stored_dtype(dtype: np.dtype) -> np.dtype:
    """Returns the dtype of the bits if NumPy's files cannot hold `dtype`, such as bfloat16."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype
