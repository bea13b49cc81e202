"""Processor time from a call to 400 effective samples, everything included.

Each posterior runs in a new process, on one core: `sample(target)` twice, the second time with
another seed, and NUTS of TensorFlow Probability with dual averaging of the step, compiled by XLA,
twice with the same compiled program. All start at zeros. Times include the search for a mode,
adaptation, tracing and compilation, but neither the import of packages nor the making of data. If
fewer than 400 effective samples of the worst parameter came out, the time of drawing is multiplied
accordingly.

The columns are, for each of the two,

  first    processor seconds of the first call,
  second   of the second,
  ESS      effective samples of the worst parameter, all chains together, and
  ratio    seconds of NUTS divided by those of `sample`, first and second call.

A call of NUTS that takes longer than `--most-seconds` has no figures. It is stopped between blocks
of 50 draws, or within a block when the process has used twice as much.
"""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled, effective_sizes
from benchmarks.common.environment import use_one_core
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood
from benchmarks.common.memory import in_new_process
from benchmarks.common.tables import Table
from benchmarks.posteriordb.regressions import POSTERIORS as REGRESSIONS

tfd = tfp.distributions
_GOAL, _NUM_CHAINS, _BLOCK = 400, 4, 50


class Times(NamedTuple):
    """Processor seconds of two calls, and effective samples of the worst parameter."""

    first: float
    second: float
    ess: float


def logistic(num_examples: int, dim: int) -> tuple[sgmcmc.MinibatchLogProb, Any]:
    """Logistic regression on synthetic data with a standard normal prior."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal([num_examples, dim]).astype(np.float32)
    p = 1 / (1 + np.exp(-x @ rng.standard_normal(dim) / dim**0.5))
    y = (rng.random(num_examples) < p).astype(np.float32)
    data = as_batch(x, y)
    return sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, data, 100), tf.zeros([dim])


def breast_cancer() -> tuple[sgmcmc.MinibatchLogProb, Any]:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    data = as_batch(((x - x.mean(0)) / x.std(0)).astype(np.float32), y.astype(np.float32))
    return sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, data, 100), tf.zeros([30])


def poisson(num_examples: int, dim: int) -> tuple[sgmcmc.MinibatchLogProb, Any]:
    """Poisson regression on synthetic data with a standard normal prior."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal([num_examples, dim]).astype(np.float32) / dim**0.5
    y = rng.poisson(np.exp(x @ rng.standard_normal(dim))).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        gaussian_log_prior,
        lambda w, b: tfd.Poisson(log_rate=tf.linalg.matvec(b[0], w)).log_prob(b[1]),
        (x, y),
        100,
    )
    return target, tf.zeros([dim])


def robust(num_examples: int) -> tuple[sgmcmc.MinibatchLogProb, Any]:
    """Location and scale of heavy-tailed observations."""
    rng = np.random.default_rng(2)
    y = (3 + 2 * rng.standard_t(4, num_examples)).astype(np.float32)

    target = sgmcmc.MinibatchLogProb(
        lambda mu, log_sigma: (
            tfd.Normal(0.0, 10.0).log_prob(mu) + tfd.Normal(0.0, 2.0).log_prob(log_sigma)
        ),
        lambda mu, log_sigma, y: tfd.StudentT(
            4.0, mu[..., None], tf.exp(log_sigma[..., None])
        ).log_prob(y),
        y,
        100,
    )
    return target, [tf.zeros([]), tf.zeros([])]


def from_posteriordb(name: str) -> tuple[sgmcmc.MinibatchLogProb, Any]:
    posterior = REGRESSIONS[name]()
    return posterior.target("float64"), posterior.start("zeros", "float64")


PROBLEMS: dict[str, Callable[[], tuple[sgmcmc.MinibatchLogProb, Any]]] = {
    "earnings-logearn_height": lambda: from_posteriordb("earnings-logearn_height"),
    "kidiq-kidscore_momiq": lambda: from_posteriordb("kidiq-kidscore_momiq"),
    "mesquite-logmesquite": lambda: from_posteriordb("mesquite-logmesquite"),
    "breast cancer, D = 30": breast_cancer,
    "Poisson, N = 5,000, D = 10": lambda: poisson(5_000, 10),
    "Student t, N = 100,000, D = 2": lambda: robust(100_000),
    "logistic, N = 2,000, D = 3": lambda: logistic(2_000, 3),
    "logistic, N = 20,000, D = 50": lambda: logistic(20_000, 50),
    "logistic, N = 1,000,000, D = 10": lambda: logistic(1_000_000, 10),
    "logistic, N = 5,000, D = 500": lambda: logistic(5_000, 500),
}


