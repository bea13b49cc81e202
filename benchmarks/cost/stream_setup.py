"""The set-up of `sample` on data in files, as the number of rows grows.

Linear regression on 20 features in memory-mapped `.npy` files, with a pool of at most 50,000 rows.
Larger data read the same files several times a pass. Each row of the table is a new process. It
gives

  N        rows,
  GB       bytes that a pass reads,
  passes   over the files,
  pool     rows in memory afterwards,
  first    processor seconds of `draw_pool`, with compilation,
  again    of a second call for the same target, whose programs for blocks are compiled,
  wall     seconds of the second call,
  read     processor seconds of as many passes that only read,
  gradients  of as many passes that compute a gradient,
  ratio    of again to gradients,
  MB       peak of resident memory.

Processor seconds hardly depend on other work on the machine. Linux only.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.accuracy.streams import gradient, seconds_of_pass, stream
from benchmarks.common import command_line
from benchmarks.common.memory import in_new_process, peak, start_peak
from benchmarks.common.regression_files import write
from benchmarks.common.tables import Table

DIM, _POOL_BYTES, _MOST_ROWS = 20, 4_200_000, 1_000_000  # rows in files


class Row(NamedTuple):
    """A row of the table; see the module."""

    num_examples: int
    gigabytes: float
    passes: int
    num_rows: int
    first: float
    again: float
    wall: float
    read: float
    gradients: float
    ratio: float
    megabytes: float


def processor_seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = call()
    return time.process_time() - began, found


def measure(folder: Path, num_examples: int) -> Row:
    """Measures in this process."""
    in_files = min(num_examples, _MOST_ROWS)
    copies = num_examples // in_files
    start_peak()
    target, dataset, _ = stream(folder, "linear", in_files, _POOL_BYTES, copies)
    start = tf.zeros([DIM])
    first, _ = processor_seconds(lambda: sgmcmc.draw_pool(target, start))
    began = time.perf_counter()
    again, (_, report) = processor_seconds(lambda: sgmcmc.draw_pool(target, start))
    wall, megabytes, passes = time.perf_counter() - began, peak(), len(report.passes)
    slope = gradient("linear", start)
    seconds_of_pass(dataset.take(2), slope)  # which compiles
    read, gradients = (
        passes * processor_seconds(lambda f=use: seconds_of_pass(dataset, f))[0]
        for use in (lambda x, y: None, slope)
    )
    return Row(
        copies * in_files, copies * in_files * 4 * (DIM + 1) / 1e9, passes, report.num_rows, first,
        again, wall, read, gradients, again / gradients, megabytes,
    )  # fmt: skip


def run(
    *, num_examples: tuple[int, ...] = (100_000, 1_000_000, 10_000_000, 40_000_000)
) -> Iterator[Row]:
    """Measures the set-up.

    Args:
      num_examples: N, at most 1,000,000 or a multiple of that.
    """
    for total in num_examples:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            options = "linear", "shuffled", min(total, _MOST_ROWS), DIM, 20, 2
            in_new_process(write, folder, *options)
            yield in_new_process(measure, folder, total)


def show(rows: Iterator[Row]) -> Table:
    """Prints the table."""
    columns = {
        "N": "d", "GB": ".3g", "passes": "d", "pool": "d", "first": ".1f", "again": ".1f",
        "wall": ".1f", "read": ".1f", "gradients": ".1f", "ratio": ".2f", "MB": ".0f",
    }  # fmt: skip
    return command_line.print_table(columns, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="cost.stream_setup")
