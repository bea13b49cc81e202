"""The draws of a run, in memory or in a directory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tree

from tfp_sgmcmc.internal import memory
from tfp_sgmcmc.sampling.loop import Position, as_tensors
from tfp_sgmcmc.sampling.result import Kept
from tfp_sgmcmc.storage.directory import RunDirectory
from tfp_sgmcmc.storage.npz import numpy_dtype

Describe = Callable[[Any], dict[str, Any]]


def check_memory(kept: Sequence[Kept], num_results: int, start: Position, on_disk: bool) -> None:
    """Raises MemoryError if a run does not fit into memory, and warns if it takes much of it.

    Counts draws in memory, and twice the state and kernel results, because a step copies them.
    """
    draws = sum(
        num_results * math.prod(k.variable.shape) * numpy_dtype(k.variable.dtype).itemsize
        for k in kept
    )
    leaves = [x for x in tree.flatten(tuple(start)) if x is not None and "GPU" not in x.device]
    carried = 2 * sum(x.dtype.size * x.shape.num_elements() for x in leaves)
    needs = {"the state and what the kernel remembers": carried}
    advice = "Run fewer chains, or choose a covariance that takes less than 'full'."
    if not on_disk:
        needs[f"{num_results} draws of all chains"] = draws
        advice = (
            "Write the draws to disk with directory=, keep fewer by num_steps_between_results, or "
            "run fewer chains."
        )
    memory.check_run(needs, advice, stacklevel=4)


class MemoryRecords:
    """Draws in memory, in arrays that are allocated once."""

    num_draws = 0

    def __init__(self, kept: Sequence[Kept], num_results: int):
        self._arrays = [
            np.empty([num_results, *k.variable.shape], numpy_dtype(k.variable.dtype)) for k in kept
        ]

    def append(self, rows: Sequence[np.ndarray]) -> None:
        stop = self.num_draws + len(rows[0])
        for array, new in zip(self._arrays, rows, strict=True):
            array[self.num_draws : stop] = new
        self.num_draws = stop

    def commit(self, nests: dict[str, Any], finish: bool = False) -> None:
        """Does nothing; draws in memory are not written."""

    def draws(self, count: int) -> list[Any]:
        """Returns the first `count` draws of each array."""
        return [array[:count] for array in self._arrays]


class CountedRecords(MemoryRecords):
    """A count of the draws that worker 0 keeps in its directory; holds no draws itself."""

    def __init__(self, kept: Sequence[Kept]):
        super().__init__(kept, 0)

    def append(self, rows: Sequence[np.ndarray]) -> None:
        self.num_draws += len(rows[0])


class DirectoryRecords:
    """Draws in a run's directory.

    Args:
      describe: kernel results -> entries of the fingerprint to write with each checkpoint, or None.
    """

    def __init__(self, kept: Sequence[Kept], run: RunDirectory, describe: Describe | None):
        self._kept, self._run, self._describe = kept, run, describe

    @property
    def num_draws(self) -> int:
        return self._run.num_draws

    def append(self, rows: Sequence[np.ndarray]) -> None:
        self._run.append(_grouped(self._kept, rows))

    def commit(self, nests: dict[str, Any], finish: bool = False) -> None:
        if self._describe is not None:
            self._run.add_to_fingerprint(self._describe(nests["results"]))
        self._run.commit(nests, finish)

    def draws(self, count: int) -> list[Any]:
        return [self._run.draws(k.group, k.name).first(count) for k in self._kept]


Records = MemoryRecords | DirectoryRecords


def open_records(
    run: RunDirectory,
    kept: Sequence[Kept],
    fingerprint: dict[str, Any],
    attributes: dict[str, Any],
    start: Position,
    describe: Describe | None = None,
) -> tuple[DirectoryRecords, Position]:
    """Opens the draws in a directory; returns them and the position, `start` for a new run.

    Raises:
      ValueError: the directory holds another run, or one whose chain became NaN or infinite.
    """
    variables = _grouped(kept, [k.variable for k in kept])
    if describe is not None and (before := run.saved()) is not None:
        # Results of another form belong to another kernel, which `run.start` refuses.
        with contextlib.suppress(ValueError):
            results = as_tensors(before.restore("results", start.results))
            fingerprint = fingerprint | describe(results)
    saved = run.start(variables, fingerprint, attributes)
    records = DirectoryRecords(kept, run, describe)
    if saved is None:
        return records, start
    if saved.restore("is_broken", np.bool_(False)):
        raise ValueError(
            f"The run in {run.path} cannot resume, because its chain became NaN or infinite after "
            f"{run.num_draws} results. Start another run with a smaller step_size."
        )
    restored = {name: saved.restore(name, nest) for name, nest in start._asdict().items()}
    return records, Position(**as_tensors(restored))


def _grouped(kept: Sequence[Kept], values: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Returns group -> name -> value."""
    groups: dict[str, dict[str, Any]] = {}
    for k, x in zip(kept, values, strict=True):
        groups.setdefault(k.group, {})[k.name] = x
    return groups
