"""What an equal error costs: every sampler, with and without control variates.

Logistic regression on MNIST 7 v 9 (D = 51 by a random projection, D = 129 by principal components),
on a9a with an intercept (D = 124), and on synthetic data with N = 10^4, 10^5, 10^6 and D = 20. For
each sampler the table gives the passes over the data (gradients of N examples) and the seconds

  until E1 < 0.05, the relative error of the mean,
  until E2 < 0.1, the relative error of the covariance (both: Ahn et al. 2012, equation 14), and
  for an effective sample of the median coordinate, with the biases that it does not show.

The same rules hold for all samplers:

- One chain starts from the origin. At any time its estimate is the second half of its draws. The
  first half is burn-in and counts as cost. Samplers with control variates ("+ CV") start from the
  mode. HMC that is whitened by Laplace's approximation starts from a draw of it. These pay for the
  way from the origin to the mode by L-BFGS, for the full gradient there, and for the Hessian.
  Compilation does not count.
  "+ CV2" stands for `ControlVariate` of order 2 with importance="pilot" in the coordinates of
  `whiten`, in closed form (`LinearModel`) or by automatic differentiation. It starts from a draw of
  Laplace's approximation, and pays for whitening, Hessians and pilot the seconds that the calls
  took, compilation included. Its step h = 1 is a standard deviation, its friction 1.5.
  "Laplace" is Laplace's approximation itself, without a sampler.
- Seconds are processor seconds of all threads together: on one core, the time that a clock would
  show with nothing else running.
- An error is reached when the chain stays below it until the end of the chain. A chain ends when
  its budget of seconds is used, or when both errors have stayed below their bounds for the second
  half of the cost. A chain whose errors are below four times the bounds when the budget is used may
  take 16 times the budget.
- Step sizes: each of `FACTORS` times the sampler's unit (see `benchmarks.common.methods`) is run
  with a pilot seed for a part of the budget. The chosen ones are run again with the seeds that
  count. For an effective sample, the choice is the cheapest step whose standard deviations are
  within a factor of 1.1 of the exact ones (mean over coordinates), or else the step nearest to
  that. For an error, it is the step that reaches the error in the fewest seconds, or else the step
  for an effective sample.
- Costs and errors are medians over the seeds. A chain that became infinite has infinite costs.
- Errors are computed between compiled calls of about 400,000 gradients each. So a cost of one call
  (on top of the way to the mode) stands for a cost of at most one call.
- Passes and seconds for an effective sample come from the second half of the chain.

"not reached" comes with the least error at the end of a run. `mean` is the root mean square over
coordinates of (mean - exact mean) / exact standard deviation, and `sd` the mean ratio of standard
deviations. The exact moments come from `benchmarks.common.exact_moments`, which prints their
errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import command_line
from benchmarks.common.exact_moments import exact
from benchmarks.common.methods import Cost, methods, select
from benchmarks.common.posteriors import Posterior, named
from benchmarks.common.reference import Reference, relative_errors
from benchmarks.common.second_order import NAMES as SECOND_ORDER
from benchmarks.common.second_order import second_order
from benchmarks.common.tables import Table
from benchmarks.common.trajectories import Runner, Trajectory, progress

BOUNDS = {"mean_error": 0.05, "covariance_error": 0.1}
SD_BOUND = 1.1  # a factor, up or down
FACTORS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
PILOT_SEED = 0
DATA = (
    "mnist_7v9_random", "mnist_7v9", "a9a_intercept", "synthetic_1e4", "synthetic_1e5",
    "synthetic_1e6",
)  # fmt: skip
ON_ALL_DATA = ("corrected Langevin", "HMC", "NUTS", "HMC whitened")
DEFAULT = (
    "SGLD", "mSGLD diag", "SGFS full", "SGHMC diag", "SGNHT", "CCAdL diag", "NOGIN full",
    "NOGIN diag", "underdamped Langevin", "SGLD + CV", "mSGLD diag + CV", "SGHMC diag + CV",
    "SGNHT + CV", "CCAdL diag + CV", "NOGIN diag + CV", "underdamped Langevin + CV",
    "SGLD + SVRG", *SECOND_ORDER, *ON_ALL_DATA,
)  # fmt: skip


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


def run(
    *,
    data: tuple[str, ...] = DATA,
    samplers: tuple[str, ...] = DEFAULT,
    batch_size: int = 500,
    seconds: float = 1.5,
    pilot_seconds: float = 0.3,
    seeds: tuple[int, ...] = (1, 2, 3),
    num_reference_results: int = 100,
    folder: str = "",
) -> Rows:
    """Measures all chosen samplers.

    Args:
      samplers: names, or "all" for those without control variates.
      folder: keeps rows and exact moments; rows and moments of earlier calls are used again.
    """
    kept = Path(folder, "equal_error.json") if folder else None
    rows = load(kept) if kept and kept.exists() else {}
    for name in data:
        p = named(name)
        kept_moments = kept and kept.with_name(name + ".npz")
        reference = exact(p, num_reference_results, kept_moments)
        found = methods(p, batch_size)
        chosen = select(found, [name for name in samplers if name not in SECOND_ORDER])
        chosen |= second_order(p, samplers)
        here = rows.setdefault(name, {})
        here["Laplace"] = laplace(p, found["HMC whitened"].once, reference)
        for i, (sampler, method) in enumerate(chosen.items(), 1):
            runner = Runner(method, len(p.x))
            here[sampler] = measure(
                runner, factors(sampler), reference, seconds, pilot_seconds, seeds
            )
            progress(i, len(chosen), f"{name}, {sampler}", runner)
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(rows, indent=1))
    return rows


def load(path: Path) -> Rows:
    """Rows as `run` keeps them: JSON makes lists of them."""

    def row(mean: Any, covariance: Any, effective: Any) -> Row:
        return Row(
            mean and Reached(*mean), covariance and Reached(*covariance),
            effective and Effective(*effective),
        )  # fmt: skip

    kept = json.loads(path.read_text())
    return {data: {name: row(*x) for name, x in rows.items()} for data, rows in kept.items()}


def laplace(p: Posterior, once: Cost, reference: Reference) -> Row:
    """Returns the errors of the mode and of the inverse Hessian there."""
    exact = reference.mean, reference.covariance
    errors = dict(zip(BOUNDS, relative_errors((p.mode, p.covariance), exact), strict=True))
    missed = Cost(np.inf, np.inf)
    found = [
        Reached(np.nan, *(once if error < BOUNDS[name] else missed), error)
        for name, error in errors.items()
    ]
    return Row(*found, None)


def factors(sampler: str) -> tuple[float, ...]:
    """Returns the steps to try, in units. SGFS also has an infinite one, alpha = 0."""
    return (np.inf, *FACTORS) if sampler.startswith("SGFS") else FACTORS


def measure(
    runner: Runner,
    factors: Sequence[float],
    reference: Reference,
    seconds: float,
    pilot_seconds: float,
    seeds: Sequence[int],
) -> Row:
    """Chooses steps by a pilot run of each, and runs the chosen steps with all seeds."""
    bounds = (BOUNDS["mean_error"], BOUNDS["covariance_error"])
    pilots = {
        factor: runner(factor, PILOT_SEED, pilot_seconds, reference, bounds) for factor in factors
    }
    chosen = choose(pilots, reference)
    if chosen is None:
        return Row(None, None, None)
    chains = {
        factor: [runner(factor, seed, seconds, reference, bounds) for seed in seeds]
        for factor in set(chosen)
    }
    first, second, third = ((factor, chains[factor]) for factor in chosen)
    return Row(
        reached(*first, "mean_error"),
        reached(*second, "covariance_error"),
        effective(*third, reference, runner.num_examples),
    )


def choose(
    pilots: dict[float, Trajectory], reference: Reference
) -> tuple[float, float, float] | None:
    """Returns the best steps for E1, E2 and effective samples, or None if all steps failed."""
    finite = {factor: chain for factor, chain in pilots.items() if not chain.failed}
    if not finite:
        return None

    def of_effective(factor: float) -> tuple[bool, float]:
        chain = finite[factor]
        bias = _log(reference.biases([chain.draws])[1])
        biased = bias > np.log(SD_BOUND)
        return biased, bias if biased else chain.seconds / max(_median_effective(chain), 1e-9)

    best = min(finite, key=of_effective)

    def for_error(error: str) -> float:
        costs = {f: c.curve.cost(error, BOUNDS[error]).seconds for f, c in finite.items()}
        factor = min(costs, key=costs.__getitem__)
        return factor if costs[factor] < np.inf else best

    return for_error("mean_error"), for_error("covariance_error"), best


def reached(factor: float, chains: Sequence[Trajectory], error: str) -> Reached:
    """Returns medians over chains of the same step. A failed chain has infinite costs."""
    found = [
        (np.inf, np.inf, np.inf)
        if chain.failed
        else (*chain.curve.cost(error, BOUNDS[error]), getattr(chain.curve, error)[-1])
        for chain in chains
    ]
    return Reached(factor, *map(float, np.median(found, axis=0)))


def effective(
    factor: float, chains: Sequence[Trajectory], reference: Reference, num_examples: int
) -> Effective | None:
    """Returns medians over chains of one step and the biases of all draws; None if one failed."""
    if any(chain.failed for chain in chains):
        return None
    with np.errstate(divide="ignore"):
        costs = [
            np.array([chain.examples / num_examples, chain.seconds]) / _median_effective(chain)
            for chain in chains
        ]
    mean_bias, sd_ratio = reference.biases([chain.draws for chain in chains])
    return Effective(factor, *map(float, np.median(costs, axis=0)), mean_bias, sd_ratio)


def _log(ratio: float) -> float:
    """Returns the distance of a ratio from 1 on a log scale; it is infinite for a stuck chain."""
    return abs(float(np.log(ratio))) if ratio > 0 else np.inf


def _median_effective(chain: Trajectory) -> float:
    return float(np.median(chain.effective_sample_sizes()))


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
    return {"The fewest seconds of each kind": cheapest(rows), **found}


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
        fails = found is None or (field == "effective" and _log(found.sd_ratio) > np.log(SD_BOUND))
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


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="cost.equal_error")
