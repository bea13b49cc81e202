"""SGLD against the exact posterior: MNIST 7 v 9 in a random projection.

After Ahn, Korattikara & Welling, Bayesian posterior sampling via stochastic gradient Fisher
scoring, ICML 2012, section 5.1: logistic regression on the sevens and nines (N = 12214) in a random
projection to 50 dimensions and a constant, and the errors E1 of the posterior mean and E2 of the
posterior covariance (equation 14) as functions of the passes over the data. The prior here is
N(0, I).

The posterior's precision has eigenvalues from 38 to 44,000. Plain SGLD must resolve the largest one
and mixes at the speed of the smallest one. So its step is near the limit of stability (4 / 44,000),
and its bias is in the few narrowest directions, which have little weight in E2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws
from benchmarks.common.problems import projected_mnist_7v9
from benchmarks.common.reference import Reference


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


def plot(result: Result, path: str) -> None:
    plot_errors({"SGLD": result.errors}, result.reference, path)


def plot_errors(errors: dict[str, list[Errors]], reference: Reference, path: str) -> None:
    """Draws errors against passes, with the noise floor of the reference."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    names, floors = (
        ("E1, mean", "E2, covariance"),
        (reference.mean_floor, reference.covariance_floor),
    )
    for i, (axis, name, floor) in enumerate(zip(figure.subplots(1, 2), names, floors, strict=True)):
        for label, rows in errors.items():
            passes, *series = zip(*rows, strict=True)
            axis.loglog(passes, series[i], "o-", label=label)
        axis.axhline(floor, ls=":", color="k", label="noise of the reference")
        axis.set(xlabel="passes over the data", ylabel=name)
        axis.legend()
    figure.savefig(path)


def show(result: Result) -> None:
    print(result.reference)
    command_line.print_table({"passes": ".0f", "E1": ".4f", "E2": ".4f"}, result.errors)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, plot)
