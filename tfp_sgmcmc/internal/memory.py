"""Checks, before a run starts, that this machine has the memory that the run will take."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MUCH = 0.25  # of the free memory


def available() -> int | None:
    """Returns the bytes that new arrays on the host can take, or None if unknown.

    In a container it is the smaller of the machine's free memory and the rest of the limit.
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
    """Returns a number of bytes as text with a unit.

    >>> readable(43_266_496_036), readable(512)
    ('43.3 GB', '512 bytes')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def require(needs: Mapping[str, int], advice: str, most: int | None = None) -> None:
    """Raises MemoryError if the sum of `needs` exceeds `most` bytes.

    Args:
      needs: bytes by purpose.
      advice: a sentence about what to use instead.
      most: None stands for `available()`, and checks nothing if that is unknown.
    """
    most = available() if most is None else most
    total = sum(needs.values())
    if most is None or total <= most:
        return
    raise MemoryError(
        f"The run must fit into the free memory, {readable(most)}. "
        f"It needs {readable(total)}: {_parts(needs)}. {advice}"
    )


def check_run(needs: Mapping[str, int], advice: str, stacklevel: int) -> None:
    """Raises as `require` does, and warns if more than a quarter of the free memory is needed.

    `stacklevel` is the one for a warning in the caller.
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
