"""All samplers on one posterior: their errors, and what they cost.

Logistic regression with minibatches of n without replacement. Each sampler has one step size, which
is `FACTORS` times the unit of `benchmarks.common.methods`. The baselines on all data are TFP's HMC
and NUTS, and corrected Langevin. Plain stochastic gradient descent, on minibatches, samples nothing
and is there for comparison. Every chain starts from the origin. Samplers with control variates and
whitened HMC start at the mode, and pay for finding it by L-BFGS. A chain runs alone for a number of
processor seconds, and its second half is measured. The exact moments are those of
`benchmarks.common.exact_moments`. The table gives

  step      h / unit,
  steps/s   steps in a second,
  mean      root mean square over coordinates of (mean - exact mean) / exact standard deviation,
  sd        mean over coordinates of standard deviation / exact standard deviation, less 1,
  E1, E2    relative errors of mean and covariance (Ahn et al. 2012, equation 14),
  ms/ESS    milliseconds for an effective sample of the median coordinate after burn-in; effective
            samples of a biased sampler are biased, too,
  slowest   the same for the slowest coordinate, and
  kB        kilobytes of the state and the kernel results, which a chain carries.

E1 and E2 are medians over the seeds, mean and sd come from the draws of all seeds together, and all
other columns are means over the seeds. The Monte Carlo error of `mean` is about
1 / sqrt(effective samples).

The figures show E1 and E2 of the second half of the draws so far, as medians over the seeds,
against all seconds (without compilation) and passes over the data so far, burn-in included.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import command_line
from benchmarks.common.environment import describe
from benchmarks.common.exact_moments import exact
from benchmarks.common.methods import methods, select
from benchmarks.common.posteriors import named
from benchmarks.common.reference import Reference
from benchmarks.common.trajectories import Curve, Runner, Trajectory, progress

# h / unit by the beginning of a name; 1 for all other names. Chains start at the origin, where
# gradients are noisier than at the mode, which sets the unit. Explicit momenta must bear that.
FACTORS = {
    "SGD": 2.0, "SGLD": 2.0, "SGFS": np.inf, "SGHMC": 0.25, "SGNHT": 0.5, "CCAdL": 0.5,
    "underdamped": 0.5, "NOGIN": 4.0, "HMC whitened": 0.5,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "data": "synthetic",
    "samplers": ("SGD", "SGLD", "SGFS diag", "SGNHT", "NOGIN diag", "corrected Langevin", "HMC"),
    "seconds": 0.3,
    "seeds": (1, 2),
    "num_reference_results": 30,
}
COLUMNS = {
    "": "", "step": ".3g", "steps/s": ",.0f", "mean": ".3f", "sd": "+.3f", "E1": ".3f",
    "E2": ".3f", "ms/ESS": ".2f", "slowest": ".1f", "kB": ".1f",
}  # fmt: skip


class Row(NamedTuple):
    """The measurements of one sampler; see the columns above."""

    name: str
    step: float
    steps_per_second: float
    mean_bias: float
    sd_bias: float
    mean_error: float
    covariance_error: float
    ms_per_effective: float
    slowest_ms_per_effective: float
    kilobytes: float


class Result(NamedTuple):
    """Everything that was measured."""

    title: str  # the posterior in words
    reference: Reference  # the exact moments
    rows: list[Row]  # the lines of the table
    curves: dict[str, list[Curve]]  # errors against cost, by sampler
    failed: list[str]  # names of the samplers that became infinite


def run(
    *,
    data: str = "mnist_7v9",
    samplers: Sequence[str] = ("all",),
    batch_size: int = 500,
    seconds: float = 4.0,
    seeds: Sequence[int] = (1, 2, 3),
    num_reference_results: int = 200,
) -> Result:
    """Runs all chosen samplers.

    Args:
      samplers: names, or "all" for those without control variates.
      seconds: processor seconds of a chain.
    """
    p = named(data)
    reference = exact(p, num_reference_results)
    chosen = select(methods(p, batch_size), samplers)
    rows, curves, failed = [], {}, []
    for i, (name, method) in enumerate(chosen.items(), 1):
        runner = Runner(method, len(p.x))
        step = factor(name)
        chains = [runner(step, seed, seconds, reference) for seed in seeds]
        progress(i, len(chosen), name, runner)
        if any(chain.failed for chain in chains):
            failed.append(name)
            continue
        rows.append(row(name, step, chains, reference, runner.bytes_of_state()))
        curves[name] = [chain.curve for chain in chains]
    title = f"{data}: N = {len(p.x):,}, D = {len(p.mode)}, n = {batch_size}"
    return Result(title, reference, rows, curves, failed)


def factor(name: str) -> float:
    """Returns h / unit for a sampler."""
    return next((f for start, f in FACTORS.items() if name.startswith(start)), 1.0)


def row(
    name: str, step: float, chains: list[Trajectory], reference: Reference, num_bytes: int
) -> Row:
    """Compares the chains of one sampler with the exact moments."""
    mean_bias, sd_ratio = reference.biases([chain.draws for chain in chains])
    with np.errstate(divide="ignore"):
        ms = [1e3 * c.seconds / c.effective_sample_sizes() for c in chains]
    return Row(
        name,
        step,
        float(np.mean([chain.steps / chain.seconds for chain in chains])),
        mean_bias,
        sd_ratio - 1,
        float(np.median([chain.curve.mean_error[-1] for chain in chains])),
        float(np.median([chain.curve.covariance_error[-1] for chain in chains])),
        float(np.mean([np.median(x) for x in ms])),
        float(np.mean([np.max(x) for x in ms])),
        num_bytes / 1e3,
    )


def show(result: Result) -> None:
    command_line.print_table(COLUMNS, result.rows)
    for name in result.failed:
        print(f"{name} became infinite at this step size.")


def main() -> None:
    parser = command_line.parser(__doc__, run, with_output=False)
    parser.add_argument("--output", type=Path, help="directory for the figures")
    parser.add_argument("--quick", action="store_true", help=f"take a minute: {QUICK}")
    if parser.parse_args().quick:
        parser.set_defaults(**QUICK)
    arguments: dict[str, Any] = vars(parser.parse_args())
    output, _ = arguments.pop("output"), arguments.pop("quick")
    print(describe(), flush=True)
    result = run(**arguments)
    show(result)
    if output is not None:
        from benchmarks.accuracy import figures

        for path in figures.save(output, result.curves, result.reference, result.title):
            print(path)


if __name__ == "__main__":
    main()
