"""The lease of a directory that several hosts share, where a system's lock cannot be relied on."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from tfp_sgmcmc.storage.lock import SIGNATURE

HEARTBEAT_SECONDS = 2.0
EXPIRY_SECONDS = 20.0
PATIENCE_SECONDS = 60.0  # engines end a worker up to 30 s after they gave its task to another one
_LENGTH = 300  # bytes of the file, so that each heartbeat replaces all of the last one


class Lease:
    """Holds a directory for this process, as `Lock` does, by a file with host, process and time.

    A thread writes the file anew every `HEARTBEAT_SECONDS`. The lease of a process that has ended
    on this host is taken over at once, and that of another host when its file has not changed for
    `EXPIRY_SECONDS`. A holder that lives has `PATIENCE_SECONDS` to release it, because an engine
    that ends a worker may start its task elsewhere while the worker still runs. A process that was
    suspended and lost its lease finds another file at its place when it next commits, and stops.
    Times are differences of one clock, so that the clocks of hosts need not agree.

    Args:
      path: the file that `Lock` would lock, which holds `text`. The lease lies beside it.

    Attributes:
      text: what the file held before.
      is_busy: whether a `with` block that will release the lease is under way.

    Raises:
      ValueError: another process, which the message names, still holds the lease after
        `PATIENCE_SECONDS`.
      OSError: a file cannot be written.
    """

    def __init__(self, path: Path):
        self._path, self._lease, self.is_busy = path, path.with_suffix(".lease"), False
        self._descriptor = self._take()
        self.text = path.read_text(errors="replace")[:100] if path.exists() else ""
        self._stop = threading.Event()
        self._close = weakref.finalize(self, _release, self._lease, self._descriptor, self._stop)
        beat = threading.Thread(target=_beat, args=(self._descriptor, self._stop), daemon=True)
        beat.start()

    def _take(self) -> int:
        seen, began = None, time.monotonic()
        since = began
        while True:
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(self._lease, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                _write(descriptor, 0)
                return descriptor
            try:
                found = self._lease.read_text(errors="replace")
            except FileNotFoundError:
                continue
            holder = _holder(found)
            if found != seen:
                waited = time.monotonic() - began
                if seen is not None and holder and waited > PATIENCE_SECONDS:
                    raise ValueError(
                        f"The directory {self._path.parent} is in use by process "
                        f"{holder['process']} on {holder['host']}. Only one process may write a "
                        "run."
                    )
                seen, since = found, time.monotonic()
            if _has_ended(holder) or time.monotonic() - since > EXPIRY_SECONDS:
                with contextlib.suppress(FileNotFoundError):
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
        """Replaces the text of the file that a `Lock` would lock."""
        self._path.write_text(text)

    def release(self) -> None:
        """Lets others have the directory."""
        self._close()


def _place() -> dict[str, Any]:
    """Returns the host and what tells containers on it apart."""
    processes = Path("/proc/self/ns/pid")
    number = processes.stat().st_ino if processes.exists() else 0
    return {"host": socket.gethostname(), "processes": number}


def _write(descriptor: int, beats: int) -> None:
    found = {**_place(), "process": os.getpid(), "beats": beats}
    os.pwrite(descriptor, f"{SIGNATURE}{json.dumps(found)}".ljust(_LENGTH).encode(), 0)
    os.fsync(descriptor)


def _beat(descriptor: int, stop: threading.Event) -> None:
    beats = 0
    while not stop.wait(HEARTBEAT_SECONDS):
        beats += 1
        with contextlib.suppress(OSError):  # the next commit finds out
            _write(descriptor, beats)


def _release(path: Path, descriptor: int, stop: threading.Event) -> None:
    stop.set()
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            path.unlink()
    os.close(descriptor)


def _holder(text: str) -> dict[str, Any]:
    """Returns what a lease says; empty while it is being written, or if it is damaged."""
    try:
        found = json.loads(text.removeprefix(SIGNATURE))
    except ValueError:
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
    except (PermissionError, ValueError, OverflowError):
        return False
    return False
