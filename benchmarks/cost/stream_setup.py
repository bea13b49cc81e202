"""The set-up of `sample` on data in files, as rows and features grow.

Linear regression in memory-mapped `.npy` files, with a pool of at most 50,000 rows. Larger data
read the same files several times a pass. Each row of the table is a new process. It gives

  D        features, which are also the parameters,
  N        rows,
  GB       bytes that a pass reads,
  passes   over the files,
  pool     rows in memory afterwards,
  first    processor seconds of `draw_pool`, with compilation,
  again    of a later call for the same target, whose programs for blocks are compiled,
  wall     seconds of that call,
  read     processor seconds of as many passes that only read,
  gradients  of as many passes that compute a gradient,
  their wall  seconds of those,
  ratio    of again to gradients,
  wall ratio  of wall to their wall,
  MB       peak of resident memory up to the second call, and before the target was made.

Times other than `first`, and ratios, are medians of `--repeats` rounds, in each of which they are
measured in turn; data of more than 1,000,000 rows have one round. A second table has slopes of a
line through the logarithms of `again` and `gradients` over those of N, between the smallest and the
largest N and between the last two. Processor seconds grow by a few times where others use the
memory of the machine, but hardly their ratio. Linux only.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.accuracy.streams import gradient, seconds_of_pass, stream
from benchmarks.common import command_line
from benchmarks.common.memory import in_new_process, peak, start_peak
from benchmarks.common.regression_files import write
from benchmarks.common.tables import Table
from benchmarks.common.timing import processor_seconds

_POOL_ROWS, _MOST_ROWS = 50_000, 1_000_000  # rows in files


class Row(NamedTuple):
    """A row of the table; see the module."""

    num_features: int
    num_examples: int
    gigabytes: float
    passes: int
    num_rows: int
    first: float
    again: float
    wall: float
    read: float
    gradients: float
    their_wall: float
    ratio: float
    wall_ratio: float
    megabytes: float
    megabytes_before: float


def measure(folder: Path, num_examples: int, num_features: int, repeats: int) -> Row:
    """Measures in this process."""
    in_files = min(num_examples, _MOST_ROWS)
    copies, row_bytes = num_examples // in_files, 4 * (num_features + 1)
    before = start_peak()
    target, dataset, _ = stream(folder, "linear", in_files, _POOL_ROWS * row_bytes, copies)
    start = tf.zeros([num_features])
    first, (_, report) = processor_seconds(lambda: sgmcmc.draw_pool(target, start))
    megabytes, passes = peak(), len(report.passes)
    slope = gradient("linear", start)
    seconds_of_pass(dataset.take(2), slope)  # which compiles
    rounds = []
    for _ in range(repeats if num_examples <= _MOST_ROWS else 1):
        began = time.perf_counter()
        again, _ = processor_seconds(lambda: sgmcmc.draw_pool(target, start))
        wall = time.perf_counter() - began
        read, _ = processor_seconds(lambda: seconds_of_pass(dataset, lambda x, y: None))
        gradients, their_wall = processor_seconds(lambda: seconds_of_pass(dataset, slope))
        times = np.array([read, gradients, their_wall]) * passes
        rounds.append((again, wall, *times, again / times[1], wall / times[2]))
    return Row(
        num_features, copies * in_files, copies * in_files * row_bytes / 1e9, passes,
        report.num_rows, first, *np.median(rounds, axis=0).tolist(), megabytes, before,
    )  # fmt: skip


def run(
    *,
    num_examples: tuple[int, ...] = (100_000, 1_000_000, 10_000_000),
    num_features: tuple[int, ...] = (10, 100),
    repeats: int = 3,
    most_numbers: int = 200_000_000,
) -> Iterator[Row]:
    """Measures the set-up.

    Args:
      num_examples: N, at most 1,000,000 or a multiple of that.
      num_features: D.
      repeats: rounds of up to 1,000,000 rows.
      most_numbers: N D, beyond which a case is left out.
    """
    for dim in num_features:
        for total in (n for n in num_examples if n * dim <= most_numbers):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                options = "linear", "shuffled", min(total, _MOST_ROWS), dim, 20, 2
                in_new_process(write, folder, *options)
                yield in_new_process(measure, folder, total, dim, repeats)


def show(rows: Iterator[Row]) -> dict[str, Table]:
    """Prints the table, and the slopes of lines through logarithms of seconds."""
    columns = {
        "D": ">3d", "N": ">8d", "GB": ">6.3g", "passes": "d", "pool": "d", "first": ">5.1f",
        "again": ">5.1f", "wall": ">5.1f", "read": ">5.1f", "gradients": ">5.1f",
        "their wall": ">5.1f", "ratio": ".2f", "wall ratio": ".2f", "MB": ".0f", "before": ".0f",
    }  # fmt: skip
    seen = list[Row]()

    def kept() -> Iterator[Row]:
        for row in rows:
            seen.append(row)
            yield row

    table = command_line.print_table(columns, kept())
    slopes = []
    for dim in dict.fromkeys(row.num_features for row in seen):
        of_dim = [row for row in seen if row.num_features == dim]
        if len(of_dim) > 1:
            counts = np.log([row.num_examples for row in of_dim])
            times = [np.log([row.again, row.gradients]) for row in of_dim]
            fitted = np.polyfit(counts, times, 1)[0]
            last = np.polyfit(counts[-2:], times[-2:], 1)[0]
            slopes.append((dim, *fitted, *last))
    if not slopes:
        return {"": table}
    names = ["again", "gradients", "again, last two N", "gradients, last two N"]
    fits = command_line.print_table({"D": "d"} | dict.fromkeys(names, ".2f"), slopes)
    return {"": table, "Slopes of the logarithms of seconds over that of N": fits}


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="cost.stream_setup")
