"""The cost of an effective sample on data in files, beside the same data in memory.

A regression in memory-mapped `.npy` files, with nothing chosen. Each row of the table is a new
process, which samples by

  pool     `sample(streamed, ...)`, of which a tenth of the rows fits into `memory=`,
  loaded   `sample(streamed, ...)` with enough memory for all rows,
  memory   `sample(target, ...)` of a `MinibatchLogProb` with the same arrays,
  HMC      `tfp.mcmc.HamiltonianMonteCarlo` on the log posterior of the stream, whitened by the mode
           and the Hessian of the pool, eagerly, since each gradient is a pass over the files. All
           chains share a pass.

It gives

  passes   over the files,
  ESS      the median effective sample size of all chains,
  set-up   processor seconds of `draw_pool`, which is a part of the call,
  call     processor seconds of the whole call, with compilation,
  wall     seconds of the call,
  ms       processor milliseconds of the call for an effective sample,
  wall ms  the same in seconds of the clock,
  read     processor seconds of a pass of `tf.data` that only reads,
  gradient the same of one that computes a gradient, compiled by XLA,
  ESS at once   effective samples that take as long as one such pass, of which HMC needs several.

Processor seconds hardly depend on other work on the machine, except where that uses up the memory's
bandwidth. Linux only.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.accuracy.streams import LIKELIHOODS, gradient, seconds_of_pass, stream
from benchmarks.common import command_line
from benchmarks.common.memory import in_new_process
from benchmarks.common.regression_files import MODELS, write
from benchmarks.common.tables import Table
from benchmarks.common.timing import processor_seconds

WAYS = ("pool", "loaded", "memory", "HMC")
_CHAINS, _STEP, _LEAPFROGS, _BURNIN = 8, 0.4, 4, 2


class Row(NamedTuple):
    """A row of the table; see the module."""

    way: str
    sampler: str
    passes: int
    size: float
    setup: float
    call: float
    wall: float
    each: float
    wall_each: float
    read: float
    gradient: float
    at_once: float


def measure(
    folder: Path, way: str, model: str, num_examples: int, num_results: int, hmc_results: int
) -> Row:
    """Samples in this process."""
    dim = np.load(next(folder.glob("x-*.npy")), mmap_mode="r").shape[1]
    some = num_examples * 4 * (dim + 1) // 10
    memory = 20 * some if way == "loaded" else some
    target, dataset, starts = stream(folder, model, num_examples, memory)
    start, setup, first = tf.zeros([dim]), float("nan"), len(starts)
    given = in_memory(folder, target) if way == "memory" else target
    clocks = time.process_time(), time.perf_counter()
    if way == "HMC":
        sampler, (size, setup) = "HMC", whitened_hmc(target, start, hmc_results)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = sgmcmc.sample(given, start, num_results, seed=0, progress_bar=False)
        sampler, size = result.choices.sampler, float(np.median(result.summary().ess_bulk))
    call, wall = time.process_time() - clocks[0], time.perf_counter() - clocks[1]
    passes = len(starts) - first if way != "memory" else 0
    slope = gradient(model, start)
    seconds_of_pass(dataset.take(2), slope)  # which compiles
    read, one = (
        float(np.median([processor_seconds(f)[0] for _ in range(3)]))
        for f in (
            lambda: seconds_of_pass(dataset, lambda x, y: None),
            lambda: seconds_of_pass(dataset, slope),
        )
    )
    if way in ("pool", "loaded"):
        setup, _ = processor_seconds(lambda: sgmcmc.draw_pool(target, start))
    return Row(
        way, sampler, passes, size, setup, call, wall, 1e3 * call / size, 1e3 * wall / size, read,
        one, one / (call / size),
    )  # fmt: skip


def in_memory(folder: Path, target: sgmcmc.StreamedLogProb) -> sgmcmc.MinibatchLogProb:
    """Returns the target of the same rows in memory."""
    x, y = (np.concatenate([np.load(f) for f in sorted(folder.glob(f"{n}-*"))]) for n in "xy")
    model = target.of_one_batch
    return sgmcmc.MinibatchLogProb(
        model.log_prior, model.linear_model or LIKELIHOODS["linear"], (x, y), batch_size=500
    )


def whitened_hmc(
    target: sgmcmc.StreamedLogProb, start: tf.Tensor, num_results: int
) -> tuple[float, float]:
    """Returns the median effective sample size, and processor seconds of the set-up."""
    began = time.process_time()
    pool, _ = sgmcmc.draw_pool(target, start)
    center, found = sgmcmc.find_center(pool, start)
    covariance = np.linalg.inv(-np.asarray(found.hessian, np.float64))
    factor = tf.constant(np.linalg.cholesky(covariance), start.dtype)
    setup = time.process_time() - began
    kernel = tfp.mcmc.HamiltonianMonteCarlo(
        lambda z: target(center + tf.linalg.matvec(factor, z)), _STEP, _LEAPFROGS
    )
    z = tf.random.stateless_normal([_CHAINS, start.shape[0]], [0, 1])
    carried, draws = kernel.bootstrap_results(z), []
    for i in range(_BURNIN + num_results):
        z, carried = kernel.one_step(z, carried, seed=[1, i])
        draws.append(z)
    size = tfp.mcmc.effective_sample_size(
        tf.stack(draws[_BURNIN:]), filter_beyond_positive_pairs=True, cross_chain_dims=1
    )
    return float(np.median(size)), setup


def run(
    *,
    ways: tuple[str, ...] = WAYS,
    model: str = "logistic",
    num_examples: int = 2_000_000,
    num_features: int = 20,
    num_results: int = 4_000,
    hmc_results: int = 20,
) -> Iterator[Row]:
    """Samples in each way.

    Args:
      ways: how; see above.
      model: the regression.
      num_examples: N.
      num_features: D.
      num_results: draws of each chain of `sample`.
      hmc_results: draws of each of the 8 chains of HMC.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        in_new_process(write, folder, model, "shuffled", num_examples, num_features, 20, 2)
        for way in ways:
            given = folder, way, model, num_examples, num_results, hmc_results
            yield in_new_process(measure, *given)


def show(rows: Iterator[Row]) -> Table:
    """Prints the table."""
    columns = {
        "": "<6", "sampler": "<21", "passes": "d", "ESS": ">6.0f", "set-up": ">6.1f",
        "call": ">6.1f", "wall": ">6.1f", "ms": ">6.2f", "wall ms": ">6.2f", "read": ".2f",
        "gradient": ".2f", "ESS at once": ".0f",
    }  # fmt: skip
    return command_line.print_table(columns, rows)


if __name__ == "__main__":
    named = {"ways": WAYS, "model": MODELS}
    command_line.main(__doc__, run, show, choices=named, table="cost.stream_effective")
