"""`sample(target, initial_state, num_results)` on Stan's posteriordb, with nothing prepared.

The posteriors are those of posteriordb that have reference draws and data, in their units (dollars,
years, grams), with a start that knows nothing: zeros, or uniform in (-2, 2) as Stan starts, in
unconstrained coordinates. For each posterior, start and dtype the table gives

  D, N     numbers of parameters and of rows,
  sampler  what was chosen, or "raised",
  trusted  `result.is_trusted`, and whether the draws are right,
  flags    how many, by grade,
  mean     the error of the means of the worst parameter, in the reference's standard deviations,
  beyond   what is left of it beyond four standard errors of both numbers of draws,
  sd       the least and the largest ratio of standard deviations,
  5 %      the worst error of the 5 % quantiles, in standard deviations,
  95 %     that of the 95 % quantiles,
  ESS      effective samples of the median and the worst parameter, at most the number of draws,
  s        processor seconds of the whole call,
  NUTS     with `--nuts-seconds`: whether TensorFlow Probability's NUTS with dual averaging of the
           step is right from the same start, with as many steps of adaptation as draws; R-hat above
           1.01 takes away the trust, and
  NUTS s   its processor seconds.

Right are means within 0.05 standard deviations, ratios of standard deviations within 0.05, and
quantiles within 0.1 standard deviations, each beyond four standard errors. The command fails if a
run is trusted and wrong.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.common import command_line
from benchmarks.common.tables import Table
from benchmarks.posteriordb import hierarchies, mixtures, processes, regressions, runs, series
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.runs import Run
from datasets import posteriordb_reference

ALL: dict[str, Callable[[], Posterior]] = {
    **regressions.POSTERIORS,
    **hierarchies.POSTERIORS,
    **series.POSTERIORS,
    **processes.POSTERIORS,
    **mixtures.POSTERIORS,
}
STARTS, DTYPES = ("zeros", "uniform"), ("float64", "float32")


class Row(NamedTuple):
    """A posterior, start and dtype with what was found."""

    name: str
    start: str
    dtype: str
    dimension: int
    num_examples: int
    automatic: Run
    nuts: Run | None


def run(
    *,
    posteriors: tuple[str, ...] = ("all",),
    start: tuple[str, ...] = STARTS,
    dtype: tuple[str, ...] = DTYPES,
    num_results: int = 1000,
    seed: int = 0,
    nuts_seconds: float = 0.0,
) -> Iterator[Row]:
    """Yields a row for each posterior, start and dtype.

    Args:
      posteriors: names, or beginnings of names; "all" for all.
      start: zeros, uniform.
      dtype: float64, float32.
      num_results: draws of each chain.
      seed: seed of the runs, and of the uniform starts.
      nuts_seconds: processor seconds that NUTS may take; 0 leaves it out.
    """
    tf.get_logger().setLevel("ERROR")
    for name in names(posteriors):
        posterior = ALL[name]()
        reference = posteriordb_reference(posterior.reference or name)
        for kind in start:
            for precision in dtype:
                at = posterior.start(kind, precision, seed)
                found = runs.automatic(posterior, reference, precision, at, num_results, seed)
                other = None
                if nuts_seconds:
                    at = posterior.start(kind, precision, seed, (runs.NUM_CHAINS,))
                    options = precision, at, num_results, seed, nuts_seconds
                    other = runs.nuts(posterior, reference, *options)
                dimension = sum(int(np.prod(shape)) for shape in posterior.shapes.values())
                size = len(tf.nest.flatten(posterior.data)[0])
                yield Row(name, kind, precision, dimension, size, found, other)


def names(chosen: tuple[str, ...]) -> list[str]:
    """Returns names of posteriors; raises ValueError for an unknown one."""
    found = []
    for x in chosen:
        fitting = [name for name in ALL if x in ("all", name) or name.startswith(x)]
        if not fitting:
            raise ValueError(f"posteriors must be all, or some of {', '.join(ALL)}. Received: {x}.")
        found += fitting
    return [*dict.fromkeys(found)]


COLUMNS = dict.fromkeys(
    (
        "", "start", "dtype", "D", "N", "sampler", "trusted", "flags", "mean", "beyond", "sd",
        "5 %", "95 %", "ESS", "s", "NUTS", "NUTS s",
    ),
    "",
)  # fmt: skip


def show(rows: Iterator[Row]) -> Table:
    """Prints what was said of each run, and the table; exits with an error for a wrong run."""
    done = []
    for row in rows:
        done.append(row)
        found = row.automatic
        print(f"{row.name}, {row.start}, {row.dtype}: {found.sampler}, {found.verdict}", flush=True)
        print(" ", *cells(row)[8:], flush=True)
        for flag in found.flags:
            print(textwrap.fill(flag[:1000], 100, initial_indent="  ", subsequent_indent="    "))
    print()
    table = command_line.print_table(COLUMNS, [cells(row) for row in done])
    both = [row for row in done if row.automatic.is_trusted and row.automatic.is_right]
    failed = [row for row in done if row.automatic.is_trusted and not row.automatic.is_right]
    print(f"\n{len(done)} runs: {len(both)} trusted and right, {len(failed)} trusted and wrong.")
    if failed:
        which = ", ".join(f"{row.name} ({row.start}, {row.dtype})" for row in failed)
        raise SystemExit(f"These are trusted and wrong: {which}.")
    return table


def cells(row: Row) -> list[str]:
    """Returns the line of the table."""
    found, other = row.automatic, row.nuts
    head = [row.name, row.start, row.dtype, str(row.dimension), str(row.num_examples)]
    tail = ["", ""] if other is None else [other.verdict, f"{other.seconds:.0f}"]
    seconds = f"{found.seconds:.0f}"
    if (a := found.accuracy) is None:
        return [*head, found.sampler, found.verdict, found.grades, *[""] * 6, seconds, *tail]
    return [
        *head,
        found.sampler,
        found.verdict,
        found.grades,
        f"{a.mean:.3f}",
        f"{max(a.mean_excess, 0.0):.3f}",
        f"{a.least:.3f} {a.largest:.3f}",
        f"{a.low:.3f}",
        f"{a.high:.3f}",
        f"{a.effective:.0f} {a.fewest:.0f}",
        seconds,
        *tail,
    ]


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="posteriordb")
