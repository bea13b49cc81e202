"""The lock of a directory, which keeps a second writer out."""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
import weakref
from pathlib import Path

_CAN_LOCK = importlib.util.find_spec("fcntl") is not None  # Windows cannot
SIGNATURE = "tfp_sgmcmc run, held by process "
# The locks of this process by file. The system knows only that the process has one.
_HELD: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()


class Lock:
    """Locks a file until `release`, until this object is deleted, or until the process ends.

    An exception in a notebook keeps the objects of the cell that failed alive. So a lock of the
    same process is taken over unless it `is_busy`.

    Attributes:
      text: what the file held before.
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
        self._close = weakref.finalize(self, os.close, self._descriptor)
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
                said = self.text.removeprefix(SIGNATURE).partition("\n")[0]
                raise ValueError(
                    f"The directory {self._path.parent} is in use by process {said or 'unknown'}. "
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


def _flock(descriptor: int) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
