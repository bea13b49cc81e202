"""The directory of a run: its draws, its checkpoint, and a lock for one process."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Literal

from tfp_sgmcmc import __version__
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal.checks import one_of
from tfp_sgmcmc.storage import checkpoint, tolerant_equality
from tfp_sgmcmc.storage.checkpoint import Checkpoint, check_same
from tfp_sgmcmc.storage.lock import SIGNATURE, Lease, Lock
from tfp_sgmcmc.storage.npz import sync
from tfp_sgmcmc.storage.stored_draws import StoredDraws, Variable
from tfp_sgmcmc.storage.zarr_store import Committed, DrawStore, Groups

LOCK, LEASE = "run.lock", "run.lease"  # `Lease` names its file after the lock
SAMPLES, CHECKPOINT = "samples.zarr", "checkpoint.npz"
_COMMITTED = "It has a checkpoint.\n"

Resume = Literal["auto", "must", "never"] | bool


@dataclasses.dataclass(frozen=True)
class Directory:
    """The folder of a run, for its draws and checkpoints, and whether a run in it is resumed.

    A plain path in place of a `Directory` takes the defaults.

    Examples:
      >>> import tfp_sgmcmc as sgmcmc
      >>> sgmcmc.Directory("run", resume="must").seconds_between_commits
      10.0

    Args:
      path: a new or empty directory, or that of the same run. `~` is the user's home.
      resume: "auto" resumes a run if `path` holds one; "must" or True raises if it holds none;
        "never" or False raises if it holds one.
      seconds_between_commits: approximate seconds between checkpoints, which a crash may cost.

    Raises:
      TypeError: `path` is no path, or `seconds_between_commits` is no number.
      ValueError: `resume` is none of the above, or `seconds_between_commits` is below 0.
    """

    path: str | os.PathLike[str]
    resume: Resume = "auto"
    seconds_between_commits: float = 10.0

    def __post_init__(self) -> None:
        found = checks.path("directory", self.path)
        if os.fspath(self.path).startswith("~"):
            object.__setattr__(self, "path", found)
        if not isinstance(self.resume, bool):
            one_of("resume", self.resume, ("auto", "must", "never"))
        checks.number(
            "seconds_between_commits", self.seconds_between_commits, "at least 0", lambda s: s >= 0
        )


def as_directory(
    value: Directory | str | os.PathLike[str] | None, name: str = "directory"
) -> Directory | None:
    """Returns a `Directory` for a path, and a `Directory` or None as it is.

    Raises:
      TypeError: no path; the message has the `name` of the argument.
    """
    if value is None or isinstance(value, Directory):
        return value
    checks.path(name, value)
    return Directory(value)


def check_resume(path: Path, resume: Resume, has_run: bool) -> None:
    """Raises ValueError if `resume` does not agree with whether a directory has a run."""
    if resume in ("must", True) and not has_run:
        raise ValueError(f"The directory {path} holds no run, but resume is {resume!r}.")
    if resume in ("never", False) and has_run:
        raise ValueError(
            f"The directory {path} holds a run already, but resume is {resume!r}. "
            "resume='auto' goes on with the run."
        )


class RunDirectory:
    """A directory that holds one run: its draws, and the state to resume it.

    `commit` first flushes the chunks of draws and then writes the checkpoint, which holds their
    number. A run that goes on drops draws beyond that number. So draws and checkpoint agree
    however the process stops, even by `kill -9`. A lock, which the system releases
    when the process ends, keeps a second process out. In the same process, the directory can be
    opened again after an error or Ctrl-C, unless a `with` block that holds it is under way.

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
      is_shared: whether several hosts may write there. Then a `Lease` takes the place of the lock.
      patience: seconds to wait for another process that holds the lease; None is a day.

    Raises:
      ValueError: `path` cannot be written, holds other files, is in use by another process, has
        lost its checkpoint, or does not agree with `resume`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        resume: Resume = "auto",
        is_shared: bool = False,
        patience: float | None = None,
    ):
        # Absolute, because the process may change its folder.
        self.path = Path(Directory(path, resume).path).absolute()
        self.num_committed = 0
        self._fingerprint: dict[str, Any] = {}
        self._store: DrawStore | None = None
        self._saved: Checkpoint | None = None
        try:
            if not any((self.path / n).exists() for n in (LOCK, CHECKPOINT)):
                check_resume(self.path, resume, has_run=False)  # before the directory is made
            self.path.mkdir(parents=True, exist_ok=True)
            _refuse_foreign(self.path)
            lock = self.path / LOCK
            self._lock = Lease(lock, patience) if is_shared else Lock(lock)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self.has_run = (self.path / CHECKPOINT).exists()
            self._check_resume(resume)
            self._sign()
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise

    def _unusable(self, error: OSError) -> ValueError:
        advice = ""
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            advice = (
                " A run writes there, even if it has all results. To read draws, copy the "
                f"directory, or use xarray.open_zarr({str(self.path / SAMPLES)!r}, "
                "group='posterior')."
            )
        return ValueError(f"The directory {self.path} cannot be used: {error}.{advice}")

    def _check_resume(self, resume: Resume) -> None:
        """Raises if the directory does not agree with `resume` or has lost its checkpoint."""
        if self._lock.text.endswith(_COMMITTED) and not self.has_run:
            raise ValueError(
                f"{self.path / CHECKPOINT} is missing, and the run cannot go on without it. The "
                f"draws are in {self.path / SAMPLES}. Restore the checkpoint from a copy, or start "
                "in another directory."
            )
        check_resume(self.path, resume, self.has_run)

    def saved(self) -> Checkpoint | None:
        """Returns the checkpoint of the run, or None; its fingerprint is not compared.

        Raises:
          ValueError: the checkpoint is damaged.
        """
        if self.has_run and self._saved is None:
            saved = checkpoint.load(self.path / CHECKPOINT)
            header = saved.header
            if not isinstance(header, dict) or not isinstance(header.get("fingerprint"), dict):
                raise ValueError(f"{saved.path} is damaged, or was not written by a run.")
            self._saved = saved
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
        # Numbers differ if another entry does, so they are compared last.
        numbers = {n: x for n, x in fingerprint.items() if tolerant_equality.is_record(x)}
        plain = {n: x for n, x in fingerprint.items() if n not in numbers}
        own = {"library version": __version__, **plain, **described, **numbers}
        self._fingerprint = json.loads(json.dumps(own))  # JSON turns tuples into lists
        with self._explain_errors():
            if not self.has_run:
                # An earlier start may have ended before its first commit.
                if (self.path / SAMPLES).exists():
                    shutil.rmtree(self.path / SAMPLES)
                self._store = DrawStore(self.path / SAMPLES, variables, attributes)
                return None
            saved, self._saved = self.saved(), None
            assert saved is not None
            self._compare(saved.header["fingerprint"])
            committed = _committed(saved, variables)
            self.num_committed = committed.num_draws
            self._store = DrawStore(self.path / SAMPLES, variables, attributes, committed)
        return saved

    def _compare(self, before: dict[str, Any]) -> None:
        """Raises unless the run was begun with the same fingerprint; warns of what is not in it."""
        own = self._fingerprint
        unknown = [n for n, x in own.items() if n not in before and tolerant_equality.is_record(x)]
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
        with self._explain_errors():
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
        with self._explain_errors():
            if finish:
                store.finish()
            store.sync()
            header = {"fingerprint": self._fingerprint, "num_draws": store.num_draws}
            checkpoint.save(
                self.path / CHECKPOINT,
                header,
                {**nests, "tail": store.tail, "checksums": store.checksums},
            )
            is_first, self.has_run, self.num_committed = not self.has_run, True, store.num_draws
            if is_first:
                self._sign()

    def finish(self) -> None:
        """Writes draws that do not fill a chunk, for `draws`; not those that others wrote since."""
        is_others = not self._lock.is_held and self.store.num_draws == self.num_committed
        if self.store.has_unwritten and not is_others:
            with self._explain_errors():
                self.store.finish()

    def draws(self, group: str, name: str) -> StoredDraws:
        """Returns the draws on disk, `[num_draws, chains..., event...]`: all, after `finish`."""
        return self.store.draws(group, name)

    def close(self) -> None:
        """Releases the directory for other processes."""
        self._lock.release()

    def _sign(self) -> None:
        """Writes the process and whether there is a checkpoint into the lock file.

        A loss of power must not leave files of a run without the signature.
        """
        self._lock.write(f"{SIGNATURE}{os.getpid()}\n{_COMMITTED if self.has_run else ''}")
        sync(self.path / LOCK)
        sync(self.path)

    def __enter__(self) -> RunDirectory:
        self._lock.is_busy = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _explain_errors(self) -> Generator[None]:
        """Adds to errors of the disk which draws are safe."""
        if not self._lock.is_held:
            raise ValueError(
                f"The run in {self.path} was closed, or opened again in this process or another "
                "one, and cannot be written through this object any more."
            )
        try:
            yield
        except OSError as error:
            file = error.filename2 or error.filename
            what = f"{error.strerror or error}{'' if file is None else f' ({file})'}"
            raise OSError(error.errno, f"{what}: {self._stop_message()}") from error
        except Exception as error:
            if (self.path / LOCK).exists():
                raise
            raise OSError(errno.ENOENT, f"{error}: {self._stop_message()}") from error

    def _stop_message(self) -> str:
        stopped = f"the run in {self.path} stopped"
        if not (self.path / LOCK).exists():
            return (
                f"{stopped}, because its files were removed while it was under way. They held "
                f"{self.num_committed} draws"
            )
        return (
            f"{stopped}. {self.num_committed} draws are safe there, and the run can go on from them"
        )


