"""Memory of samplers with `diag` and `low_rank` covariance in many dimensions.

The mean of a Gaussian with N = 200 examples of D entries, minibatches of n = 20, scores in closed
form. Each row is a process of its own: resident memory that building and compiling a kernel and
20 steps add at their peak to data and libraries, in all and in numbers of `float32` an entry of
the state. About 200 MB are the compiler's; the rest grows in proportion to D, where a D x D matrix
would take 40 GB at D = 100,000. Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.environment import describe
from benchmarks.memory import peak, start_peak

NUM_EXAMPLES, BATCH_SIZE, NUM_STEPS = 200, 20, 20
KERNELS = {
    "NOGIN": lambda target, kind: sgmcmc.NOGIN(target, 0.03, covariance=kind),
    "CCAdL": lambda target, kind: sgmcmc.CCAdL(target, 0.01, covariance=kind),
    "SGFS": lambda target, kind: sgmcmc.SGFS(target, alpha=20.0, covariance=kind),
}


def measure(name: str, kind: str, dimension: int, seed: int) -> str:
    """Runs a chain in this process, and returns its line of the table."""
    x = np.random.default_rng(seed).standard_normal((NUM_EXAMPLES, dimension), np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, batch: -0.5 * tf.reduce_sum((batch - theta[..., None, :]) ** 2, axis=-1),
        x,
        BATCH_SIZE,
        score_fn=lambda theta, batch: batch - theta[..., None, :],
    )

    @tf.function(jit_compile=True)
    def run(state: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tfp.mcmc.sample_chain(
            1,
            state,
            kernel=KERNELS[name](target, kind),
            num_burnin_steps=NUM_STEPS - 1,
            trace_fn=None,
            seed=seed,
        )

    state = tf.constant(x.mean(axis=0))
    before = start_peak()
    samples = run(state, tf.constant([seed, 0]))
    added = peak() - before
    start = time.perf_counter()
    sgmcmc.check_finite(run(state, tf.constant([seed, 1])).numpy())
    milliseconds = 1e3 * (time.perf_counter() - start) / NUM_STEPS
    sgmcmc.check_finite(samples.numpy())
    numbers = added * 1e6 / 4 / dimension
    return f"{name:>6} {kind:>8} {dimension:>9} {added:>8.0f} {numbers:>8.0f} {milliseconds:>8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dimensions", type=int, nargs="+", default=[25_000, 50_000, 100_000])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--row", nargs=3, metavar=("NAME", "KIND", "D"), help="in this process")
    arguments = parser.parse_args()
    if arguments.row:
        name, kind, dimension = arguments.row
        print(measure(name, kind, int(dimension), arguments.seed), flush=True)
        return
    print(describe(), flush=True)
    print(f"{'':>6} {'V':>8} {'D':>9} {'added MB':>8} {'numbers':>8} {'ms':>8}", flush=True)
    for kind in ("diag", "low_rank"):
        for name in KERNELS:
            for dimension in arguments.dimensions:
                row = ["--row", name, kind, str(dimension), "--seed", str(arguments.seed)]
                command = [sys.executable, "-m", "benchmarks.covariance_memory", *row]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