def worst_size(states: Any) -> float:
    parts = [np.asarray(x, np.float64) for x in tf.nest.flatten(states)]
    flat = np.concatenate([x.reshape(*x.shape[:2], -1) for x in parts], axis=-1)
    return float(np.min(effective_sizes(flat, cross_chain_dims=1)))


def time_of_sample(name: str, num_results: int) -> Times:
    """Times two calls of `sample(target)`."""
    use_one_core()
    target, start = PROBLEMS[name]()
    seconds, ess = [], 0.0
    for seed in range(2):
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = sgmcmc.sample(target, start, num_results, seed=seed, progress_bar=False)
        elapsed, ess = time.process_time() - began, worst_size(result.states)
        seconds.append(elapsed + result.timings.seconds * max(0.0, _GOAL / ess - 1))
    return Times(*seconds, ess)


def time_of_nuts(name: str, num_results: int, most_seconds: float) -> Times:
    """Times NUTS with its adaptation, compiled once and run twice."""
    use_one_core()
    most = int(time.process_time() + 2 * most_seconds + 60)  # of making the data and importing
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    target, start = PROBLEMS[name]()
    dtype = tf.nest.flatten(start)[0].dtype
    zeros = tf.nest.map_structure(lambda x: tf.zeros([_NUM_CHAINS, *x.shape], dtype), start)
    parts = tf.nest.flatten(zeros)

    def log_prob(*parts: tf.Tensor) -> tf.Tensor:
        state = tf.nest.pack_sequence_as(zeros, parts)
        return target(**state) if isinstance(state, dict) else target(*parts)

    nuts = tfp.mcmc.NoUTurnSampler(log_prob, tf.constant(0.1, dtype))
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(nuts, 400)
    run, seconds, ess = compiled(kernel, _BLOCK), list[float](), 0.0
    num_blocks = -(-num_results // _BLOCK)
    for seed in range(2):
        began = time.process_time()
        state, results, kept = parts, kernel.bootstrap_results(parts), list[Any]()
        for i in range(500 // _BLOCK + num_blocks):
            last = run(state, results, tf.constant([seed, i]))
            state, results = [x[-1] for x in last.all_states], last.final_kernel_results
            if i >= 500 // _BLOCK:
                kept.append([x.numpy() for x in last.all_states])
            if time.process_time() - began > most_seconds:
                return Times(np.nan, np.nan, np.nan)
        elapsed = time.process_time() - began
        ess = worst_size([np.concatenate(part) for part in zip(*kept, strict=True)])
        share = num_blocks / (num_blocks + 500 // _BLOCK)
        seconds.append(elapsed * (1 + share * max(0.0, _GOAL / ess - 1)))
    return Times(*seconds, ess)


def run(
    *,
    problems: tuple[str, ...] = tuple(PROBLEMS),
    num_results: int = 500,
    most_seconds: float = 200.0,
) -> Iterator[tuple[Any, ...]]:
    """Measures one posterior after the other.

    Args:
      problems: names of posteriors.
      num_results: draws of each of four chains.
      most_seconds: processor seconds that a call of NUTS may take.
    """
    for name in problems:
        ours = Times(*in_new_process(time_of_sample, name, num_results))
        try:
            nuts = Times(*in_new_process(time_of_nuts, name, num_results, most_seconds))
        except BrokenProcessPool:  # the process was ended
            nuts = Times(np.nan, np.nan, np.nan)
        yield name, *ours, *nuts, nuts.first / ours.first, nuts.second / ours.second


def show(rows: Iterator[tuple[Any, ...]]) -> Table:
    return command_line.print_table(
        {
            "posterior": "32s",
            "first": "7.1f",
            "second": "7.1f",
            "ESS": "6.0f",
            "NUTS first": "7.1f",
            "NUTS second": "7.1f",
            "NUTS ESS": "6.0f",
            "ratio first": "7.1f",
            "ratio second": "7.1f",
        },
        rows,
    )


if __name__ == "__main__":
    given = {"problems": PROBLEMS}
    command_line.main(__doc__, run, show, choices=given, table="cost.time_to_answer")
