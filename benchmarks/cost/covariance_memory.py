"""Memory of samplers with `diag` and `low_rank` covariance in many dimensions.

The mean of a Gaussian with N = 200 examples of D entries, minibatches of n = 20, scores in closed
form. Each row is measured in a new process: the peak of the resident memory that building a kernel,
compiling it and taking 20 steps add to data and libraries. It is given in MB and as the number of
`float32` values for each entry of the state. About 200 MB of it are the compiler's. The rest grows
in proportion to D. A D x D matrix would take 40 GB at D = 100,000. Linux only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled
from benchmarks.common.memory import in_new_process, peak, start_peak

NUM_EXAMPLES, BATCH_SIZE, NUM_STEPS = 200, 20, 20
KERNELS = {
    "NOGIN": lambda target, kind: sgmcmc.NOGIN(target, 0.03, covariance=kind),
    "CCAdL": lambda target, kind: sgmcmc.CCAdL(target, 0.01, covariance=kind),
    "SGFS": lambda target, kind: sgmcmc.SGFS(target, alpha=20.0, covariance=kind),
}


def measure(name: str, kind: str, dimension: int, seed: int) -> tuple[float, float, float]:
    """Runs a chain in this process; returns MB, numbers for each entry, and milliseconds a step."""
    x = np.random.default_rng(seed).standard_normal((NUM_EXAMPLES, dimension), np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, batch: -0.5 * tf.reduce_sum((batch - theta[..., None, :]) ** 2, axis=-1),
        x,
        BATCH_SIZE,
        score_fn=lambda theta, batch: batch - theta[..., None, :],
    )
    state = tf.constant(x.mean(axis=0))
    before = start_peak()
    run = compiled(KERNELS[name](target, kind), 1, num_burnin_steps=NUM_STEPS - 1)
    samples = run(state, None, tf.constant([seed, 0])).all_states
    added = peak() - before
    start = time.perf_counter()
    sgmcmc.check_finite(run(state, None, tf.constant([seed, 1])).all_states.numpy())
    milliseconds = 1e3 * (time.perf_counter() - start) / NUM_STEPS
    sgmcmc.check_finite(samples.numpy())
    return added, added * 1e6 / 4 / dimension, milliseconds


def run(
    *, dimensions: tuple[int, ...] = (25_000, 50_000, 100_000), seed: int = 0
) -> Iterator[tuple[str | float, ...]]:
    """Measures one row after the other."""
    for kind in ("diag", "low_rank"):
        for name in KERNELS:
            for dimension in dimensions:
                found = in_new_process(measure, name, kind, dimension, seed)
                yield name, kind, dimension, *found


def show(rows: Iterator[tuple[str | float, ...]]) -> None:
    columns = {"": "6s", "V": "8s", "D": "9d", "added MB": "8.0f", "numbers": "8.0f", "ms": "8.1f"}
    command_line.print_table(columns, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show)
