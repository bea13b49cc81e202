"""Runs of `sample` on posteriors, and their table."""

from __future__ import annotations

import functools
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.common import command_line
from benchmarks.common.kept_results import kept_result
from benchmarks.common.tables import Table
from benchmarks.posteriordb import runs
from benchmarks.posteriordb.accuracy import Accuracy
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.runs import Run
from datasets.posteriordb import Moments


class Row(NamedTuple):
    """A posterior, start and dtype with what was found."""

    name: str
    start: str
    dtype: str
    dimension: int
    num_examples: int
    automatic: Run
    nuts: Run | None


def rows(
    posteriors: Mapping[str, Callable[[], Posterior]],
    reference_of: Callable[[str, Posterior], Moments],
    starts: Iterable[str],
    dtypes: Iterable[str],
    num_results: int,
    seed: int,
    nuts_seconds: float = 0.0,
    keep: str = "",
) -> Iterator[Row]:
    """Yields a row for each posterior, start and dtype; see the commands for the arguments."""
    tf.get_logger().setLevel("ERROR")
    for name, make in posteriors.items():
        posterior = make()
        reference = functools.cache(functools.partial(reference_of, name, posterior))
        options = name, posterior, reference, num_results, seed, nuts_seconds
        for start, dtype in itertools.product(starts, dtypes):
            of_run = f"{name}_{start}_{dtype}_{num_results}_draws_{nuts_seconds:g}_s_seed_{seed}"
            yield kept_result(keep, of_run, functools.partial(_row, *options, start, dtype), _read)


def _row(
    name: str,
    posterior: Posterior,
    reference: Callable[[], Moments],
    num_results: int,
    seed: int,
    nuts_seconds: float,
    start: str,
    dtype: str,
) -> Row:
    at = posterior.start(start, dtype, seed)
    found = runs.automatic(posterior, reference(), dtype, at, num_results, seed)
    other = None
    if nuts_seconds:
        at = posterior.start(start, dtype, seed, (runs.NUM_CHAINS,))
        options = dtype, at, num_results, seed, nuts_seconds
        other = runs.nuts(posterior, reference(), *options)
    dimension = sum(int(np.prod(shape)) for shape in posterior.shapes.values())
    size = len(tf.nest.flatten(posterior.data)[0])
    return Row(name, start, dtype, dimension, size, found, other)


def _read(row: list[Any]) -> Row:
    def run(found: list[Any] | None) -> Run | None:
        if found is None:
            return None
        sampler, is_trusted, flags, accuracy, seconds = found
        errors = None if accuracy is None else Accuracy(*accuracy)
        return Run(sampler, is_trusted, tuple(flags), errors, seconds)

    *start, automatic, nuts = row
    found = run(automatic)
    assert found is not None
    return Row(*start, found, run(nuts))


def picked(
    posteriors: Mapping[str, Callable[[], Posterior]], chosen: tuple[str, ...]
) -> dict[str, Callable[[], Posterior]]:
    """Returns those whose names are, or begin with, one of `chosen`; "all" picks all.

    Raises ValueError for an unknown name.
    """
    found = {}
    for x in chosen:
        fitting = {k: v for k, v in posteriors.items() if x in ("all", k) or k.startswith(x)}
        if not fitting:
            raise ValueError(
                f"posteriors must be all, or some of {', '.join(posteriors)}. Received: {x}."
            )
        found |= fitting
    return found


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
