"""The lock of a directory, which keeps a second writer out: by the system, or by heartbeats."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import socket
import stat
import threading
import time
import uuid
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.storage.npz import open_regular, sync

_CAN_LOCK = importlib.util.find_spec("fcntl") is not None  # Windows cannot
PARTIAL = ".partial"  # ends the names of files that are being written
SIGNATURE = "tfp_sgmcmc run, held by process "
HEARTBEAT_SECONDS = 2.0  # of a lease
EXPIRY_SECONDS = 20.0
# Engines end a worker up to 30 s after they gave its task to another one. A task of a client that
# died runs to its end, and the next call's task then only reads what it left.
PATIENCE_SECONDS = 24 * 3600.0
_LEASE_BYTES = 300  # so that each heartbeat replaces all of the last one
# The locks of this process by file. The system knows only that the process has one.
_HELD: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()


class Lock:
    """Locks a file until `release`, until this object is deleted, or until the process ends.

    An exception in a notebook keeps the objects of the cell that failed alive. So a lock of the
    same process is taken over unless it `is_busy`.

    Attributes:
      text: the previous content of the file.
      is_held: whether the lock is not yet released or taken over.
      is_busy: whether a `with` block that will release it is under way.

    Raises:
      ValueError: another process, or a `with` block of this one, holds the lock.
      OSError: the file cannot be opened, or is not a regular file.
    """

    def __init__(self, path: Path):
        self._path, self._process, self.is_held, self.is_busy = path, os.getpid(), True, False
        if not _CAN_LOCK:
            self.text = path.read_text() if path.exists() else ""
            return
        # Neither a symbolic link nor a pipe is opened.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(path, flags, 0o666)
        self._close = weakref.finalize(self, _unlock, self._descriptor, self._process)
        try:
            found = os.fstat(self._descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
            self.text = os.read(self._descriptor, 100).decode(errors="replace")
            self._take((found.st_dev, found.st_ino))
        except BaseException:
            self.release()
            raise

    def _take(self, key: tuple[int, int]) -> None:
        try:
            _flock(self._descriptor)
        except BlockingIOError:
            holder = _HELD.get(key)
            if holder is None or holder._process != os.getpid() or holder.is_busy:
                process = self.text.removeprefix(SIGNATURE).partition("\n")[0] or "unknown"
                raise ValueError(
                    f"The directory {self._path.parent} is in use by process {process}. "
                    "Only one process may write a run."
                ) from None
            holder.release()
            _flock(self._descriptor)
        _HELD[key] = self

    def write(self, text: str) -> None:
        """Replaces the text of the file."""
        if not _CAN_LOCK:
            self._path.write_text(text)
            return
        # Writing before truncating leaves the old text in place on a full disk.
        os.pwrite(self._descriptor, text.encode(), 0)
        os.ftruncate(self._descriptor, len(text.encode()))

    def release(self) -> None:
        """Lets others have the lock."""
        self.is_held = False
        if _CAN_LOCK:
            self._close()


class Lease:
    """Holds a directory that several hosts share, where a system's lock is not reliable.

    A file beside the lock names host and process. A thread writes it every `HEARTBEAT_SECONDS`. The
    lease of a process of this host that has ended is taken over at once, and the lease of another
    host when its file has not changed for `EXPIRY_SECONDS`. A running holder is waited for, because
    its task may have been started again while it still runs. A process that was suspended and lost
    its lease finds another file at its place when it next commits, and stops. Times are differences
    of one clock, so that the clocks of hosts need not agree.

    Args:
      path: the file that `Lock` would lock, which holds `text`. The lease lies beside it.
      patience: seconds to wait for a running holder; None is `PATIENCE_SECONDS`.

    Attributes:
      text: the previous content of the file.
      is_busy: whether a `with` block that will release the lease is under way.

    Raises:
      ValueError: another process, which the message names, still holds the lease after `patience`.
      OSError: a file cannot be written.
    """

    def __init__(self, path: Path, patience: float | None = None):
        self._path, self._lease, self.is_busy = path, path.with_suffix(".lease"), False
        self._patience = PATIENCE_SECONDS if patience is None else patience
        self._descriptor = self._take()
        stop = threading.Event()
        given = self._lease, self._descriptor, stop, os.getpid()
        self._close = weakref.finalize(self, _release, *given)
        threading.Thread(target=_beat, args=(self._descriptor, stop), daemon=True).start()
        try:
            self.text = _read_text(path)[:100] if path.exists() else ""
        except OSError:  # such as a folder or a pipe in its place
            self._close()
            raise

    def _take(self) -> int:
        seen, began = None, time.monotonic()
        since = began
        while True:
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(self._lease, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                try:
                    _write(descriptor, 0)
                except BaseException:  # such as a full disk; others would wait for the lease
                    self._lease.unlink(missing_ok=True)
                    os.close(descriptor)
                    raise
                return descriptor
            try:
                found = _read_text(self._lease)
            except FileNotFoundError:
                continue
            holder = _holder(found)
            if found != seen:
                waited = time.monotonic() - began
                if seen is not None and holder and waited > self._patience:
                    raise ValueError(
                        f"The directory {self._path.parent} is in use by process "
                        f"{holder['process']} on {holder['host']}. Only one process may write a "
                        "run."
                    )
                seen, since = found, time.monotonic()
            if _has_ended(holder) or time.monotonic() - since > EXPIRY_SECONDS:
                with contextlib.suppress(FileNotFoundError):
                    if _read_text(self._lease) == found:  # no other one has taken it over
                        self._lease.unlink()
                continue
            time.sleep(HEARTBEAT_SECONDS / 4)

    @property
    def is_held(self) -> bool:
        """Whether the lease is neither released nor taken over by another process."""
        if not self._close.alive:
            return False
        try:
            own, there = os.fstat(self._descriptor), os.stat(self._lease)
        except FileNotFoundError:
            return False
        return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)

    def write(self, text: str) -> None:
        """Replaces the text of the file that a `Lock` would lock, whole or not at all."""
        replace_text(self._path, text)

    def release(self) -> None:
        """Lets others have the directory."""
        self._close()


def holder_of(lease: Path) -> str:
    """Returns the process that a lease names, in words; "" if there is none or it has ended."""
    try:
        holder = _holder(_read_text(lease))
    except OSError:  # there is none, or the run's folder cannot be read, of which its run tells
        return ""
    if not holder or _has_ended(holder):
        return ""
    return f"process {holder['process']} on {holder['host']}"


def replace_text(path: Path, text: str) -> None:
    """Replaces a file at once, through another one whose name no other process takes.

    Process numbers do not differ between containers that share a disk.
    """
    with _partial(path, text) as partial:
        partial.replace(path)


def add_text(path: Path, text: str) -> None:
    """Writes a file at once, unless another process has written it."""
    with _partial(path, text) as partial:
        try:
            os.link(partial, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            partial.replace(path)


@contextlib.contextmanager
def _partial(path: Path, text: str) -> Generator[Path]:
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        partial.write_text(text, encoding="utf-8")
        sync(partial)
        yield partial
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def read_object(path: Path, advice: str) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises:
      ValueError: the file is damaged; the message names it and gives `advice`.
    """
    try:
        with open_regular(path) as file:
            found = json.load(file)
        if not isinstance(found, dict):
            raise ValueError(f"it holds {a_type(found)} in place of a JSON object")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}). {advice}") from error
    return found


