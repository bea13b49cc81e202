"""Memory that a run will take, compared with what this machine has, before it is spent."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MUCH = 0.25  # of the free memory


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
    raise MemoryError(
        f"The run must fit into memory, of which {readable(most)} are free. "
        f"It needs {readable(total)}: {_parts(needs)}. {advice}"
    )


def check_run(needs: Mapping[str, int], advice: str, stacklevel: int) -> None:
    """Raises as `require` does, and warns if more than a quarter of the free memory is needed.

    `stacklevel` is that of a warning in the caller.
    """
    require(needs, advice)
    free, total = available(), sum(needs.values())
    if free is not None and total > _MUCH * free:
        warnings.warn(
            f"The run takes {readable(total)} of the {readable(free)} of memory that are free: "
            f"{_parts(needs)}. {advice}",
            stacklevel=stacklevel + 1,
        )


def _parts(needs: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {readable(n)}" for what, n in needs.items())
