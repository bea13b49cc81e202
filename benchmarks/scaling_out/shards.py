"""Weak scaling of runs in shards: one shard on one worker, and two shards on two workers.

Each engine runs them twice. The first run pays for starting the workers. In the second they are
there, and each shard compiles anew (with threads, shards of one run share what they compile).

  wall    seconds of the call,
  start   of these, the engine's own in the first run: the wall-clock time without the longest
          compilation and the longest shard's steps (where workers are processes, they import
          TensorFlow in it),
  steps   thousands of steps of all chains a second, while a shard takes them,
  weak    the steps a second of two workers, divided by twice those of one,
  model   T / (T + start + compile) for a shard whose steps take an hour, by this row's numbers.

Other work on the machine slows all of it, so compare rows of one run.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from benchmarks.common import command_line
from benchmarks.scaling_out import problem

ENGINES = ("threads", "processes", "dask")
HOUR = 3600.0


class Row(NamedTuple):
    """An engine with some workers; see above."""

    engine: str
    workers: int
    first_wall: float
    start: float
    second_wall: float
    compile: float
    steps: float
    weak: float
    model: float


def processes(
    workers: int, prepare: Callable[[], None] | None = None
) -> concurrent.futures.ProcessPoolExecutor:
    """Returns an executor with new processes, which call `prepare` first."""
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(workers, context, prepare)


@contextlib.contextmanager
def executor(engine: str, workers: int) -> Generator[Any]:
    """Yields what `sample` takes as `executor`; None means threads."""
    if engine == "threads":
        yield None
    elif engine == "processes":
        with processes(workers) as pool:
            yield pool
    else:
        import dask
        import distributed

        with (
            dask.config.set({"distributed.worker.daemon": False}),
            distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None,
                silence_logs="CRITICAL", memory_limit=0,
            ) as cluster,
            distributed.Client(cluster) as client,
        ):  # fmt: skip
            yield client


def rows(
    *, engines: tuple[str, ...] = ENGINES, chains: int = 16, num_results: int = 200
) -> Iterator[Row]:
    """Yields rows for one and for two workers.

    Args:
      engines: what runs the shards.
      chains: chains of a shard.
      num_results: results of a chain, ten steps each.
    """
    for engine in engines:
        rate_of_one = 0.0
        for workers in (1, 2):
            began = time.perf_counter()
            with executor(engine, workers) as pool:
                kernel = problem.make_kernel() if pool is None else problem.make_kernel
                walls, timings = [], []
                for _ in range(2):
                    result = problem.sample(kernel, pool, workers, chains, num_results)
                    walls.append(time.perf_counter() - began)
                    timings.append(result.shard_timings)
                    began = time.perf_counter()
            compiled = [max(t.compile_seconds for t in shards) for shards in timings]
            taken = [max(t.seconds for t in shards) for shards in timings]
            rate = chains * sum(t.steps_per_second for t in timings[1])
            rate_of_one = rate_of_one or rate
            start = max(0.0, walls[0] - compiled[0] - taken[0])
            yield Row(
                engine,
                workers,
                walls[0],
                start,
                walls[1],
                compiled[1],
                rate / 1000,
                rate / (workers * rate_of_one),
                HOUR / (HOUR + start + compiled[1]),
            )


def show(coming: Iterator[Row]) -> None:
    columns = {"engine": "9s", "workers": "d", "wall, s": ".1f", "start": ".1f"}
    columns |= {"again, s": ".1f", "compile": ".1f", "steps, k/s": ".0f", "weak": ".2f"}
    command_line.print_table({**columns, "model": ".4f"}, coming)


def main() -> None:
    command_line.main(__doc__, rows, show, choices={"engines": ENGINES})


if __name__ == "__main__":
    main()
