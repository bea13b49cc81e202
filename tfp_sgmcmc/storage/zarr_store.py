"""Draws written to disk during a run, in zarr arrays that xarray and ArviZ open."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from tfp_sgmcmc import __version__
from tfp_sgmcmc.internal.extras import advised
from tfp_sgmcmc.storage import stored_draws
from tfp_sgmcmc.storage.npz import sync

LIBRARY = {"inference_library": "tfp_sgmcmc", "inference_library_version": __version__}
_CHUNK_BYTES = 2**23  # of a chunk of all arrays together; fewer draws wait in memory
_CHUNK_ROWS = 10_000
_LONGEST_NAME = 200  # bytes
_ADVICE = "Restore it from a copy, or start in another directory."
_FILTERS = threading.Lock()

Groups = Mapping[str, Mapping[str, Any]]
Variables = Mapping[str, Mapping[str, stored_draws.Variable]]


class Committed(NamedTuple):
    """The part of a checkpoint that describes the draws on disk.

    Attributes:
      num_draws: their number.
      tail: group -> name -> the draws that do not fill a chunk.
      checksums: group -> name -> the checksum of each whole chunk, or None if none were kept.
    """

    num_draws: int
    tail: Groups
    checksums: Groups = {}


class DrawStore:
    """A zarr store of arrays `[chain, draw, event...]`, in groups, that grows along `draw`.

    During a run only whole chunks are written. Each is a separate file, which appears under its
    name when it is complete, so that earlier files are never touched. The draws that do not fill a
    chunk are in `tail`, which the checkpoint must hold. `finish` writes them as well, and a run
    that goes on writes only that last chunk again. Every chunk carries a checksum.

    xarray sees the draws that were written before the last `sync`.

    Args:
      path: the store.
      variables: group -> name -> `Variable`.
      attributes: strings and numbers that are attached to each group.
      committed: the draws of the checkpoint; None makes a new store.

    Raises:
      ValueError: zarr or xarray cannot hold a name, or the store lacks committed draws.
      ModuleNotFoundError: zarr is not installed.
    """

    def __init__(
        self,
        path: Path,
        variables: Variables,
        attributes: Mapping[str, Any] | None = None,
        committed: Committed | None = None,
    ):
        self.path, self._zarr = path, import_zarr()
        for group, members in variables.items():
            _check(group, members)
        self.variables = _numbered(variables)
        self._unsynced: set[Path] = set()
        self._checksums: dict[str, dict[str, list[int] | None]] = {
            group: {name: [] for name in members} for group, members in self.variables.items()
        }
        if committed is None:
            self._create(dict(attributes or {}))
        else:
            self._open(committed)

    @property
    def num_draws(self) -> int:
        return self._num_whole + self._num_tail

    @property
    def tail(self) -> dict[str, dict[str, np.ndarray]]:
        """The draws that do not fill a chunk yet, in the layout of `append`."""
        return {
            group: {n: x for n, x in tails.items() if n != "draw"}
            for group, tails in self._tail.items()
        }

    @property
    def has_unwritten(self) -> bool:
        """Whether `finish` would write draws."""
        return bool(self._num_tail) and not self._is_finished

    @property
    def checksums(self) -> dict[str, dict[str, Any]]:
        """The checksum of each whole chunk, or None for a run that was begun without."""
        return {
            group: {n: None if x is None else np.array(x, np.uint32) for n, x in found.items()}
            for group, found in self._checksums.items()
        }

    def append(self, draws: Groups) -> None:
        """Adds draws: group -> name -> array `[rows, *shape]`, with the same number of rows."""
        counts = {len(x) for members in draws.values() for x in members.values()}
        if len(counts) != 1:
            raise ValueError(f"Arrays must have equally many draws. Received: {sorted(counts)}.")
        (count,) = counts
        numbers = np.arange(self.num_draws, self.num_draws + count)
        total = self._num_tail + count
        whole = total - total % self._rows
        tails: dict[str, dict[str, np.ndarray]] = {group: {} for group in self.variables}
        for group, members in self.variables.items():
            for name, variable in members.items():
                new = numbers if name == "draw" else np.asarray(draws[group][name])
                if new.shape[1:] != variable.shape:
                    raise ValueError(
                        f"Draws of {group}/{name} must have shape {variable.shape}. Received: "
                        f"{new.shape[1:]}."
                    )
                rows = np.concatenate([self._tail[group][name], new.astype(variable.stored_dtype)])
                if whole:
                    self._write(group, name, rows[:whole])
                tails[group][name] = rows[whole:].copy()
        # At once, so that an interrupt leaves no array longer than the others. Chunks that were
        # written are written again.
        self._tail, self._num_whole, self._num_tail = tails, self._num_whole + whole, total - whole
        self._is_finished = False

    def finish(self) -> None:
        """Writes the tail, and keeps it in memory for a run that goes on."""
        if self.has_unwritten:
            for group, tails in self._tail.items():
                for name, rows in tails.items():
                    self._write(group, name, rows)
        self._is_finished = True

    def sync(self) -> None:
        """Flushes all chunks to the disk, and shows them to readers."""
        if not self._unsynced:
            return
        for path in sorted(self._unsynced):
            sync(path)
        # Other readers may not know consolidated metadata. The filters belong to all threads.
        with _FILTERS, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Consolidated metadata", UserWarning)
            for group in (*self.variables, None):
                self._zarr.consolidate_metadata(self.path, path=group)
        for group in ("", *self.variables):
            sync(self.path / group / "zarr.json")
        for folder in {p.parent for p in self._unsynced} | {self.path / g for g in self.variables}:
            sync(folder)
        sync(self.path)
        self._unsynced.clear()

    def draws(self, group: str, name: str) -> stored_draws.StoredDraws:
        """Returns the draws of an array that are on disk, `[draws, chains..., event...]`."""
        array, variable = self._arrays[group][name], self.variables[group][name]
        num_draws = array.shape[variable.draw_axis]
        checksums = self._checksums[group][name] or ()
        return stored_draws.StoredDraws(
            array, variable.chain_shape, num_draws, self._run_id, checksums
        )

    def _create(self, attributes: dict[str, Any]) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat()
        attributes = {"created_at": now, **LIBRARY, **attributes}
        self._rows = _chunk_rows(self.variables)
        self._run_id = uuid.uuid4().hex
        root = self._zarr.create_group(
            self.path, zarr_format=3, attributes={stored_draws.RUN_ID: self._run_id}
        )
        self._arrays: dict[str, dict[str, Any]] = {}
        for group, members in self.variables.items():
            made = root.create_group(group, attributes=attributes)
            self._arrays[group] = {n: self._create_array(made, n, v) for n, v in members.items()}
            self._write_chains(made)
        self._num_whole = self._num_tail = 0
        self._is_finished = False  # whether the tail is on disk
        self._tail = {
            group: {n: np.zeros([0, *v.shape], v.stored_dtype) for n, v in members.items()}
            for group, members in self.variables.items()
        }

    def _write_chains(self, group: Any) -> None:
        """Writes the numbers of the chains, unless they are there and sound."""
        members = self.variables[group.basename]
        numbers = np.arange(max(v.num_chains for v in members.values()))
        with contextlib.suppress(Exception):  # damage has many kinds
            found = self._zarr.open_array(self.path / group.basename / "chain", mode="r")[:]
            if np.array_equal(found, numbers):
                return
        if not len(numbers):  # chains share all draws
            return
        chains = group.create_array(
            "chain",
            overwrite=True,
            shape=numbers.shape,
            dtype="int64",
            compressors=[self._zarr.codecs.Crc32cCodec()],
            dimension_names=("chain",),
            config={"write_empty_chunks": True},
        )
        chains[:] = numbers
        folder = self.path / group.basename / "chain"
        self._unsynced |= {folder / "c" / "0", folder / "zarr.json"}

    def _create_array(self, group: Any, name: str, variable: stored_draws.Variable) -> Any:
        event = variable.event_shape
        lead = (variable.num_chains,) * variable.draw_axis
        self._unsynced.add(self.path / group.basename / name / "zarr.json")
        shapes = (*lead, 0, *event), (*lead, self._rows, *event)
        options = stored_draws.array_options(self._zarr, *shapes, variable.stored_dtype)
        return group.create_array(name, dimension_names=variable.dimensions(name), **options)

    def _open(self, committed: Committed) -> None:
        stored_draws.refuse_links(self.path)
        for group in (*self.variables, ""):
            with stored_draws.named(self.path / group, _ADVICE):
                opened = self._zarr.open_group(self.path, path=group, mode="r+")
            if group:
                self._write_chains(opened)
        self._run_id = opened.attrs.get(stored_draws.RUN_ID)  # None for a run begun without
        for leftover in self.path.glob("**/*.partial"):  # a write was cut off
            leftover.unlink()
        self._arrays, self._tail, self._is_finished = {}, {}, False
        num_draws, tail, checksums = committed
        tails = {len(x) for members in tail.values() for x in members.values()}
        self._num_tail = tails.pop() if tails else 0
        self._num_whole = num_draws - self._num_tail
        if tails or self._num_whole < 0:
            raise ValueError(f"The checkpoint beside {self.path} is damaged.")
        for group, members in self.variables.items():
            numbers = {"draw": np.arange(self._num_whole, num_draws)}
            self._tail[group] = {**tail[group], **numbers}
            for name in members:
                found = checksums.get(group, {}).get(name)
                self._checksums[group][name] = None if found is None else found.tolist()
            self._arrays[group] = {n: self._open_array(group, n, v) for n, v in members.items()}
        entries = [(group, name) for group, m in self._arrays.items() for name in m]
        self._unsynced |= {self.path / group / name / "zarr.json" for group, name in entries}
        if not all(self._has_tail(group, name) for group, name in entries):
            # The run was cut off, or the last chunk is damaged. The checkpoint has its draws.
            self.finish()
            self.sync()

    def _has_tail(self, group: str, name: str) -> bool:
        """Returns whether the whole tail is on disk."""
        array, variable = self._arrays[group][name], self.variables[group][name]
        axis, start = variable.draw_axis, self._num_whole
        if array.shape[axis] != self.num_draws:
            return not self._num_tail
        try:
            found = array[(*(slice(None),) * axis, slice(start, self.num_draws))]
        except (ValueError, OSError):
            return False
        return found.tobytes() == variable.flatten_chains(self._tail[group][name]).tobytes()

    def _open_array(self, group: str, name: str, variable: stored_draws.Variable) -> Any:
        """Opens an array, checks that no chunk is missing, and drops uncommitted draws."""
        path, axis = self.path / group / name, variable.draw_axis
        with stored_draws.named(path, _ADVICE):
            # Chunks of zeros are files as well; open_array does not take this setting.
            array = self._zarr.open_array(path, mode="r+")
            array = array.with_config({"write_empty_chunks": True})
            lead = (variable.num_chains,) * axis
            stored_draws.check_metadata(self._zarr, array, lead, variable.event_shape)
            self._rows = array.chunks[axis]
            shape, whole = list(array.shape), self._num_whole
            checksums, count = self._checksums[group][name], whole // self._rows
            if checksums is not None and len(checksums) != count:
                raise ValueError(f"it must have {len(checksums)} whole chunks, not {count}")
            known = checksums or ()
            stored_draws.StoredDraws(array, variable.chain_shape, whole, None, known).verify()
        if shape[axis] < whole or array.dtype != variable.stored_dtype:
            raise ValueError(
                f"The array {path} must have at least {whole} draws of "
                f"{variable.stored_dtype.name}. Received: {shape[axis]} of {array.dtype.name}."
            )
        if shape[axis] > whole + self._num_tail:
            shape[axis] = whole + self._num_tail
            array.resize(tuple(shape))
        return array

    def _write(self, group: str, name: str, rows: np.ndarray) -> None:
        """Writes rows, which begin after the last whole chunk."""
        array, variable = self._arrays[group][name], self.variables[group][name]
        axis, start = variable.draw_axis, self._num_whole
        stop = start + len(rows)
        rows = variable.flatten_chains(rows)
        folder, first = self.path / group / name, start // self._rows
        with stored_draws.named_if_full(folder):
            if array.shape[axis] < stop:
                array.resize((*array.shape[:axis], stop, *array.shape[axis + 1 :]))
            array[(*(slice(None),) * axis, slice(start, stop))] = rows
        numbers = range(first, -(-stop // self._rows))
        files = [folder / stored_draws.chunk_name(array, axis, number) for number in numbers]
        self._unsynced |= {*files, folder / "zarr.json"}
        checksums = self._checksums[group][name]
        if checksums is not None:
            del checksums[first:]
            whole = files[: stop // self._rows - first]
            checksums += [
                stored_draws.chunk_checksum(file, stored_draws.chunk_bytes(array)) for file in whole
            ]


def bytes_on_disk(variables: Variables, num_draws: int) -> int:
    """Returns the bytes of all chunks of a store of so many draws.

    The last chunk of an array has the size of the others, however many draws it holds.

    >>> w = stored_draws.Variable((10,), "float32")
    >>> bytes_on_disk({"posterior": {"w": w}}, 1)  # and the draw's number
    480008
    """
    numbered = _numbered(variables)
    rows = _chunk_rows(numbered)
    sizes = [v.draw_bytes for members in numbered.values() for v in members.values()]
    return -(-num_draws // rows) * sum(rows * size + stored_draws.CHECKSUM_BYTES for size in sizes)


def _numbered(variables: Variables) -> dict[str, dict[str, stored_draws.Variable]]:
    """Returns the groups that have variables, each with the numbers of the draws."""
    return {
        group: {**members, "draw": stored_draws.Variable((), "int64", None)}
        for group, members in variables.items()
        if members
    }


def _chunk_rows(variables: Variables) -> int:
    """Returns the draws in a chunk of each array."""
    total = sum(v.draw_bytes for members in variables.values() for v in members.values())
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // total))


def _check(group: str, members: Mapping[str, stored_draws.Variable]) -> None:
    for name, variable in members.items():
        if (
            not name.isprintable()
            or set(name) & {"/", "\\"}
            or not 0 < len(name.encode()) <= _LONGEST_NAME
            or name.startswith((".", "__"))
            or name.endswith(".partial")
            or name in ("chain", "draw", "zarr.json")
        ):
            raise ValueError(
                f"{name!r} cannot name an array of {group}, because a folder has its name. A name "
                f"must have 1 to {_LONGEST_NAME} bytes that can be printed, none of them / or \\, "
                "must not begin with '.' or '__' or end with '.partial', and must not be 'chain', "
                "'draw' or 'zarr.json'."
            )
        if 0 in variable.shape:
            raise ValueError(f"{group}/{name} has shape {variable.shape} and nothing to store.")
    counts = {v.num_chains for v in members.values()} - {0}
    if len(counts) > 1:
        raise ValueError(f"{group} must have equally many chains. Received: {sorted(counts)}.")


def import_zarr() -> ModuleType:
    """Returns zarr; raises ModuleNotFoundError, with how to install it."""
    if sys.flags.optimize:
        raise RuntimeError(
            "directory must be None under python -O, which removes statements that zarr needs. "
            "Received: a directory. Run python without -O, or unset PYTHONOPTIMIZE."
        )
    install = 'python -m pip install "tfp_sgmcmc[results]"'
    with advised(f"Draws on disk need zarr. Install it by {install}"):
        import zarr
        import zarr.codecs
    return zarr
