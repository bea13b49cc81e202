"""The cost of an equal error: every sampler, with and without control variates.

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
  took, compilation included. Its step h = 1 is a standard deviation, its friction 1.5 unless
  it is named.
  "Laplace" is Laplace's approximation itself, without a sampler.
- All samplers run on one core. Seconds are processor seconds, the time that a clock would show with
  nothing else running.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import command_line
from benchmarks.common.environment import use_one_core
from benchmarks.common.exact_moments import exact
from benchmarks.common.methods import Cost, methods, select
from benchmarks.common.posteriors import Posterior, named
from benchmarks.common.reference import Reference, relative_errors
from benchmarks.common.second_order import NAMES as SECOND_ORDER
from benchmarks.common.second_order import second_order
from benchmarks.common.trajectories import Runner, Trajectory, progress
from benchmarks.cost.equal_error_tables import (
    ON_ALL_DATA,
    SD_BOUND,
    Effective,
    Reached,
    Row,
    Rows,
    log_factor,
    show,
)

BOUNDS = {"mean_error": 0.05, "covariance_error": 0.1}
FACTORS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
PILOT_SEED = 0
DATA = (
    "mnist_7v9_random", "mnist_7v9", "a9a_intercept", "synthetic_1e4", "synthetic_1e5",
    "synthetic_1e6",
)  # fmt: skip
DEFAULT = (
    "SGLD", "mSGLD diag", "SGFS full", "SGHMC diag", "SGNHT", "CCAdL diag", "NOGIN full",
    "NOGIN diag", "underdamped Langevin", "SGLD + CV", "mSGLD diag + CV", "SGHMC diag + CV",
    "SGNHT + CV", "CCAdL diag + CV", "NOGIN diag + CV", "underdamped Langevin + CV",
    "SGLD + SVRG", *SECOND_ORDER, *ON_ALL_DATA,
)  # fmt: skip


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
        bias = log_factor(reference.biases([chain.draws])[1])
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


def _median_effective(chain: Trajectory) -> float:
    return float(np.median(chain.effective_sample_sizes()))


if __name__ == "__main__":
    use_one_core()
    command_line.main(__doc__, run, show, table="cost.equal_error")
