"""Every sampler on one posterior: bias, and seconds for an effective sample.

Logistic regression on MNIST 7 v 9 in 128 principal components and a constant (N = 12214, D = 129),
prior N(0, 100 I), minibatches of n without replacement, one chain for each sampler. The exact
posterior comes from long HMC on all data. The table gives

  slope    of the regression of the sampler's posterior means on the exact ones,
  sd       the mean ratio of the sampler's posterior standard deviations to the exact ones,
  E1, E2   errors of mean and covariance (Ahn et al. 2012, equation 14),
  us       microseconds a step,
  steps    steps for an effective sample of the median coordinate,
  passes   passes over the data for that sample,
  ms       milliseconds for that sample, and
  slowest  milliseconds for an effective sample of the slowest coordinate.

SGLD is run at a step at which it mixes about as fast as the others, and at a small one. The last
rows are exact samplers on all data: corrected Langevin, HMC of 10 leapfrog steps and NUTS, at the
steps of `benchmarks.accuracy.compare`, and HMC of 3 leapfrog steps in the coordinates of Laplace's
approximation, whose cost is left out. A chain that becomes infinite has NaN in all columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.accuracy.compare import factor
from benchmarks.common import command_line, problems
from benchmarks.common.chains import compiled, effective_sizes, timed
from benchmarks.common.methods import (
    LEAPFROG_STEPS,
    Method,
    constant,
    find_mode,
    on_all_data,
)
from benchmarks.common.posteriors import named
from benchmarks.common.reference import Reference, moments
from benchmarks.common.samplers import samplers
from benchmarks.common.tables import Table

COLUMNS = {
    "": "<22", "slope": "6.3f", "sd": "6.3f", "E1": "6.3f", "E2": "6.2f", "us": "6.0f",
    "steps": "6.0f", "passes": "6.2f", "ms": "6.1f", "slowest": "8.1f",
}  # fmt: skip


class Row(NamedTuple):
    """The measurements of one sampler; see the columns above."""

    name: str
    slope: float
    sd_ratio: float
    mean_error: float
    covariance_error: float
    us_per_step: float
    steps_per_effective: float
    passes_per_effective: float
    ms_per_effective: float
    slowest_ms_per_effective: float


def measure(
    name: str,
    kernel: Any,
    count: Callable[[Any], Any],
    num_examples: int,
    reference: Reference,
    *,
    num_steps: int,
    thinning: int,
    seed: int,
) -> Row:
    """Runs one chain from the exact mean in ten blocks. The first is burn-in and compiles.

    `count` returns how many examples a step took a gradient of, given its results.
    """
    run = compiled(
        kernel, num_steps // thinning // 10, thinning, trace_fn=lambda _, results: count(results)
    )
    start = tf.constant(reference.mean, tf.float32)
    samples, counts, seconds = timed(run, start, kernel.bootstrap_results(start), seed, 1, 9)
    sgmcmc.check_finite(samples)
    mean, covariance = moments(samples)
    deviations = np.sqrt(np.diag(covariance)), np.sqrt(np.diag(reference.covariance))
    effective = effective_sizes(samples)
    num_counted = len(samples) * thinning
    median, least = np.median(effective), effective.min()
    return Row(
        name,
        float(np.polyfit(reference.mean, mean, 1)[0]),
        float(np.mean(deviations[0] / deviations[1])),
        *reference.errors(samples),
        1e6 * seconds / num_counted,
        num_counted / median,
        thinning * float(np.sum(counts)) / num_examples / median,
        1e3 * seconds / median,
        1e3 * seconds / least,
    )


def run(
    *,
    batch_size: int = 500,
    num_steps: int = 40_000,
    thinning: int = 5,
    num_reference_results: int = 600,
    num_full_gradients: int = 20_000,
    only: tuple[str, ...] = (),
    seed: int = 0,
) -> Iterator[Row]:
    """Measures one sampler after the other.

    Args:
      num_full_gradients: gradients of all data for each exact sampler; NUTS may take more.
      only: names, or beginnings of names, of samplers.
    """
    target = problems.make_target(*problems.data("mnist_7v9"), batch_size)
    reference = problems.reference("mnist_7v9", num_reference_results, seed)
    print(reference)
    total, of_batch = target.num_examples, constant(batch_size)
    jobs = {name: (make, of_batch, num_steps, thinning) for name, make in samplers(target).items()}
    for name, method in exact_samplers(batch_size).items():
        make = functools.partial(method.make_kernel, factor(name) * method.unit)
        steps = num_full_gradients * total // min(method.examples, LEAPFROG_STEPS * total)
        jobs[name] = make, method.count, steps, 1
    for name, (make, count, steps, apart) in jobs.items():
        if only and not name.startswith(only):
            continue
        try:
            yield measure(
                name, make(), count, total, reference, num_steps=steps, thinning=apart, seed=seed
            )
        except sgmcmc.NonFiniteChainError:
            yield Row(name, *[np.nan] * 9)


def exact_samplers(batch_size: int) -> dict[str, Method]:
    """Returns the samplers on all data."""
    p = named("mnist_7v9")
    target = p.target(batch_size)
    return on_all_data(p, target, find_mode(target, len(p.mode))[1])


def show(rows: Iterator[Row]) -> Table:
    return command_line.print_table(COLUMNS, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="accuracy.samplers")