def _read_text(path: Path) -> str:
    """Returns the text of a file that a run wrote; a pipe or a lost link would be waited for."""
    if not stat.S_ISREG(path.lstat().st_mode):  # one look, as others remove such files
        what = "not a regular file. Remove it, and the same call writes it again"
        raise OSError(errno.EINVAL, what, os.fspath(path))
    return path.read_text(errors="replace")


def _place() -> dict[str, Any]:
    """Returns the host, its boot, and a number that differs between its containers.

    Process numbers mean something only within all three: hosts may share a name, and a host that
    was started again gives numbers anew.
    """
    processes, boot = Path("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id")
    number = processes.stat().st_ino if processes.exists() else 0
    return {
        "host": socket.gethostname(),
        "processes": number,
        "boot": boot.read_text().strip() if boot.exists() else "",
    }


def _write(descriptor: int, beats: int) -> None:
    found = {**_place(), "process": os.getpid(), "beats": beats}
    os.pwrite(descriptor, f"{SIGNATURE}{json.dumps(found)}".ljust(_LEASE_BYTES).encode(), 0)
    os.fsync(descriptor)


def _beat(descriptor: int, stop: threading.Event) -> None:
    """Writes a lease until `stop`, and then closes it, so that no beat meets a closed file."""
    beats = 0
    while not stop.wait(HEARTBEAT_SECONDS):
        beats += 1
        with contextlib.suppress(OSError):  # the next commit finds out
            _write(descriptor, beats)
    os.close(descriptor)


def _release(path: Path, descriptor: int, stop: threading.Event, process: int) -> None:
    if os.getpid() != process:  # a fork, which does not hold the lease
        return
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            path.unlink()
    stop.set()


def _holder(text: str) -> dict[str, Any]:
    """Returns the holder that a lease names; empty while it is being written or if damaged."""
    try:
        found = json.loads(text.removeprefix(SIGNATURE))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and {"host", "process"} <= found.keys() else {}


def _has_ended(holder: dict[str, Any]) -> bool:
    """Returns whether a process of this host has ended; False for other hosts."""
    if not _place().items() <= holder.items():
        return False
    try:
        os.kill(int(holder["process"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError, TypeError, OverflowError):
        return False
    return False


def _flock(descriptor: int) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unlock(descriptor: int, process: int) -> None:
    """Closes a file, and lets others lock it, even if a fork of the process has it open."""
    import fcntl

    if os.getpid() == process:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
