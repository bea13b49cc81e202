"""Errors of reading a dataset, which name the file, the row, and damage that the format shows."""

from __future__ import annotations

import contextlib
import csv
import gzip
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import path
from tfp_sgmcmc.targets.base import message_of

_CHUNK = 2**24
_MOST_LISTED = 5


class StreamReadError(OSError):
    """Raised if the dataset of a `StreamedLogProb` cannot be read.

    Args:
      message: the file, the row and what was raised.
      samples: the draws before it, from `sample_chain`, in the structure of the state; else None.
    """

    def __init__(self, message: str, samples: Any = None):
        super().__init__(message)
        self.samples = samples


class ReadFaults:
    """Compares the files of a dataset with what they were at first.

    Args:
      files: paths; none if the files are unknown.

    Raises:
      StreamReadError: a file is missing.
      TypeError: `files` is no list of paths.
    """

    def __init__(self, files: Sequence[str | os.PathLike[str]]):
        if isinstance(files, str) or not isinstance(files, Sequence):
            raise TypeError(f"files must be a list of paths. Received: {files!r}.")
        paths = [path(f"files[{i}]", file) for i, file in enumerate(files)]
        self.stats = {file: _stat(file) for file in paths}
        missing = [file for file, stat in self.stats.items() if stat is None]
        if missing:
            listed = ", ".join(f"{file}, which is missing" for file in missing[:5])
            raise StreamReadError(f"files must exist. Received: {listed}.")
        pipes = [file for file in paths if not (file.is_file() or file.is_dir())]
        if pipes:  # which would be waited for
            raise StreamReadError(
                "files must be regular files, which can be read several times. Received: "
                f"{pipes[0]}, a pipe or a device. Restore the file."
            )

    def changed(self) -> str:
        """Returns a sentence that names the files that are missing or were written again, or ''."""
        found = []
        for file, before in self.stats.items():
            now = _stat(file)
            if now is None or before is None:
                found.append(f"{file} is missing")
            elif now[0] != before[0]:
                found.append(f"{file} has {now[0]} bytes, and had {before[0]} at first")
            elif now != before:
                damage = damage_of(file)
                found.append(f"{file} was written again{damage and f' and is damaged: {damage}'}")
        return f" {'; '.join(found)}." if found else ""

    def damaged(self) -> str:
        """Returns a sentence that names the first file with damage that its format shows, or ''."""
        for file in self.stats:
            damage = damage_of(file)
            if damage:
                return f" {file} is damaged: {damage}."
        return ""

    def listed(self) -> str:
        """Returns a sentence that names the files, with the size of the smallest, or ''."""
        if not self.stats:
            return ""
        names = ", ".join(map(str, [*self.stats][:_MOST_LISTED]))
        more = f" and {len(self.stats) - _MOST_LISTED} more" * (len(self.stats) > _MOST_LISTED)
        smallest = min(self.stats, key=lambda file: self.stats[file] or ())
        size = (_stat(smallest) or (0,))[0]
        return f" The files are {names}{more}. The smallest, {smallest}, has {size} bytes."

    def check(self, epoch: int) -> None:
        """Raises StreamReadError if a file is missing or was written again."""
        changed = self.changed()
        if changed:
            raise StreamReadError(
                f"The files must stay as they are during a run. Received, before epoch {epoch}:"
                f"{changed} {_REPAIR}"
            )

    @contextlib.contextmanager
    def named(self, where: Callable[[], str]) -> Generator[None]:
        """Raises StreamReadError, with the place, instead of errors of TensorFlow and of files."""
        try:
            yield
        except StreamReadError:
            raise
        except (tf.errors.OpError, OSError) as error:
            raise StreamReadError(
                f"The dataset cannot be read in {where()}."
                f"{self.changed() or self.damaged() or self.listed()} It raised: {_raised(error)} "
                "When that is mended, a run in a directory goes on by the same call."
            ) from error


_REPAIR = (
    "Restore the file, and make the StreamedLogProb again. A run in a directory then goes on by "
    "the same call."
)
_LINE = re.compile(r'File "([^"]*)", line (\d+), in')


def _raised(error: Exception) -> str:
    """Returns what was raised without TensorFlow's names of nodes, and where in a user's code."""
    if not isinstance(error, tf.errors.OpError):
        return f"{type(error).__name__}: {error}."
    said = message_of(error)
    first, *_ = said.splitlines() or [type(error).__name__]
    lines = [x for x in _LINE.findall(said) if "/lib/python" not in x[0]]
    where = f" ({lines[-1][0]}, line {lines[-1][1]})" if lines else ""
    return f"{first.rstrip('.')}{where}."


def _stat(file: Path) -> tuple[int, int] | None:
    """Returns the size of a file, and when it was written; None if there is none."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def damage_of(path: Path) -> str:
    """Returns what is wrong with a file, or '' if nothing is, or its format is not known.

    The formats are `.csv`, `.npy`, `.npz`, `.gz`, `.parquet`, `.tfrecord` and `.tfrecords`. `.npz`,
    `.gz` and records are read as a whole, because they have check sums.
    """
    if path.is_dir():  # such as a table of Parquet files
        return ""
    look = _FORMATS.get(path.suffix.lower(), _begins)
    try:
        return _begins(path) or look(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, csv.Error) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__


def _begins(path: Path) -> str:
    with path.open("rb") as file:
        return "" if file.read(1) else "it is empty"


def _csv(path: Path) -> str:
    """Compares the number of fields with that of the first line, and numbers with the second's."""
    with path.open(newline="", errors="replace") as file:
        rows = csv.reader(file)
        size, like = len(next(rows)), list[bool]()
        for row in rows:
            if size > 1 and row and len(row) != size:
                return f"line {rows.line_num} has {len(row)} fields, and its first line {size}"
            like = like or [*map(_is_number, row)]
            for x, was_number in zip(row, like, strict=False):
                if x and was_number and not _is_number(x):
                    return f"line {rows.line_num} has {x!r} where its second line has a number"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
    ".csv": _csv,
    ".npy": _npy,
    ".npz": _npz,
    ".gz": _gzip,
    ".parquet": _parquet,
    ".tfrecord": _records,
    ".tfrecords": _records,
}
