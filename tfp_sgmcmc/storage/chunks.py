"""The files of a zarr array: their names, sizes and checksums."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

CHECKSUM_BYTES = 4


def file_name(array: Any, axis: int, number: int) -> str:
    """Returns the name of a chunk of an array whose other axes are not divided."""
    at = [0] * array.ndim
    at[axis] = number
    return ".".join(["c", *map(str, at)])


def file_bytes(array: Any) -> int:
    """Returns the size of each of an array's chunks on disk."""
    return math.prod(array.chunks) * array.dtype.itemsize + CHECKSUM_BYTES


def checksum(chunk: Path) -> int:
    """Returns the CRC32C at the end of a chunk, which is compared with the rest when it is read."""
    with chunk.open("rb") as file:
        file.seek(-CHECKSUM_BYTES, os.SEEK_END)
        return int.from_bytes(file.read(), "little")


def check(chunk: Path, draws: range, num_bytes: int, expected: int | None) -> None:
    """Raises ValueError unless a chunk has its size and, if that is known, its checksum."""
    found = chunk.stat().st_size if chunk.is_file() else 0
    said = ""
    if found != num_bytes:
        said = f"must have {num_bytes} bytes. Received: {found}"
    elif expected is not None and (found := checksum(chunk)) != expected:
        said = f"must have the checksum {expected:08x}. Received: {found:08x}"
    if said:
        raise ValueError(
            f"{chunk} is damaged: it {said} (draws {draws[0]} .. {draws[-1]}). Restore it from a "
            "copy, or start in another directory."
        )


def refuse_others(path: Path) -> None:
    """Raises ValueError if something below `path` is neither a folder nor a regular file.

    Nothing is written or removed through symbolic links, and no pipe is waited for.
    """
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            found = Path(folder, name)
            if found.is_symlink():
                raise ValueError(
                    f"{found} must not be a symbolic link, because a run writes and removes files "
                    "there."
                )
            if not (found.is_file() or found.is_dir()):
                raise ValueError(f"{found} must be a regular file. Received: a pipe or a device.")
