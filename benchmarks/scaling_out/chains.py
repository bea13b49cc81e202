"""64 chains on one machine: one program on one core, one program on all cores, and shards.

Each side has a process of its own, which waits while another one runs. "one core" is a process that
is held to one core before TensorFlow makes its threads. "one thread" is a process that calls
`tf.config.threading.set_intra_op_parallelism_threads(1)` first, so that an operation of one program
does not spread over the cores that other programs are for. "processes" have one such process for
each shard. Sides run in turn. The posterior is that of the weak scaling (logistic regression,
D = 50, n = 500).

  processor  seconds that all threads of the process were busy, waiting threads of XLA included
             (nan for processes of its own),
  wall       seconds on the clock,
  busy       processor / wall, the cores that a side takes,
  rate       thousands of steps of all chains a second, with the least and most of the repeats,
  / core     the rate divided by that of one program on one core,
  / program  the rate divided by that of one program on all cores.

Processor and wall-clock seconds are those of a long run less those of a run of a tenth as many
steps, so that compilation cancels. Numbers are medians of the repeats, and ratios those of medians.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from benchmarks.common import command_line
from benchmarks.common.environment import use_one_core
from benchmarks.common.tables import Table
from benchmarks.common.timing import in_turn

STEPS = 10  # of each result


class Side(NamedTuple):
    """A way to run the chains.

    Attributes:
      name: the name of the row.
      shards: number of equal shards.
      prepare: what a process does before TensorFlow counts the cores, if anything.
      has_processes: whether each shard runs in a process, which prepares itself.
    """

    name: str
    shards: int
    prepare: Callable[[], None] | None = None
    has_processes: bool = False


def serve(connection: Any, side: Side, chains: int) -> None:
    """Runs chains for as many results as it is sent, and sends processor and wall-clock seconds."""
    if side.prepare is not None and not side.has_processes:
        side.prepare()
    from benchmarks.scaling_out import problem, shards  # TensorFlow counts the cores

    with contextlib.ExitStack() as stack:
        pool = None
        if side.has_processes:
            pool = stack.enter_context(shards.processes(side.shards, side.prepare))
        kernel = problem.make_kernel if pool else problem.make_kernel()
        while num_results := connection.recv():
            wall, processor = time.perf_counter(), time.process_time()
            problem.sample(kernel, pool, side.shards, chains // side.shards, num_results)
            busy = math.nan if pool else time.process_time() - processor
            connection.send((busy, time.perf_counter() - wall))


def take_one_thread() -> None:
    """Gives each operation of this process one thread."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)


@contextlib.contextmanager
def process(side: Side, chains: int) -> Generator[Callable[[int], tuple[float, float]]]:
    """Yields a function of the number of results that measures a side in a process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(
        target=serve, args=(there, side, chains), daemon=not side.has_processes
    )
    worker.start()
    there.close()  # so that `recv` ends if the worker does

    def measure(num_results: int) -> tuple[float, float]:
        here.send(num_results)
        return here.recv()

    try:
        yield measure
        here.send(0)
        worker.join()
    finally:
        worker.kill()


def rows(
    *, chains: int = 64, shards: int = 2, num_results: int = 1_000, repeats: int = 5
) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of the table.

    Args:
      chains: number of chains, a multiple of `shards`.
      shards: number of shards of the third side.
      num_results: results of a chain in the long run, ten steps each.
      repeats: number of runs of each side that count.
    """
    sides = [
        Side("one program, one core", 1, use_one_core),
        Side("one program, all cores", 1),
        Side(f"{shards} shards, all cores", shards),
        Side("one program, one thread", 1, take_one_thread),
        Side(f"{shards} shards, one thread", shards, take_one_thread),
        Side(f"{shards} processes, one thread", shards, take_one_thread, True),
    ]
    few = num_results // 10
    with contextlib.ExitStack() as stack:
        measures = {side: stack.enter_context(process(side, chains)) for side in sides}

        def times(side: Side) -> Callable[[], Any]:
            def measure() -> tuple[float, float]:
                pairs = zip(measures[side](num_results), measures[side](few), strict=True)
                processor, wall = (long - short for long, short in pairs)
                return processor, wall

            return measure

        found: dict[Side, list[Any]] = in_turn({side: times(side) for side in sides}, repeats)
    steps = chains * STEPS * (num_results - few)
    rates = {side: [steps / wall / 1000 for _, wall in pairs] for side, pairs in found.items()}
    medians = {side: statistics.median(of_side) for side, of_side in rates.items()}
    for side, pairs in found.items():
        processor, wall = (statistics.median(x) for x in zip(*pairs, strict=True))
        yield (
            side.name,
            processor,
            wall,
            processor / wall,
            medians[side],
            min(rates[side]),
            max(rates[side]),
            *(medians[side] / medians[other] for other in sides[:2]),
        )


def show(coming: Iterator[tuple[Any, ...]]) -> Table:
    columns = {"side": "22s", "processor s": ".1f", "wall s": ".1f", "busy": ".2f"}
    columns |= {"rate, k/s": ".0f", "least": ".0f", "most": ".0f"}
    return command_line.print_table({**columns, "/ core": "6.2f", "/ program": "9.2f"}, coming)


def main() -> None:
    command_line.main(__doc__, rows, show, table="scaling_out.chains")


if __name__ == "__main__":
    main()