def _committed(saved: Checkpoint, variables: Mapping[str, Mapping[str, Variable]]) -> Committed:
    """Returns the part of a checkpoint that describes the draws on disk."""
    tails: dict[str, dict[str, Any]] = {}
    checksums: dict[str, dict[str, Any]] = {}
    for group, members in variables.items():
        places = {name: f"[{group!r}][{name!r}]" for name in (*members, "draw")}
        tails[group] = {name: saved.leaves.get(f"tail{places[name]}") for name in members}
        # Earlier versions wrote none.
        checksums[group] = {n: saved.leaves.get(f"checksums{at}") for n, at in places.items()}
    num_draws = saved.header.get("num_draws")
    if not isinstance(num_draws, int) or any(x is None for g in tails.values() for x in g.values()):
        raise ValueError(f"{saved.path} is damaged, or was not written by a run.")
    return Committed(num_draws, tails, checksums)


def _is_signed(path: Path) -> bool:
    """Returns whether a run wrote a file; False if there is none."""
    try:
        return path.is_file() and path.read_bytes()[: len(SIGNATURE)] == SIGNATURE.encode()
    except FileNotFoundError:  # just released
        return False


def _refuse_foreign(path: Path) -> None:
    names = sorted(p.name for p in path.iterdir())
    for name in (LOCK, SAMPLES, CHECKPOINT):
        if (path / name).is_symlink():
            raise ValueError(
                f"{path / name} must not be a symbolic link, because a run writes and removes "
                "files there. Let directory name the place itself."
            )
    # A lock file that was lost or damaged is written again. A process that ended at its first
    # steps may have left no more than files that are empty.
    is_ours = _is_signed(path / LOCK) or _is_signed(path / LEASE)
    is_ours = is_ours or checkpoint.is_of_run(path / CHECKPOINT)
    if not {*names} <= {LOCK, LEASE} and not is_ours:
        raise ValueError(
            f"directory must be new, empty or hold a run. Received: {path}, which holds other "
            f"files ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})."
        )
