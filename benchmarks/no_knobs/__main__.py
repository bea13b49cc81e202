"""Draws of `sample(target, initial_state, num_results)`, with no argument but the target.

For each posterior the table gives D and N, and for the automatic run

  took     n and h of control variates of second order, or the sampler, with "*" if the run was
           flagged,
  mean     the error of the posterior means in posterior standard deviations, as root mean square
           over the parameters, and after "~" what the finite numbers of draws explain of it,
  beyond   what is left of it beyond that (errors add in squares),
  sd       the ratio of the standard deviations to the exact ones: their mean, the least, the
           largest,
  Laplace  the error of the means and the mean ratio of Laplace's approximation itself. Where these
           are far from 0 and 1, small errors show that the shape is resolved,
  s        seconds of the whole call, with compilation and pilot, and of the sampling alone,
  ESS      effective samples of the median parameter, at most the number of draws,
  ms       processor milliseconds for one of them, sampling alone,
  by hand  the same for the best setting by hand, and
  x        the ratio of the two.

By hand, an expert who knows the exact moments has tried HMC on all data, in coordinates in which
the posterior has mean 0 and covariance I, and control variates of second order, whitened, each over
a grid of settings. The best is the cheapest one that meets the aims. Exact moments come from
quadrature or a closed form where there is one, and otherwise from long HMC.

The aims are means within 0.03 standard deviations, root mean square, beyond what the numbers of
draws explain, and standard deviations within 2 % on average. The command fails if a run misses them
and does not say so: it has neither flags nor warnings. Costs are printed only. Networks, through
`fit`, have the command `python -m benchmarks.no_knobs.networks`.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.common import command_line
from benchmarks.common.kept_results import kept_result
from benchmarks.common.tables import Table
from benchmarks.no_knobs import automatic
from benchmarks.no_knobs.accuracy import Accuracy
from benchmarks.no_knobs.automatic import Automatic
from benchmarks.no_knobs.by_hand import ByHand, all_settings
from benchmarks.no_knobs.hostile import HOSTILE
from benchmarks.no_knobs.posteriors import POSTERIORS
from benchmarks.no_knobs.problems import Problem
from benchmarks.no_knobs.references import Reference, reference

QUICK = ("Poisson", "linear")
QUICK_RESULTS = 600
ALL = {**POSTERIORS, **HOSTILE}


class Row(NamedTuple):
    """A posterior with all that was found."""

    name: str
    problem: Problem
    reference: Reference
    automatic: Automatic
    by_hand: list[ByHand]  # the best one first


def run(
    *,
    posteriors: tuple[str, ...] = ("table",),
    num_results: int = 2500,
    seed: int = 0,
    hand_seconds: float = 2.0,
    folder: str = "",
    kept: str = "",
    quick: bool = False,
) -> Iterator[Row]:
    """Yields a row for each posterior.

    Args:
      posteriors: names; "table" for the posteriors of the table, "hostile" for those that were
        made to break it, "all" for both.
      num_results: draws of each chain.
      hand_seconds: processor seconds for each setting by hand; 0 tries none.
      folder: keeps the exact moments, which a later call reads again.
      kept: a folder that keeps all that was found of each posterior, so that a command that was cut
        off goes on from there. Only for one state of the program.
      quick: two small posteriors, without settings by hand.
    """
    tf.get_logger().setLevel("ERROR")
    if quick:
        posteriors, num_results, hand_seconds = QUICK, QUICK_RESULTS, 0.0
    for name in names(posteriors):
        problem, file = ALL[name](), re.sub(r"\W+", "_", name)
        exact = reference(problem, Path(folder, file + ".npz") if folder else None)
        if not exact.is_good:
            print(f"{name}: {exact}", flush=True)
        of_run = f"{file}_{num_results}_draws_{hand_seconds:g}_s_seed_{seed}"
        run_both = functools.partial(both, problem, exact, num_results, seed, hand_seconds)
        yield Row(name, problem, exact, *kept_result(kept, of_run, run_both, read))


def both(
    problem: Problem, exact: Reference, num_results: int, seed: int, hand_seconds: float
) -> tuple[Automatic, list[ByHand]]:
    """Returns what was found without settings, and by hand unless `hand_seconds` is 0."""
    found = automatic.run(problem, exact, num_results, seed, hand_seconds)
    return found, all_settings(problem, exact, hand_seconds) if hand_seconds else []


def read(row: list[Any]) -> tuple[Automatic, list[ByHand]]:
    """Returns what `both` returned, of the lists in a file."""
    (*head, flags, judged, size, whole, part, cost), by_hand = row
    accuracy = None if judged is None else Accuracy(*judged)
    found = Automatic(*head, tuple(flags), accuracy, size, whole, part, cost)
    return found, [ByHand(how, x, None if a is None else Accuracy(*a)) for how, x, a in by_hand]


def names(chosen: tuple[str, ...]) -> list[str]:
    """Returns names of posteriors; raises ValueError for an unknown one."""
    groups = {"table": [*POSTERIORS], "hostile": [*HOSTILE], "all": [*ALL]}
    found = [name for x in chosen for name in groups.get(x, [x])]
    unknown = [name for name in found if name not in ALL]
    if unknown:
        raise ValueError(
            f"posteriors must be some of {', '.join([*groups, *ALL])}. "
            f"Received: {', '.join(unknown)}."
        )
    return found


COLUMNS = dict.fromkeys(
    ("", "D", "N", "took", "mean", "beyond", "sd", "Laplace", "s", "ESS", "ms", "by hand", "x"), ""
)


def show(rows: Iterator[Row]) -> dict[str, Table]:
    """Prints the tables and the flags; returns the tables.

    Exits with an error if a run is wrong and does not say so.
    """
    done = []
    for row in rows:
        done.append(row)
        for line in lines(row):
            print(line, flush=True)
    tables = {}
    for title, group in (("Posteriors", POSTERIORS), ("Made to break such a run", HOSTILE)):
        if those := [cells(row) for row in done if row.name in group]:
            print(f"\n{title}")
            tables[title] = command_line.print_table(COLUMNS, those)
    failed = [row.name for row in done if verdict(row).startswith("FAIL")]
    flagged = [row.name for row in done if row.automatic.flags]
    print(f"\n{len(done)} posteriors: {len(flagged)} flagged, {len(failed)} wrong and not flagged.")
    if failed:
        raise SystemExit(f"These are wrong and not flagged: {', '.join(failed)}.")
    return tables


def verdict(row: Row) -> str:
    """Returns whether a run is right, in a few words."""
    found = row.automatic
    if found.fails:
        return "FAIL: " + ("crashed" if found.accuracy is None else "wrong and not flagged")
    right = "refused" if found.accuracy is None else "right"
    if found.accuracy is not None and not found.accuracy.is_good:
        right = "wrong"
    if not found.flags:
        return right
    return f"flagged, {right}" + (f" ({row.problem.out_of_reach})" * bool(row.problem.out_of_reach))


def lines(row: Row) -> Iterator[str]:
    """Yields what happened to a posterior."""
    found = row.automatic
    yield f"{row.name}: {verdict(row)}. {found.sampler}. {row.reference}."
    if (a := found.accuracy) is not None:
        yield (
            f"  means {a.mean:.4f} ~ {a.mean_noise:.4f}, beyond {a.mean_excess:.4f}; sd "
            f"{a.ratio:.4f} ~ {a.ratio_noise:.4f}, {a.least:.3f} to {a.largest:.3f}; "
            f"{found.effective:.0f} effective samples in {found.seconds:.1f} s, sampling "
            f"{found.sampling:.1f} s"
        )
    for flag in found.flags:
        yield textwrap.fill(flag, 100, initial_indent="  ", subsequent_indent="    ")
    for x in row.by_hand:
        a = x.accuracy
        text = "" if a is None else f", means {a.mean:.3f}, sd {a.ratio:.3f}"
        yield f"  by hand: {x.setting}: {x.milliseconds:.4g} ms{text}"


def cells(row: Row) -> list[str]:
    """Returns the line of the table."""
    exact, found = row.reference, row.automatic
    off = (exact.laplace_mean - exact.mean) / exact.deviation
    ratio = np.mean(exact.laplace_deviation / exact.deviation)
    laplace = f"{np.sqrt(np.mean(off**2)):.3f} {ratio:.3f}"
    size = row.problem.dimension, row.problem.num_examples
    head = [row.name, *map(str, size), found.took + "*" * bool(found.flags)]
    x = found.accuracy
    if x is None:
        return [*head, "", "", "", laplace, f"{found.seconds:.0f}", *[""] * 4]
    hand = row.by_hand[0].milliseconds if row.by_hand else np.nan
    return [
        *head,
        f"{x.mean:.3f} ~ {x.mean_noise:.3f}",
        f"{x.mean_excess:.3f}",
        f"{x.ratio:.3f} {x.least:.3f} {x.largest:.3f}",
        laplace,
        f"{found.seconds:.0f} {found.sampling:.1f}",
        f"{found.effective:.0f}",
        *(
            "" if np.isnan(x) else format(x, f)
            for x, f in [
                (found.milliseconds, ".3g"),
                (hand, ".3g"),
                (found.milliseconds / hand, ".2f"),
            ]
        ),
    ]


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="no_knobs")
