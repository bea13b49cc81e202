"""Looks for damage in a file, by its format."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

_CHUNK = 2**24


def damage_of(path: Path) -> str:
    """Returns what is wrong with a file, or '' if nothing is, or its format is not known.

    The formats are `.npy`, `.npz`, `.gz`, `.parquet`, `.tfrecord` and `.tfrecords`. `.npz`, `.gz`
    and records are read as a whole, because they have check sums.
    """
    look = _FORMATS.get(path.suffix.lower(), _begins)
    try:
        return _begins(path) or look(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__


def _begins(path: Path) -> str:
    if path.is_dir():
        return ""
    with path.open("rb") as file:
        return "" if file.read(1) else "it is empty"


def _npy(path: Path) -> str:
    with path.open("rb") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            return ""
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        lacking = file.tell() + dtype.itemsize * int(np.prod(shape)) - path.stat().st_size
    return f"{lacking} bytes are lacking at its end" if lacking > 0 and not dtype.hasobject else ""


def _npz(path: Path) -> str:
    with zipfile.ZipFile(path) as file:
        entry = file.testzip()
    return f"its entry {entry} has a wrong check sum" if entry else ""


def _gzip(path: Path) -> str:
    with gzip.open(path) as file:
        while file.read(_CHUNK):
            pass
    return ""


def _parquet(path: Path) -> str:
    with path.open("rb") as file:
        first = file.read(4)
        file.seek(max(0, path.stat().st_size - 4))
        return "" if first == file.read(4) == b"PAR1" else "it does not begin and end with PAR1"


def _records(path: Path) -> str:
    with path.open("rb") as file:
        first = file.read(2)
    if first == b"\x1f\x8b":
        return _gzip(path)
    count = 0
    try:
        for _ in tf.data.TFRecordDataset([str(path)]):
            count += 1
    except tf.errors.OpError as error:
        if count or first[:1] != b"\x78":  # else it may be compressed with zlib
            return f"record {count} cannot be read ({type(error).__name__})"
    return ""


_FORMATS: dict[str, Callable[[Path], str]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".gz": _gzip,
    ".parquet": _parquet,
    ".tfrecord": _records,
    ".tfrecords": _records,
}
