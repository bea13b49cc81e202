"""SGLD against the exact posterior: MNIST 7 v 9 in a random projection.

After Ahn, Korattikara & Welling, Bayesian posterior sampling via stochastic gradient Fisher
scoring, ICML 2012, section 5.1: logistic regression on the sevens and nines (N = 12214) in a random
projection to 50 dimensions and a constant, and the errors E1 of the posterior mean and E2 of the
posterior covariance (equation 14) as functions of the passes over the data. The prior here is
N(0, I).

The posterior's precision has eigenvalues from 38 to 44,000. Plain SGLD must resolve the largest and
mixes at the speed of the smallest, so its step is near the limit of stability (4 / 44,000) and its
bias sits in the few narrowest directions, which weigh little in E2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks import command_line
from benchmarks.logistic import as_batch, gaussian_log_prior, log_likelihood
from benchmarks.reference import Reference, exact_posterior, logistic_laplace


class Errors(NamedTuple):
    """Errors of all samples so far after a number of passes, counted for one chain."""

    passes: float
    mean_error: float
    covariance_error: float


class Result(NamedTuple):
    """The reference, and SGLD's errors on the way to it."""

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
    """Samples both posteriors; arguments as on the command line."""
    target, reference = posterior(batch_size, num_reference_results, seed)

    @tf.function(jit_compile=True)
    def sgld(initial: tf.Tensor, seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            num_steps // thinning,
            initial,
            kernel=sgmcmc.SGLD(target, step_size),
            num_burnin_steps=num_burnin_steps,
            num_steps_between_results=thinning - 1,
            trace_fn=None,
            seed=seed,
        )

    samples = sgld(tf.zeros([num_chains, len(reference.mean)]), tf.constant([seed, 3])).numpy()
    steps_per_pass = target.num_examples / batch_size
    errors = errors_on_the_way(samples, reference, num_burnin_steps, thinning, steps_per_pass)
    return Result(reference, errors)


def posterior(
    batch_size: int, num_reference_results: int, seed: int
) -> tuple[sgmcmc.MinibatchLogProb, Reference]:
    """The target, whose minibatches all chains share, and its exact moments."""
    x, y, _, _ = datasets.mnist_7v9()
    target = sgmcmc.MinibatchLogProb(
        gaussian_log_prior, log_likelihood, as_batch(x, y), batch_size, shared_batch=True
    )
    mode = logistic_laplace(x, y)
    return target, exact_posterior(target, mode, num_results=num_reference_results, seed=seed)


def errors_on_the_way(
    samples: np.ndarray,
    reference: Reference,
    num_burnin_steps: int,
    thinning: int,
    steps_per_pass: float,
) -> list[Errors]:
    """Of the first 1, 3, 9, ... and of all samples, `[num_results, num_chains, D]`."""
    errors = []
    for used in np.unique(np.geomspace(1, len(samples), 8).astype(int)):
        passes = (num_burnin_steps + used * thinning) / steps_per_pass
        errors.append(Errors(passes, *reference.errors(samples[:used])))
    return errors


def plot(result: Result, path: str) -> None:
    plot_errors({"SGLD": result.errors}, result.reference, path)


def plot_errors(errors: dict[str, list[Errors]], reference: Reference, path: str) -> None:
    """Errors against passes, with the reference's noise floor."""
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
