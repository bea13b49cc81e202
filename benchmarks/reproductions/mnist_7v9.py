"""SGLD against the exact posterior: MNIST 7 v 9 in a random projection.

After Ahn, Korattikara & Welling, Bayesian posterior sampling via stochastic gradient Fisher
scoring, ICML 2012, section 5.1: logistic regression on the sevens and nines (N = 12214) in a random
projection to 50 dimensions and a constant, and the errors E1 of the posterior mean and E2 of the
posterior covariance (equation 14) as functions of the passes over the data. The prior here is
N(0, I).

The posterior's precision has eigenvalues from 38 to 44,000. Plain SGLD must resolve the largest one
and mixes at the speed of the smallest one. So its step is near the limit of stability (4 / 44,000),
and its bias is in the few narrowest directions, which have little weight in E2.

The paper draws these errors for SGLD and Fisher scoring at many step sizes. Here SGLD runs alone,
with one step that was chosen to be right, so that the claims are this library's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws
from benchmarks.common.problems import projected_mnist_7v9
from benchmarks.common.reference import Reference
from benchmarks.reproductions.experiment import Claim, Experiment, main, subplots
from benchmarks.reproductions.page import BEYOND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ERRORS = (0.05, 0.3)  # E1 and E2 of samples that count as right


class Errors(NamedTuple):
    """Errors of all samples so far; the passes are those of one chain."""

    passes: float
    mean_error: float
    covariance_error: float


class Result(NamedTuple):
    """The reference, and the errors of SGLD as its chains grow."""

    reference: Reference
    errors: list[Errors]


def run(
    *,
    batch_size: int = 500,
    step_size: float = 4e-5,
    num_chains: int = 64,
    num_steps: int = 40_000,
    num_burnin_steps: int = 5_000,
    thinning: int = 20,
    num_reference_results: int = 600,
    seed: int = 0,
) -> Result:
    """Samples by HMC and by SGLD."""
    target, reference = projected_mnist_7v9(batch_size, num_reference_results, seed)
    kernel, start = sgmcmc.SGLD(target, step_size), tf.zeros([num_chains, len(reference.mean)])
    num_results = num_steps // thinning
    samples = draws(kernel, start, [seed, 3], num_results, thinning, num_burnin_steps)
    steps_per_pass = target.num_examples / batch_size
    errors = errors_on_the_way(samples, reference, num_burnin_steps, thinning, steps_per_pass)
    return Result(reference, errors)


def errors_on_the_way(
    samples: np.ndarray,
    reference: Reference,
    num_burnin_steps: int,
    thinning: int,
    steps_per_pass: float,
) -> list[Errors]:
    """Returns the errors of the first 1, 3, 9, ... samples `[num_results, num_chains, D]`."""
    errors = []
    for used in np.unique(np.geomspace(1, len(samples), 8).astype(int)):
        passes = (num_burnin_steps + used * thinning) / steps_per_pass
        errors.append(Errors(passes, *reference.errors(samples[:used])))
    return errors


def plot(result: Result) -> Figure:
    return plot_errors({"SGLD": result.errors}, result.reference)


def plot_errors(errors: dict[str, list[Errors]], reference: Reference) -> Figure:
    """Draws errors against passes, with the noise floor of the reference."""
    figure, axes = subplots(1, 2)
    names, floors = (
        ("E1, relative error of the mean", "E2, relative error of the covariance"),
        (reference.mean_floor, reference.covariance_floor),
    )
    for i, (axis, name, floor) in enumerate(zip(axes[0], names, floors, strict=True)):
        for label, rows in errors.items():
            passes, *series = zip(*rows, strict=True)
            axis.loglog(passes, series[i], "o-", label=label)
        axis.axhline(floor, ls=":", color="k", label="noise of the reference")
        axis.set(xlabel="passes over the data of each chain", ylabel=name)
        axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    return [claim("SGLD with a small step", result.errors, result.reference)]


def claim(name: str, errors: list[Errors], reference: Reference) -> Claim:
    """Returns the claim that samples end with errors below `MOST_ERRORS`."""
    first, last = errors[0], errors[-1]
    held = last.mean_error < MOST_ERRORS[0] and last.covariance_error < MOST_ERRORS[1]
    return Claim(
        f"{name} reaches the exact posterior, E1 < {MOST_ERRORS[0]} and E2 < {MOST_ERRORS[1]}",
        f"E1 {last.mean_error:.4f} and E2 {last.covariance_error:.3f} after {last.passes:.0f} "
        f"passes ({first.mean_error:.4f} and {first.covariance_error:.3f} with one draw of each "
        f"chain; noise of the reference {reference.mean_floor:.4f} and "
        f"{reference.covariance_floor:.3f})",
        held,
        "" if held else "few passes leave much Monte Carlo error in the covariance",
    )


def show(result: Result) -> None:
    print(result.reference)
    command_line.print_table({"passes": ".0f", "E1": ".4f", "E2": ".4f"}, result.errors)


EXPERIMENT = Experiment(
    paper=BEYOND,
    figure="posterior of Ahn et al. 2012, section 5.1",
    title="MNIST 7 v 9 in 50 random projections, SGLD against exact moments",
    run=run,
    quick={"num_steps": 8_000, "num_burnin_steps": 2_000, "num_reference_results": 200},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
