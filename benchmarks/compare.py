"""All samplers on one posterior: their errors, and what they cost.

Logistic regression, minibatches of n without replacement, each sampler with one step size (see
`benchmarks.methods` for its unit, and `FACTORS`). Baselines on all data: TFP's HMC and NUTS,
corrected Langevin; on minibatches: plain stochastic gradient descent, which is no sampler. Every
chain starts from the origin (samplers with control variates and whitened HMC go to the mode by
L-BFGS, which counts), runs alone for so many seconds of the processor, and its second half is what
is measured. The exact moments are those of `benchmarks.exact_moments`. The table gives

  step      h / unit,
  steps/s   steps in a second,
  mean      root mean square over coordinates of (mean - exact mean) / exact standard deviation,
  sd        mean over coordinates of standard deviation / exact standard deviation, less 1,
  E1, E2    relative errors of mean and covariance (Ahn et al. 2012, equation 14),
  ms/ESS    milliseconds for an effective sample of the median coordinate, and of the slowest one,
            after burn-in; an effective sample of a biased sampler is a biased one,
  kB        kilobytes of the state and the kernel results, which a chain carries,

E1 and E2 as medians over the seeds, mean and sd of the draws of all seeds together, and all others
as means over the seeds. The Monte Carlo error of `mean` is about 1 / sqrt(effective samples).

The figures show E1 and E2 of the second half of all draws so far, medians over the seeds, against
all seconds (without compilation) and passes over the data until then, burn-in included.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import command_line
from benchmarks.environment import describe
from benchmarks.exact_moments import exact_moments
from benchmarks.methods import Method, Posterior, methods, named
from benchmarks.reference import Reference, moments
from benchmarks.trajectories import Curve, Runner, Trajectory

# h / unit by the beginning of a name, 1 of all others. At the origin, where chains start, gradients
# are noisier than at the mode, where the unit is taken: explicit momenta must bear that.
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
    """What was measured of one sampler; see the columns above."""

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
    """Of which posterior; rows and curves by sampler; `failed` are those that became infinite."""

    title: str
    reference: Reference
    rows: list[Row]
    curves: dict[str, list[Curve]]
    failed: list[str]


def run(
    *,
    data: str = "mnist_7v9",
    samplers: Sequence[str] = ("all",),
    batch_size: int = 500,
    seconds: float = 4.0,
    seeds: Sequence[int] = (1, 2, 3),
    num_reference_results: int = 200,
) -> Result:
    """Runs all that was asked for; arguments as on the command line."""
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


def exact(p: Posterior, num_results: int, kept: Path | None = None) -> Reference:
    """The exact moments, by HMC on all data, or as the file `kept` has them from another call."""
    if kept is not None and kept.exists():
        with np.load(kept) as file:
            found = Reference(**{name: file[name] for name in file})
    else:
        found = exact_moments(p, num_results=num_results)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.savez(kept, **found._asdict())
    print(found, flush=True)
    return found


def select(found: dict[str, Method], names: Sequence[str]) -> dict[str, Method]:
    """Methods by their names; "all" are those without control variates.

    Raises:
      ValueError: a name that is none's.
    """
    unknown = set(names) - {"all", *found}
    if unknown:
        raise ValueError(
            f"samplers are {', '.join(unknown)}; 'all' or some of {', '.join(found)} are expected."
        )
    return {
        name: method
        for name, method in found.items()
        if name in names or ("all" in names and " + " not in name)
    }


def factor(name: str) -> float:
    """h / unit."""
    return next((f for start, f in FACTORS.items() if name.startswith(start)), 1.0)


def progress(i: int, total: int, name: str, runner: Runner) -> None:
    """Says on the standard error what has been run."""
    seconds = f"compiled in {runner.compile_seconds:.1f} s"
    print(f"[{i}/{total}] {name}: {seconds}", file=sys.stderr, flush=True)


def row(
    name: str, step: float, chains: list[Trajectory], reference: Reference, num_bytes: int
) -> Row:
    """Compares chains with the exact moments."""
    mean_bias, sd_ratio = biases([chain.draws for chain in chains], reference)
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


def biases(draws: list[np.ndarray], reference: Reference) -> tuple[float, float]:
    """Of the draws of all chains together, `[S, D]` each.

    Returns:
      Root mean square over coordinates of (mean - exact mean) / exact standard deviation, and mean
      of standard deviation / exact standard deviation.
    """
    mean, covariance = moments(np.concatenate(draws))
    deviation = np.sqrt(np.diag(reference.covariance))
    off = (mean - reference.mean) / deviation
    return float(np.sqrt(np.mean(off**2))), float(np.mean(np.sqrt(np.diag(covariance)) / deviation))


def show(result: Result) -> None:
    command_line.print_table(COLUMNS, result.rows)
    for name in result.failed:
        print(f"{name}: became infinite at this step size")


def main() -> None:
    parser = command_line.parser(__doc__, run, with_output=False)
    parser.add_argument("--output", type=Path, help="directory for the figures")
    parser.add_argument("--quick", action="store_true", help=f"other defaults: {QUICK}")
    if parser.parse_args().quick:
        parser.set_defaults(**QUICK)
    arguments: dict[str, Any] = vars(parser.parse_args())
    output, _ = arguments.pop("output"), arguments.pop("quick")
    print(describe(), flush=True)
    result = run(**arguments)
    show(result)
    if output is not None:
        from benchmarks import error_figures

        for path in error_figures.save(output, result.curves, result.reference, result.title):
            print(path)


if __name__ == "__main__":
    main()
