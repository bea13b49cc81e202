"""The tables of `equal_error`: what all samplers cost, and who wins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.common import command_line
from benchmarks.common.second_order import NAMES as SECOND_ORDER
from benchmarks.common.tables import Table

SD_BOUND = 1.1  # a factor, up or down
ON_ALL_DATA = ("corrected Langevin", "HMC", "NUTS", "HMC whitened")


class Reached(NamedTuple):
    """Medians over the seeds of the cost until an error stays below its bound, and of the error."""

    step: float
    passes: float
    seconds: float
    least_error: float


class Effective(NamedTuple):
    """Medians over the seeds of the cost of an effective sample; biases of all draws."""

    step: float
    passes: float
    seconds: float
    mean_bias: float
    sd_ratio: float


class Row(NamedTuple):
    """The costs of a sampler; None if it always became infinite."""

    mean_error: Reached | None
    covariance_error: Reached | None
    effective: Effective | None


Rows = dict[str, dict[str, Row]]  # by posterior and sampler


def show(rows: Rows) -> dict[str, Table]:
    names = (
        "", "h", "E1 < 0.05: passes", "s", "h ", "E2 < 0.1: passes", "s ", "h  ", "ESS: passes",
        "ms", "mean", "sd",
    )  # fmt: skip
    found = {}
    for data, here in rows.items():
        print(f"\n{data}")
        lines = [(name, *cells(row)) for name, row in here.items()]
        found[data] = command_line.print_table(dict.fromkeys(names, ""), lines)
    print()
    for line in conclusions(rows):
        print(line)
    return {
        "Whitened HMC and control variates of order 2": beside_hmc(rows),
        "The fewest seconds of each kind": cheapest(rows),
        **found,
    }


def beside_hmc(rows: Rows) -> Table:
    """Returns what whitened HMC takes, and control variates of order 2 take of that.

    E1 and E2 are seconds until the bounds. Other columns: milliseconds an effective sample, the
    standard deviation, and the least E1 of the control variates and of Laplace's approximation.
    """
    columns = (
        "posterior", "sampler", "E1, s", "E2, s", "ms", "HMC / it", "sd", "least E1", "Laplace E1"
    )  # fmt: skip
    lines = []
    for data, here in rows.items():
        hmc = here.get("HMC whitened")
        for name in ("HMC whitened", *SECOND_ORDER):
            row = here.get(name)
            if row is None or row.effective is None or hmc is None or hmc.effective is None:
                continue
            reached = [
                f"{x.seconds:.3g}" if x and np.isfinite(x.seconds) else "not reached"
                for x in row[:2]
            ]
            ratio = hmc.effective.seconds / row.effective.seconds
            least = [x.mean_error.least_error for x in (row, here["Laplace"]) if x.mean_error]
            lines.append(
                (data, name, *reached, f"{1e3 * row.effective.seconds:.3g}", f"{ratio:.3g}",
                 f"{row.effective.sd_ratio:.3f}", *(f"{x:.2g}" for x in least))
            )  # fmt: skip
    return Table(columns, lines)


def cheapest(rows: Rows) -> Table:
    """Returns the samplers of each kind that take the fewest seconds, with seconds and passes."""
    fields = {"E1 < 0.05": "mean_error", "E2 < 0.1": "covariance_error", "ESS": "effective"}
    lines = []
    for data, here in rows.items():
        found = {
            field: {kind: name for _, kind, name in ranking(here, field, "seconds")}
            for field in fields.values()
        }
        for kind in sorted({kind for best in found.values() for kind in best}):
            cells = []
            for field in fields.values():
                name = found[field].get(kind)
                row = getattr(here[name], field) if name else None
                cells.append(row and f"{name}, {row.seconds:.3g} s ({row.passes:.3g} passes)")
            lines.append((data, kind, *(cell or "not reached" for cell in cells)))
    return Table(("posterior", "kind", *fields), lines)


def cells(row: Row) -> list[str]:
    """Returns a row as text."""
    text = []
    for found in row[:2]:
        if found is None:
            text += ["", "became infinite", ""]
        elif np.isfinite(found.seconds):
            text += [_step(found.step), f"{found.passes:.3g}", f"{found.seconds:.3g}"]
        else:
            text += [_step(found.step), f"not reached ({found.least_error:.2g})", ""]
    if row.effective is None:
        return [*text, "", "", "", "", ""]
    x = row.effective
    return [
        *text, _step(x.step), f"{x.passes:.3g}", f"{1e3 * x.seconds:.3g}", f"{x.mean_bias:.3f}",
        f"{x.sd_ratio:.3f}",
    ]  # fmt: skip


def _step(h: float) -> str:
    return "" if np.isnan(h) else f"{h:.3g}"


def conclusions(rows: Rows) -> Iterator[str]:
    """Yields the cheapest samplers at each posterior, and from which N on a kind wins."""
    for what, field in (
        ("until E1 < 0.05", "mean_error"),
        ("until E2 < 0.1", "covariance_error"),
        (f"for an effective sample, sd within a factor of {SD_BOUND:g}", "effective"),
    ):
        for cost in ("passes", "seconds"):
            yield f"{cost.capitalize()} {what}:"
            winners = {}
            for data in sorted(rows):
                found = ranking(rows[data], field, cost)
                won = [f"{kind}: {name} {spent:.3g}" for spent, kind, name in found if name]
                lost = [f"{kind}: nobody" for _, kind, name in found if not name]
                yield f"  {data}: {'; '.join(won + lost)}"
                if data.startswith("synthetic_1e"):
                    winners[int(data[-1])] = found[0][1] if won else "nobody"
            if winners:
                yield f"  {since(winners)}"
    yield "E1 and E2 at the end of the runs:"
    for data in sorted(rows):
        ends = (f"{name} {_end(row)}" for name, row in rows[data].items() if row.mean_error)
        yield f"  {data}: {'; '.join(ends)}"


def _end(row: Row) -> str:
    """Returns the errors of the runs that were made to reach them."""
    return ", ".join(f"{found.least_error:.3g}" for found in row[:2] if found)


def ranking(here: dict[str, Row], field: str, cost: str) -> list[tuple[float, str, str]]:
    """Returns cost, kind and name of the cheapest sampler of each kind, the winner first.

    The name is "" if no sampler of the kind reached the error. Biased samplers have no cost of an
    effective sample.
    """
    best: dict[str, tuple[float, str]] = {}
    for name, row in here.items():
        if name == "Laplace":
            continue
        found = getattr(row, field)
        fails = found is None or (
            field == "effective" and log_factor(found.sd_ratio) > np.log(SD_BOUND)
        )
        kind = "control variates" if " + " in name else "plain minibatches"
        kind = "all data" if name in ON_ALL_DATA else kind
        spent = np.inf if fails else getattr(found, cost)
        best[kind] = min(best.get(kind, (np.inf, "")), (spent, name if np.isfinite(spent) else ""))
    return sorted((spent, kind, name) for kind, (spent, name) in best.items())


def since(winners: dict[int, str]) -> str:
    """Returns, in words, from which N = 10^k on the winner at the largest N wins.

    >>> since({4: "all data", 5: "control variates", 6: "control variates"})
    'synthetic: control variates from N = 10^5 on; all data at N = 10^4'
    """
    last = winners[max(winners)]
    first = min(k for k in winners if all(winners[j] == last for j in winners if j >= k))
    before = [f"{winners[k]} at N = 10^{k}" for k in sorted(winners) if k < first]
    return "; ".join([f"synthetic: {last} from N = 10^{first} on", *before])


def log_factor(ratio: float) -> float:
    """Returns the distance of a ratio from 1 on a log scale; it is infinite for a stuck chain."""
    return abs(float(np.log(ratio))) if ratio > 0 else np.inf
