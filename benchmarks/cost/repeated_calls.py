"""Memory maps and resident memory that calls of `sample(target)` leave behind. Linux only.

Each call has a new target with other data of one shape, N = 569 and D = 10, in one process. A row
follows after each tenth of the calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood
from benchmarks.common.memory import start_peak


def run(
    *, num_calls: int = 60, num_examples: int = 569, dim: int = 10
) -> Iterator[tuple[int, int, float]]:
    """Samples one posterior after the other.

    Args:
      num_calls: number of posteriors.
      num_examples: N.
      dim: D.
    """
    for call in range(1, num_calls + 1):
        rng = tf.random.Generator.from_seed(call)
        x = rng.normal([num_examples, dim])
        y = tf.cast(rng.uniform([num_examples]) < tf.sigmoid(x[:, 0]), tf.float32)
        data = as_batch(x.numpy(), y.numpy())
        target = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, data, 100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sgmcmc.sample(target, tf.zeros([dim]), 500, seed=call, progress_bar=False)
        if call % max(1, num_calls // 10) == 0:
            maps = Path("/proc/self/maps").read_text().count("\n")
            yield call, maps, start_peak()


def show(rows: Iterator[tuple[int, int, float]]) -> None:
    command_line.print_table({"calls": "5d", "maps": "6d", "RSS, MB": "7.0f"}, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show)
