"""The directory of a run: its draws, its checkpoint, and a lock for one process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Literal

from tfp_sgmcmc import __version__
from tfp_sgmcmc.checks import one_of
from tfp_sgmcmc.storage import approximate, checkpoint
from tfp_sgmcmc.storage.checkpoint import Checkpoint, check_same
from tfp_sgmcmc.storage.store import DrawStore, Groups, Variable
from tfp_sgmcmc.storage.stored_draws import StoredDraws

LOCK, SAMPLES, CHECKPOINT = "run.lock", "samples.zarr", "checkpoint.npz"
_SIGNATURE = "tfp_sgmcmc run, held by process "
_COMMITTED = "It has a checkpoint.\n"

Resume = Literal["auto", "must", "never"] | bool


class RunDirectory:
    """A directory that holds one run: its draws, and all that is needed to go on with it.

    `commit` first flushes the chunks of draws and then writes the checkpoint, which holds their
    number. A run that goes on drops draws beyond that number. So draws and checkpoint agree
    whenever and however the process stops, even by `kill -9`. A lock, which the system releases
    when the process ends, keeps a second process out.

    Examples:
      >>> import tempfile, numpy as np
      >>> variables = {"posterior": {"w": Variable((3,), "float32")}}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with RunDirectory(folder) as run:
      ...         assert run.start(variables, {"seed": 0}) is None  # a new run
      ...         run.append({"posterior": {"w": np.ones([5, 3], np.float32)}})
      ...         run.commit({"state": np.arange(2)})
      ...     with RunDirectory(folder) as run:
      ...         saved = run.start(variables, {"seed": 0})
      ...         state = saved.restore("state", np.zeros(2, np.int64))
      ...         run.append({"posterior": {"w": np.ones([1, 3], np.float32)}})
      ...         run.commit({"state": state + 1}, finish=True)
      ...         run.num_draws, run.draws("posterior", "w")
      (6, StoredDraws(shape=(6, 3), dtype=float32))

    Args:
      path: the directory, which is made if it does not exist.
      resume: "auto" goes on with a run if `path` holds one; "must" or True raises if it holds none;
        "never" or False raises if it holds one.

    Raises:
      ValueError: `path` cannot be written, holds other files, is in use by another process, has
        lost its checkpoint, or does not agree with `resume`.
    """

    def __init__(self, path: str | os.PathLike[str], resume: Resume = "auto"):
        if not isinstance(resume, bool):
            one_of("resume", resume, ("auto", "must", "never"))
        try:
            self.path = Path(path)
        except TypeError as error:
            raise TypeError(
                "directory must be a path, as a string or a pathlib.Path. Received: a "
                f"{type(path).__name__}."
            ) from error
        self.num_committed = 0
        self._fingerprint: dict[str, Any] = {}
        self._store: DrawStore | None = None
        self._saved: Checkpoint | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _refuse_foreign(self.path)
            self._lock, before = _lock(self.path / LOCK)
            self.has_run = (self.path / CHECKPOINT).exists()
            if before.endswith(_COMMITTED) and not self.has_run:
                self.close()
                raise ValueError(
                    f"{self.path / CHECKPOINT} is missing, and the run cannot go on without it. "
                    f"The draws are in {self.path / SAMPLES}. Restore the checkpoint from a copy, "
                    "or start in another directory."
                )
            self._sign()
        except OSError as error:
            raise ValueError(f"The directory {self.path} cannot be used: {error}.") from error
        if resume in ("must", True) and not self.has_run:
            self.close()
            raise ValueError(f"The directory {self.path} holds no run, but resume is {resume!r}.")
        if resume in ("never", False) and self.has_run:
            self.close()
            raise ValueError(
                f"The directory {self.path} holds a run already, but resume is {resume!r}. "
                "resume='auto' goes on with the run."
            )

    def saved(self) -> Checkpoint | None:
        """Returns the checkpoint of the run, or None; its fingerprint is not compared.

        Raises:
          ValueError: the checkpoint is damaged.
        """
        if self.has_run and self._saved is None:
            self._saved = checkpoint.load(self.path / CHECKPOINT)
        return self._saved

    def start(
        self,
        variables: Mapping[str, Mapping[str, Variable]],
        fingerprint: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
    ) -> Checkpoint | None:
        """Opens the run and returns its checkpoint, or makes a new run and returns None.

        Args:
          variables: group -> name -> `Variable`, with ArviZ's names for groups: `posterior`,
            `sample_stats`.
          fingerprint: name -> JSON value; a run goes on only if all are the same.
          attributes: strings and numbers that are attached to each group.

        Raises:
          ValueError: the run has another fingerprint or other variables, or is damaged.
        """
        described = {
            f"{group}/{name}": f"{v.dtype} {list(v.shape)}"
            for group, members in variables.items()
            for name, v in members.items()
        }
        own = {"library version": __version__, **described, **fingerprint}
        self._fingerprint = json.loads(json.dumps(own))  # JSON turns tuples into lists
        with self._plainly():
            if not self.has_run:
                # An earlier start may have ended before its first commit.
                shutil.rmtree(self.path / SAMPLES, ignore_errors=True)
                self._store = DrawStore(self.path / SAMPLES, variables, attributes)
                return None
            saved, self._saved = self.saved(), None
            assert saved is not None  # as has_run says
            self._compare(saved.header["fingerprint"])
            tail = {
                group: {name: saved.leaves[f"tail[{group!r}][{name!r}]"] for name in members}
                for group, members in variables.items()
                if members
            }
            self.num_committed = saved.header["num_draws"]
            committed = self.num_committed, tail
            self._store = DrawStore(self.path / SAMPLES, variables, attributes, committed)
        return saved

    def _compare(self, before: dict[str, Any]) -> None:
        """Raises unless the run was begun with the same fingerprint; warns of what is not in it."""
        own = self._fingerprint
        unknown = [n for n, x in own.items() if n not in before and approximate.is_record(x)]
        check_same(
            f"The run in {self.path}", before, {n: x for n, x in own.items() if n not in unknown}
        )
        if unknown:
            warnings.warn(
                f"The run in {self.path} was begun by a version of the library that did not record "
                f"{', '.join(unknown)}. Whether they are the same now cannot be checked.",
                stacklevel=2,
            )

    def add_to_fingerprint(self, entries: Mapping[str, Any]) -> None:
        """Adds entries that later parts of the run brought; the next commit writes them."""
        self._fingerprint |= json.loads(json.dumps(dict(entries)))

    @property
    def store(self) -> DrawStore:
        if self._store is None:
            raise ValueError("start must be called before draws are added or read.")
        return self._store

    @property
    def num_draws(self) -> int:
        """Number of draws, including those since the last commit."""
        return self.store.num_draws

    def append(self, draws: Groups) -> None:
        """Adds draws: group -> name -> array `[rows, *shape]`, with the same number of rows.

        Raises:
          OSError: the draws cannot be written; the message says how many are safe.
        """
        with self._plainly():
            self.store.append(draws)

    def commit(self, nests: Mapping[str, Any], finish: bool = False) -> None:
        """Makes all draws safe, together with the state that follows them.

        Args:
          nests: name -> nest of arrays, which `Checkpoint.restore` returns.
          finish: whether to write draws that do not fill a chunk as well, for other readers.

        Raises:
          OSError: the disk cannot be written; the previous checkpoint is still there.
        """
        store = self.store
        with self._plainly():
            if finish:
                store.finish()
            store.sync()
            header = {"fingerprint": self._fingerprint, "num_draws": store.num_draws}
            checkpoint.save(self.path / CHECKPOINT, header, {**nests, "tail": store.tail})
            is_first, self.has_run, self.num_committed = not self.has_run, True, store.num_draws
            if is_first:
                self._sign()

    def draws(self, group: str, name: str) -> StoredDraws:
        """Returns the draws on disk, `[num_draws, chains..., event...]`: all, after `finish`."""
        return self.store.draws(group, name)

    def close(self) -> None:
        """Releases the directory for other processes."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _sign(self) -> None:
        """Writes into the lock file which process holds it, and whether there is a checkpoint."""
        text = f"{_SIGNATURE}{os.getpid()}\n{_COMMITTED if self.has_run else ''}".encode()
        if self._lock is None:
            (self.path / LOCK).write_bytes(text)
            return
        # Writing before truncating leaves the old text in place on a full disk.
        os.pwrite(self._lock, text, 0)
        os.ftruncate(self._lock, len(text))

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _plainly(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror or error}: the run in {self.path} stopped. {self.num_committed} "
                "draws are safe there, and the run can go on from them",
            ) from error


def _refuse_foreign(path: Path) -> None:
    names = sorted(p.name for p in path.iterdir())
    lock = path / LOCK
    is_ours = lock.is_file() and lock.read_bytes()[: len(_SIGNATURE)] == _SIGNATURE.encode()
    if names not in ([], [LOCK]) and not is_ours:
        raise ValueError(
            f"directory must be new, empty or hold a run. Received: {path}, which holds other "
            f"files ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})."
        )


def _lock(path: Path) -> tuple[int | None, str]:
    """Locks a file until it is closed or the process ends; returns descriptor and text."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return None, path.read_text() if path.exists() else ""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    text = os.read(descriptor, 100).decode(errors="replace")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = text.removeprefix(_SIGNATURE).partition("\n")[0]
        os.close(descriptor)
        raise ValueError(
            f"The directory {path.parent} is in use by process {holder or 'unknown'}. Only one "
            "process may write a run."
        ) from None
    return descriptor, text
