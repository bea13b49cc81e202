"""Draws on disk, as an array that reads only what is indexed, and the files of its chunks."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CHECKSUM_BYTES = 4
RUN_ID = "run_id"  # attribute of the store


class Variable(NamedTuple):
    """Shape and dtype of one draw of an array.

    Attributes:
      shape: `[chains..., event...]`.
      dtype: NumPy's name of the dtype.
      chain_ndims: number of leading axes of `shape` that count chains; None if chains share draws.
    """

    shape: tuple[int, ...]
    dtype: str
    chain_ndims: int | None = 0

    @property
    def chain_shape(self) -> tuple[int, ...] | None:
        return None if self.chain_ndims is None else self.shape[: self.chain_ndims]

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.shape[self.chain_ndims or 0 :]

    @property
    def num_chains(self) -> int:
        """The number of chains on disk; 0 if chains share draws."""
        return 0 if self.chain_ndims is None else math.prod(self.shape[: self.chain_ndims])

    @property
    def draw_axis(self) -> int:
        """The axis of draws on disk."""
        return 0 if self.chain_ndims is None else 1

    @property
    def stored_dtype(self) -> np.dtype:
        """The dtype on disk: `float32` for dtypes that zarr does not know, such as `bfloat16`."""
        is_known = self.dtype in np.sctypeDict and np.dtype(self.dtype).kind != "V"
        return np.dtype(self.dtype if is_known else np.float32)

    @property
    def draw_bytes(self) -> int:
        """The bytes of a draw on disk."""
        return self.stored_dtype.itemsize * math.prod(self.shape)

    def dimensions(self, name: str) -> tuple[str, ...]:
        """Returns the names that xarray shows for the axes of the array `name`."""
        lead = ("chain",) * self.draw_axis
        return (*lead, "draw", *(f"{name}_dim_{i}" for i in range(len(self.event_shape))))

    def flatten_chains(self, rows: np.ndarray) -> np.ndarray:
        """Returns draws `[draw, chains..., event...]` as `[chain, draw, event...]`."""
        if self.chain_ndims is None:
            return rows
        return np.moveaxis(rows.reshape(len(rows), self.num_chains, *self.event_shape), 0, 1)


class StoredDraws:
    """An array `[num_draws, chains..., event...]` on disk.

    An index such as `x[-1]`, `x[1000:2000]` or `x[::10, 0]` reads only the draws that it names, in
    pieces of bounded size. `np.asarray(x)` reads all draws. Each read verifies that the files are
    those of the run, which may have been removed, renamed or replaced.

    Args:
      array: zarr array `[chain, draw, event...]`, or `[draw, event...]` if chains share draws.
      chain_shape: the shape of the chains; None if there is no axis of chains.
      num_draws: number of draws that are shown.
      run_id: the identifier in the store's metadata; None for a store without one.
      checksums: checksums of the first chunks. Those of the other chunks are read from the files.

    Raises:
      ValueError: a chunk is missing, damaged or from another run, now or when draws are read.
    """

    def __init__(
        self,
        array: Any,
        chain_shape: tuple[int, ...] | None,
        num_draws: int,
        run_id: str | None,
        checksums: Sequence[int] = (),
    ):
        self._array, self._run_id = array, run_id
        self._lead = () if chain_shape is None else (slice(None),)
        self.shape = (num_draws, *(chain_shape or ()), *array.shape[len(self._lead) + 1 :])
        self.dtype, self.ndim = array.dtype, len(self.shape)
        self._block = array.chunks[len(self._lead)]
        self._folder = Path(array.store_path.store.root, array.path)
        self._num_whole = num_draws // self._block
        self._checksums: list[int | None] = list(checksums)
        self._checksums += [None] * (-(-num_draws // self._block) - len(self._checksums))
        self.verify(len(checksums) * self._block)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"StoredDraws(shape={self.shape}, dtype={self.dtype.name})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("copy must be True or None for draws on disk. Received: copy=False.")
        result = np.empty(self.shape, dtype or self.dtype)
        for start in range(0, len(self), self._block):
            stop = min(start + self._block, len(self))
            result[start:stop] = self._rows(start, stop)
        return result

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self), self._block):
            yield from self._rows(start, min(start + self._block, len(self)))

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(first, int | np.integer):
            at = range(len(self))[first]
            return self._rows(at, at + 1)[(0, *rest)]
        if not isinstance(first, slice):
            return np.asarray(self)[index]
        asked = range(len(self))[first]
        upwards = asked if asked.step > 0 else asked[::-1]
        pieces = [self._rows(0, 0)[(slice(None), *rest)]]
        for edge in range(upwards.start - upwards.start % self._block, upwards.stop, self._block):
            start, stop = max(edge, upwards.start), min(edge + self._block, upwards.stop)
            start += (upwards.start - start) % upwards.step
            if start < stop:
                rows = self._rows(start, stop)[:: upwards.step]
                pieces.append(rows[(slice(None), *rest)])
        return np.concatenate(pieces)[:: 1 if asked.step > 0 else -1]

    def first(self, count: int) -> StoredDraws:
        """Returns the first `count` draws."""
        shown = copy.copy(self)
        shown.shape = (min(count, len(self)), *self.shape[1:])
        return shown

    def verify(self, start: int = 0, stop: int | None = None) -> None:
        """Raises ValueError unless each chunk of some draws is the file that the run wrote.

        zarr reads zeros for a missing chunk, and the chunks of another run if it took the place.
        """
        stop = len(self) if stop is None else stop
        for number in range(start // self._block, -(-stop // self._block)):
            chunk = self._folder / chunk_name(self._array, len(self._lead), number)
            known, found = self._checksums[number], chunk_checksum(chunk, chunk_bytes(self._array))
            # A run that goes on writes its last chunk again, and no other.
            may_grow = number >= self._num_whole
            if known not in (None, found) and not (
                may_grow and read_run_id(self._folder.parent.parent) == self._run_id
            ):
                raise ValueError(
                    f"{chunk} must have the checksum {known:08x}. Received: {found:08x}"
                )
            self._checksums[number] = found

    def _rows(self, start: int, stop: int) -> np.ndarray:
        try:
            self.verify(start, stop)
            rows = self._array[(*self._lead, slice(start, stop))]
        except (ValueError, OSError) as error:
            raise ValueError(
                f"The draws {start} .. {stop - 1} of {self._folder} cannot be read. A file is "
                f"missing, damaged or of another run ({error})."
            ) from error
        if self._lead:
            rows = np.moveaxis(rows, 0, 1)
        return rows.reshape(stop - start, *self.shape[1:])


@contextlib.contextmanager
def named(path: Path, advice: str) -> Generator[None]:
    """Names the part of a store that cannot be opened, and says what to do."""
    try:
        yield
    except Exception as error:  # damage has many kinds
        raise ValueError(f"{path} is damaged or missing ({error}). {advice}") from error


@contextlib.contextmanager
def named_if_full(path: Path) -> Generator[None]:
    """Names the part of a store that is written in errors that name no file, as of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def read_run_id(store: Path) -> str | None:
    """Returns the identifier of the run that wrote a store; None if it has none."""
    return json.loads((store / "zarr.json").read_bytes()).get("attributes", {}).get(RUN_ID)


