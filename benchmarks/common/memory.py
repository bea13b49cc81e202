"""Resident memory of a process. Linux only."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


def start_peak() -> float:
    """Resets the peak of resident memory to the present use; returns that use in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> float:
    """Returns the peak of resident memory in MB (10^6 bytes)."""
    return _status("VmHWM")


def in_new_process(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what a module's function returns in a new process, which holds nothing else."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def _status(name: str) -> float:
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024 / 1e6
