"""A simulated run in 10,000 shards whose workers fail, beside the model of its efficiency.

A shard has T seconds of steps. Its worker starts, compiles, and writes a checkpoint every tau
seconds. Workers fail at random, after MTBF seconds of work on average. A shard that lost its worker
pays start and compilation again on another, and repeats its steps since the last checkpoint. So
the share of the workers' time that is spent on steps which count is about

    T / (T + start + compile) / (1 + (tau / 2 + start + compile) / MTBF)

where the number of workers does not appear: a failure costs its own shard alone. The wall-clock
time of the run is the workers' time divided by their number, plus up to one shard's time at the
end, when no shard is left for most of them. The table has the efficiency as simulated and by the
model, and the wall-clock time as simulated beside all work divided by the number of workers. The
command fails if the two efficiencies differ by more than 0.005.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import command_line

_LARGEST_DIFFERENCE = 0.005


class Costs(NamedTuple):
    """Seconds of the parts of a shard; see above."""

    steps: float
    start: float
    compile: float
    checkpoint: float


class Row(NamedTuple):
    """A run: its workers, what happened to it, and the model beside it."""

    workers: int
    mtbf_hours: float
    failures: int
    simulated: float
    model: float
    hours: float
    ideal_hours: float


def efficiency(costs: Costs, mtbf: float) -> float:
    """Returns the model's share of the workers' time that is spent on steps which count."""
    begun = costs.start + costs.compile
    lost = (costs.checkpoint / 2 + begun) / mtbf
    return costs.steps / (costs.steps + begun) / (1 + lost)


def busy_seconds(
    costs: Costs, mtbf: float, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Returns the time that each of `count` shards keeps a worker busy, and the failures."""
    begun = costs.start + costs.compile
    busy, done = np.zeros(count), np.zeros(count)
    left, failures = np.arange(count), 0
    while len(left):
        until_failure = rng.exponential(mtbf, len(left))
        needed = begun + costs.steps - done[left]
        fails = until_failure < needed
        busy[left] += np.minimum(until_failure, needed)
        left, since = left[fails], until_failure[fails] - begun
        # Steps since the last checkpoint are lost, and all of a start that did not end.
        done[left] += np.maximum(since // costs.checkpoint, 0) * costs.checkpoint
        failures += len(left)
    return busy, failures


def wall_seconds(busy: np.ndarray, workers: int) -> float:
    """Returns when the last shard ends if each worker takes the next shard when it is free."""
    free = [0.0] * min(workers, len(busy))
    for seconds in busy:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def rows(
    *,
    shards: int = 10_000,
    workers: tuple[int, ...] = (10, 100, 1000, 10_000),
    mtbf_hours: tuple[float, ...] = (1.0, 10.0, 100.0),
    steps: float = 3600.0,
    start: float = 10.0,
    compile: float = 10.0,
    checkpoint: float = 60.0,
    seed: int = 0,
) -> Iterator[Row]:
    """Yields a row for each number of workers and each mean time between failures.

    Args:
      shards: number of shards.
      workers: numbers of workers.
      mtbf_hours: mean times between two failures of one worker, in hours.
      steps: T, the seconds of a shard's steps.
      start: seconds until a new worker has imported what it needs.
      compile: seconds of compilation.
      checkpoint: seconds between two checkpoints.
      seed: seed of the failures.
    """
    costs = Costs(steps, start, compile, checkpoint)
    for number, hours in enumerate(mtbf_hours):
        mtbf = 3600 * hours
        for count in workers:
            rng = np.random.default_rng([seed, number, count])
            busy, failures = busy_seconds(costs, mtbf, shards, rng)
            yield Row(
                count,
                hours,
                failures,
                shards * steps / busy.sum(),
                efficiency(costs, mtbf),
                wall_seconds(busy, count) / 3600,
                busy.sum() / count / 3600,
            )


def show(coming: Iterator[Row]) -> None:
    """Prints the table; raises SystemExit if the model is off."""
    found: list[Row] = []

    def lines() -> Iterator[Any]:
        for row in coming:
            found.append(row)
            yield row

    columns = {"workers": "d", "MTBF, h": ".0f", "failures": "d", "efficiency": ".4f"}
    columns |= {"model": ".4f", "wall, h": ".1f", "work / workers": ".1f"}
    command_line.print_table(columns, lines())
    bad = [row for row in found if abs(row.simulated - row.model) > _LARGEST_DIFFERENCE]
    if bad:
        raise SystemExit(f"The model is off by more than {_LARGEST_DIFFERENCE} in {len(bad)} rows.")


def main() -> None:
    command_line.main(__doc__, rows, show)


if __name__ == "__main__":
    main()