def array_options(zarr: Any, shape: Sequence[int], chunks: Sequence[int], dtype: Any) -> Any:
    """Returns the options with which the arrays of a store are made."""
    return dict(
        shape=tuple(shape),
        chunks=tuple(chunks),
        dtype=dtype,
        # Random numbers hardly compress, and a known size shows whether a file is whole.
        compressors=[zarr.codecs.Crc32cCodec()],
        chunk_key_encoding={"name": "default", "separator": "."},
        config={"write_empty_chunks": True},
    )


def check_metadata(zarr: Any, array: Any, lead: Sequence[int], event: Sequence[int]) -> None:
    """Raises ValueError if the metadata of an array say that its files hold other draws.

    The checksums of chunks do not see how these are read.

    Args:
      zarr: the module.
      array: a zarr array `[*lead, draws, *event]`.
      lead: the shape before the axis of draws.
      event: the shape after it.
    """
    num_draws, rows = array.shape[len(lead)], array.chunks[len(lead)]
    shapes = (*lead, num_draws, *event), (*lead, rows, *event)
    made = zarr.create_array({}, **array_options(zarr, *shapes, array.dtype))
    expected, found = made.metadata.to_dict(), array.metadata.to_dict()
    for key in ("shape", "chunk_grid", "chunk_key_encoding", "codecs"):
        if found[key] != expected[key]:
            raise ValueError(
                f"{key} in its zarr.json must be {expected[key]}. Received: {found[key]}"
            )


def chunk_name(array: Any, axis: int, number: int) -> str:
    """Returns the file name of a chunk of a zarr array whose other axes are not divided."""
    at = [0] * array.ndim
    at[axis] = number
    return ".".join(["c", *map(str, at)])


def chunk_bytes(array: Any) -> int:
    """Returns the size of each of an array's chunks on disk."""
    return math.prod(array.chunks) * array.dtype.itemsize + CHECKSUM_BYTES


def chunk_checksum(chunk: Path, num_bytes: int) -> int:
    """Returns the CRC32C at the end of a chunk, which zarr compares with the rest when it reads.

    Raises:
      ValueError: the file is missing or has another size.
    """
    try:
        with chunk.open("rb") as file:
            if (found := os.fstat(file.fileno()).st_size) == num_bytes:
                file.seek(-CHECKSUM_BYTES, os.SEEK_END)
                return int.from_bytes(file.read(), "little")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{chunk} is missing") from None
    raise ValueError(f"{chunk} must have {num_bytes} bytes. Received: {found}")


def refuse_links(path: Path) -> None:
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
                raise ValueError(
                    f"{found} must be a regular file. Received: a pipe or a device. Restore it "
                    "from a copy, or start in another directory."
                )
