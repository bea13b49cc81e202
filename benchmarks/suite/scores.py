"""What is measured of a method's samples: errors against the exact posterior, and seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.reference import Reference
from benchmarks.samplers import compiled
from benchmarks.suite import chains, problems

NUM_PASSES = 500
NUM_RESULTS = 1000  # at most
NUM_BLOCKS = 10  # of the counted passes; as many are burn-in
SECONDS = {"synthetic": 0.1, "mnist_7v9": 1.0}  # of matched compute
SEEDS = (0, 1, 2, 3)
RESOLUTION = 0.1  # of biases of temperature and variance; smaller ones are the seeds'


class Scores(NamedTuple):
    """Figures for each seed, `[seeds]`; the lower the better.

    Attributes:
      mean_error: E1 after `NUM_PASSES` passes over the data (Ahn et al. 2012, equation 14).
      covariance_error: E2, likewise.
      variance_bias: |mean over coordinates of E (theta - exact mean)^2 / exact variance - 1|,
        at least `RESOLUTION`.
      matched_bias: the same of what the first `SECONDS` of computing give.
      seconds_per_effective_sample: of the median coordinate.
      stein_discrepancy: the squared discrepancy (V statistic), of samples in units of the exact
        standard deviations.
      temperature_error: |kinetic temperature - 1|, at least `RESOLUTION`; NaN without momenta.
    """

    mean_error: np.ndarray
    covariance_error: np.ndarray
    variance_bias: np.ndarray
    matched_bias: np.ndarray
    seconds_per_effective_sample: np.ndarray
    stein_discrepancy: np.ndarray
    temperature_error: np.ndarray


def measure(
    problem: str,
    target: sgmcmc.MinibatchLogProb,
    method: chains.Method,
    seeds: Sequence[int] = SEEDS,
) -> Scores:
    """The scores of a chain for each seed, started at the exact mean; each field is `[seeds]`."""
    reference = problems.reference(problem)
    num_steps = NUM_PASSES * target.num_examples // method.examples
    thinning = max(1, num_steps // NUM_RESULTS)
    kernel = method.make_kernel()
    run = compiled(kernel, num_steps // thinning // NUM_BLOCKS, thinning, chains.temperature)
    start = tf.constant(reference.mean, tf.float32)
    results = kernel.bootstrap_results(start)
    run(start, results, tf.constant([0, 0]))  # compiles
    samples, temperatures, seconds = [], [], []
    for seed in seeds:
        last = run(start, results, tf.constant([seed, 0]))
        blocks, begin = [], 0.0
        for i in range(1, 2 * NUM_BLOCKS):
            if i == NUM_BLOCKS:
                blocks, begin = [], time.perf_counter()
            last = run(last.all_states[-1], last.final_kernel_results, tf.constant([seed, i]))
            blocks.append((last.all_states.numpy(), last.trace.numpy()))
        seconds.append(time.perf_counter() - begin)
        states, traces = zip(*blocks, strict=True)
        samples.append(np.concatenate(states))
        temperatures.append(np.mean(traces))
    return score(
        np.stack(samples, axis=1), np.array(seconds), np.array(temperatures), reference, target,
        SECONDS[problem],
    )  # fmt: skip


def score(
    samples: np.ndarray,
    seconds: np.ndarray,
    temperatures: np.ndarray,
    reference: Reference,
    target: Any,
    matched_seconds: float,
) -> Scores:
    """Compares chains `[S, seeds, D]`, which took `seconds` each, with the exact moments."""
    sgmcmc.check_finite(samples)
    variances = np.diag(reference.covariance)
    effective = tfp.mcmc.effective_sample_size(samples, filter_beyond_positive_pairs=True)
    scale = np.sqrt(variances).astype(np.float32)
    thinned = samples[:: max(1, len(samples) // 200)]
    stein = sgmcmc.squared_kernel_stein_discrepancy(
        thinned / scale,
        sgmcmc.gradients_at(target, thinned) * scale,
        chain_ndims=1,
        statistic="V",
    )
    parts = np.minimum(1, matched_seconds / seconds)
    errors = [
        (
            sgmcmc.relative_mean_error(x.mean(axis=0), reference.mean),
            sgmcmc.relative_covariance_error(np.cov(x, rowvar=False), reference.covariance),
            variance_bias(x, reference),
            variance_bias(x[: max(3, int(part * len(x)))], reference),
        )
        for x, part in zip(np.moveaxis(samples.astype(np.float64), 1, 0), parts, strict=True)
    ]
    return Scores(
        *np.transpose(errors),
        seconds.min() / np.median(effective, axis=1),  # what else ran only adds to the others
        np.asarray(stein),
        np.maximum(RESOLUTION, np.abs(temperatures - 1)),  # NaN stays
    )


def variance_bias(samples: np.ndarray, reference: Reference) -> float:
    """|mean over coordinates of E (theta - exact mean)^2 / exact variance - 1| of `[S, D]`."""
    variances = np.mean((samples - reference.mean) ** 2, axis=0)
    return max(RESOLUTION, abs(np.mean(variances / np.diag(reference.covariance)) - 1))
