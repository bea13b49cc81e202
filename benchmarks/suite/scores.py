"""Scores of a method's samples: errors against the exact posterior, and seconds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import problems
from benchmarks.common.chains import compiled, timed
from benchmarks.common.reference import Reference
from benchmarks.suite import chains
from benchmarks.suite.profiles import PROFILE

NUM_PASSES = PROFILE.lengths.passes
NUM_RESULTS = 1000  # at most
NUM_BLOCKS = 10  # for the counted passes; burn-in takes as many
SECONDS = {"synthetic": 0.1, "mnist_7v9": 1.0}  # of equal computing time
# `TFP_SGMCMC_SEEDS=1` measures again with other seeds; see `benchmarks.suite.alarm`.
NUM_SEEDS = PROFILE.lengths.seeds
SEEDS = tuple(
    NUM_SEEDS * int(os.environ.get("TFP_SGMCMC_SEEDS", "0")) + i for i in range(NUM_SEEDS)
)
RESOLUTION = 0.1  # of biases of temperature and variance; smaller ones are noise of the seeds


class Scores(NamedTuple):
    """Scores for each seed, `[seeds]`; lower is better."""

    # E1 after `NUM_PASSES` passes over the data (Ahn et al. 2012, equation 14).
    mean_error: np.ndarray
    covariance_error: np.ndarray  # E2 after as many passes
    # |mean over coordinates of E (theta - exact mean)^2 / exact variance - 1|, at least
    # `RESOLUTION`.
    variance_bias: np.ndarray
    matched_bias: np.ndarray  # the same bias of the samples from the first `SECONDS` of computing
    seconds_per_effective_sample: np.ndarray  # seconds for the median coordinate
    # The squared kernel Stein discrepancy (V statistic) of samples in units of the exact standard
    # deviations.
    stein_discrepancy: np.ndarray
    # |kinetic temperature - 1|, at least `RESOLUTION`; NaN without momenta.
    temperature_error: np.ndarray


def measure(
    problem: str,
    target: sgmcmc.MinibatchLogProb,
    method: chains.Method,
    seeds: Sequence[int] = SEEDS,
) -> Scores:
    """Returns the scores of a chain for each seed, started at the exact mean."""
    reference = problems.reference(problem, PROFILE.lengths.reference_draws)
    num_steps = NUM_PASSES * target.num_examples // method.examples
    thinning = max(1, num_steps // NUM_RESULTS)
    kernel = method.make_kernel()
    num_results = num_steps // thinning // NUM_BLOCKS
    run = compiled(kernel, num_results, thinning, trace_fn=chains.temperature)
    start = tf.constant(reference.mean, tf.float32)
    results = kernel.bootstrap_results(start)
    run(start, results, tf.constant([0, 0]))  # compiles
    samples, temperatures, seconds = [], [], []
    for seed in seeds:
        states, traces, took = timed(run, start, results, seed, NUM_BLOCKS, NUM_BLOCKS)
        samples.append(states)
        temperatures.append(np.mean(traces))
        seconds.append(took)
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
    stein = sgmcmc.diagnostics.squared_kernel_stein_discrepancy(
        thinned / scale,
        sgmcmc.diagnostics.gradients_at(target, thinned) * scale,
        chain_ndims=1,
        statistic="V",
    )
    parts = np.minimum(1, matched_seconds / seconds)
    errors = [
        (
            *reference.errors(x),
            variance_bias(x, reference),
            variance_bias(x[: max(3, int(part * len(x)))], reference),
        )
        for x, part in zip(np.moveaxis(samples.astype(np.float64), 1, 0), parts, strict=True)
    ]
    return Scores(
        *np.transpose(errors),
        # The least time, as other work on the machine only adds to the time.
        seconds.min() / np.median(effective, axis=1),
        np.asarray(stein),
        np.maximum(RESOLUTION, np.abs(temperatures - 1)),  # NaN stays
    )


def variance_bias(samples: np.ndarray, reference: Reference) -> float:
    """Returns `variance_bias` of `Scores` for draws `[S, D]`."""
    variances = np.mean((samples - reference.mean) ** 2, axis=0)
    return max(RESOLUTION, abs(np.mean(variances / np.diag(reference.covariance)) - 1))
