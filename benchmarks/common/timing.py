"""Timing of several sides in turn, so that other work on the machine slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

Side = TypeVar("Side", bound=Hashable)
Found = TypeVar("Found")


def seconds(run: Callable[[], Any]) -> float:
    """Returns the wall-clock seconds of a call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def processor_seconds(run: Callable[[], Found]) -> tuple[float, Found]:
    """Returns the processor seconds of a call, all threads together, and what it returned."""
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


def in_turn(
    sides: Mapping[Side, Callable[[], float]],
    repeats: int,
    after_first: Callable[[], Any] = lambda: None,
) -> dict[Side, list[float]]:
    """Returns what each side measured in each repeat.

    A first round is not counted, as it compiles. `after_first` is called after it.
    """
    for measure in sides.values():
        measure()
    after_first()
    found: dict[Side, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, measure in sides.items():
            found[name].append(measure())
    return found
