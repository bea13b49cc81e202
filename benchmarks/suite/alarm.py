"""Names the commits of a history that made a figure worse, by the thresholds of `asv.conf.json`.

    python -m benchmarks.suite.alarm --last 1 --report report.md   # fails if the last commit did
    python -m benchmarks.suite.alarm --commits main HEAD           # compares two commits

It reads what `asv run` has saved. A figure of a commit is worse when it exceeds its reference, the
median of three to five commits before, by more than its threshold, and the largest of them as well.
A time does so with the lower end of its 99 % interval. After a change, for worse or for better, the
reference starts anew, so that one cause is named once. Where no figure had enough values before to
be compared, it says so and exits with 2. A figure that a commit lost, because its
benchmark failed, counts as worse. Where commits between were not measured, the range is printed,
with a command of asv that searches it.

Noise: an accuracy is a mean over seeds, and its threshold is at least four standard deviations of
such a mean (`python -m benchmarks.suite.spread`). So noise alone exceeds it over the median of five
with a probability of 1e-3 to 1e-2. `--confirm MACHINE` therefore names only what is also worse in a
second measurement, saved under another name of the machine, with other seeds:

    TFP_SGMCMC_SEEDS=1 asv run --machine MACHINE --bench FIGURE ...
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import command_line
from benchmarks.suite.thresholds import CONFIGURATION, threshold

LEAST, MOST = 3, 5  # values before, of which the median is the reference
RESULTS = CONFIGURATION.parent / ".asv" / "results"


class Value(NamedTuple):
    """A figure of a commit.

    Attributes:
      center: the figure; None if its benchmark failed.
      low: the lower end of its 99 % interval, or the figure itself.
    """

    center: float | None
    low: float


class Commit(NamedTuple):
    """Figures of a commit by name, without those that were skipped."""

    name: str
    date: int
    values: dict[str, Value]


class Worse(NamedTuple):
    """A figure that became worse after the commit `good`, at the commit `bad`."""

    figure: str
    good: str
    bad: str
    before: float
    after: float | None
    threshold: float

    @property
    def ratio(self) -> float:
        return math.inf if self.after is None else self.after / self.before


def history(folder: Path, machine: str = "") -> list[Commit]:
    """Returns the commits with results, the oldest first.

    Raises:
      ValueError: there are results of no machine, or of several machines and none is named.
    """
    from asv.results import iter_results_for_machine

    found = sorted(path.parent.name for path in folder.glob("*/machine.json"))
    if machine not in found and (machine or len(found) != 1):
        raise ValueError(
            f"machine must be one of those with results in {folder}: {', '.join(found) or 'none'}. "
            f"Received: {machine!r}."
        )
    commits: dict[str, Commit] = {}
    for results in iter_results_for_machine(str(folder), machine or found[0]):
        name = results.commit_hash
        commit = commits.setdefault(name, Commit(name, results.date, {}))
        commit.values.update(_values(results))
    return sorted(commits.values(), key=lambda commit: commit.date)


def _values(results: object) -> Iterator[tuple[str, Value]]:
    import itertools

    for key in results.get_all_result_keys():  # type: ignore
        params = results.get_result_params(key)  # type: ignore
        centers = results.get_result_value(key, params)  # type: ignore
        stats = results.get_result_stats(key, params)  # type: ignore
        for names, center, spread in zip(itertools.product(*params), centers, stats, strict=True):
            figure = f"{key}({', '.join(names)})" if names else key
            if center is None or math.isfinite(center):  # NaN: skipped
                low = (spread or {}).get("ci_99_a")
                yield figure, Value(center, center or 0.0 if low is None else low)


def worsened(commits: list[Commit], least: int = LEAST) -> list[Worse]:
    """Returns the figures that became worse, with the commit that did it, the worst first.

    Nothing is compared with fewer than `least` values before.
    """
    found = []
    for figure in sorted({name for commit in commits for name in commit.values}):
        bound, values, last = threshold(figure), [], ""
        for commit in commits:
            if figure not in commit.values:
                continue
            center, low = commit.values[figure]
            if values and center is None:
                before = statistics.median(values)
                found.append(Worse(figure, last, commit.name, before, None, bound))
            if center is None:
                values = []
                continue
            before = statistics.median(values) if values else center
            limit = before * (1 + bound)
            is_worse = low > limit and center > max(values, default=center)
            if is_worse and len(values) >= least:
                found.append(Worse(figure, last, commit.name, before, center, bound))
            if is_worse or center < before / (1 + bound):
                values = []
            values, last = [*values, center][-MOST:], commit.name
    return sorted(found, key=lambda worse: -worse.ratio)


def num_compared(commits: list[Commit], least: int = LEAST) -> int:
    """Returns how many figures have a value with at least `least` values before it."""
    counts: dict[str, int] = {}
    for commit in commits:
        for figure, value in commit.values.items():
            counts[figure] = counts.get(figure, 0) + (value.center is not None)
    return sum(count > least for count in counts.values())


class NothingComparedError(ValueError):
    """No figure had enough earlier values."""


def run(
    *,
    results: Path = RESULTS,
    machine: str = "",
    last: int = 0,
    commits: tuple[str, ...] = (),
    confirm: str = "",
    report: str = "",
) -> list[Worse]:
    """Compares commits.

    Args:
      results: the folder where asv keeps results.
      machine: the machine's name in asv; empty for the only one.
      last: name only what the last commits did, so many; 0 names all.
      commits: beginnings of the hashes of the commits to compare, the first one with the others, in
        place of the whole history.
      confirm: the machine's other name, under which it was measured again.
      report: a file for the table in Markdown, which is written if something became worse.
    """
    measured, least = history(results, machine), LEAST
    if commits:
        measured, least = [_named(measured, name) for name in commits], 1
    found = worsened(measured, least)
    if not found and not num_compared(measured, least):
        raise NothingComparedError(
            f"results must have a figure with more than {least} values. Received: "
            f"{len(measured)} commits, none of whose figures could be compared."
        )
    if confirm:
        again = {commit.name: commit for commit in history(results, confirm)}
        found = [w for w in found if _is_worse_again(w, again)]
    if last:
        recent = {commit.name for commit in measured[-last:]}
        found = [worse for worse in found if worse.bad in recent]
    if report and found:
        Path(report).write_text(_markdown(found), encoding="utf-8")
    return found


def _is_worse_again(worse: Worse, again: dict[str, Commit]) -> bool:
    """Returns whether the second measurement of the two commits says so as well."""
    pair = [again[name] for name in (worse.good, worse.bad) if name in again]
    if len(pair) < 2:
        raise ValueError(
            f"confirm must name a machine with results of {worse.good[:8]} and {worse.bad[:8]}. "
            f"Received: one with results of {', '.join(name[:8] for name in again)}."
        )
    return any(found.figure == worse.figure for found in worsened(pair, least=1))


def _named(commits: list[Commit], name: str) -> Commit:
    found = [commit for commit in commits if commit.name.startswith(name)]
    if len(found) != 1:
        raise ValueError(
            f"commits must begin the hash of one commit with results. Received: {name}, which "
            f"begins {len(found)} of {', '.join(c.name[:8] for c in commits) or 'none'}."
        )
    return found[0]


def _markdown(found: list[Worse]) -> str:
    lines = ["| figure | before | after | threshold | commits |", "| --- | --- | --- | --- | --- |"]
    for w in found:
        after = "failed" if w.after is None else f"{w.after:.4g} ({w.ratio:.2f}x)"
        commits = f"{w.good[:8]}..{w.bad[:8]}"
        lines.append(f"| `{w.figure}` | {w.before:.4g} | {after} | {w.threshold:.0%} | {commits} |")
    worst = found[0]
    search = f"asv find {worst.good[:8]}..{worst.bad[:8]} {worst.figure.partition('(')[0]}"
    return "\n".join([*lines, "", "To search commits in between:", "", f"    {search}", ""])


def show(found: list[Worse]) -> None:
    columns = {
        "bad": "",
        "good": "",
        "figure": "",
        "before": ".4g",
        "after": "",
        "threshold": ".0%",
    }
    cells = [
        (w.bad[:8], w.good[:8], w.figure, w.before,
         "failed" if w.after is None else f"{w.after:.4g}", w.threshold)
        for w in found
    ]  # fmt: skip
    if cells:
        command_line.print_table(columns, cells)
        sys.exit(f"{len(cells)} figures became worse.")
    print("No figure became worse.")


if __name__ == "__main__":
    try:
        command_line.main(__doc__, run, show)
    except NothingComparedError as error:
        print(f"Nothing was compared: {error}", file=sys.stderr)
        sys.exit(2)
