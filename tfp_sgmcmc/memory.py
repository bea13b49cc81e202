"""Memory that a run will take, compared with what this machine has, before it is spent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Returns the bytes that new arrays on the host can take, or None if that is not known.

    In a container the smaller one counts: the machine's memory or what is left of the limit.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # another system than Linux
        return None
    fields = dict(line.split(":", 1) for line in lines)
    if "MemAvailable" not in fields:
        return None
    free = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        cached = dict(x.split() for x in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free
    # The kernel drops cached files before it refuses memory.
    left = free if limit == "max" else int(limit) - used + int(cached.get("inactive_file", 0))
    return max(min(free, left), 0)


def readable(num_bytes: float) -> str:
    """Returns a number of bytes in words.

    >>> readable(43_266_496_036), readable(512)
    ('43.3 GB', '512 bytes')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def require(needs: Mapping[str, int], advice: str, most: int | None = None) -> None:
    """Raises MemoryError if what is needed in all is more than `most` bytes.

    Args:
      needs: what the memory is for -> bytes.
      advice: a sentence that says what to use instead.
      most: None takes what is `available`, and checks nothing if that is not known.
    """
    most = available() if most is None else most
    total = sum(needs.values())
    if most is None or total <= most:
        return
    parts = ", ".join(f"{what} {readable(n)}" for what, n in needs.items())
    raise MemoryError(
        f"The run must fit into memory, of which {readable(most)} are free. "
        f"It needs {readable(total)}: {parts}. {advice}"
    )
