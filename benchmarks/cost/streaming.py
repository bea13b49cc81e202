"""A dataset larger than memory, sampled as it is read.

SGLD on logistic regression with synthetic data (float32, D features and a label of 0 or 1).
`tf.data` makes them block by block from a seed, in another order each epoch, and stores nothing.
The run takes `--epochs` passes through `sgmcmc.sample` and `StreamedLogProb`, with its draws in a
directory. It prints the amount of data read, the seconds, and the peak of resident memory from the
start of the process, TensorFlow's included. Twenty gigabytes are

    python -m benchmarks.cost.streaming --num-examples 50000000

The data were made from a parameter of norm 1, which is its distance from the start. The distance of
the draws' mean from it shows that the data were used. Linux only.
"""

from __future__ import annotations

import tempfile
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.logistic import gaussian_log_prior, log_likelihood
from benchmarks.common.memory import peak, start_peak


class Result(NamedTuple):
    """Everything that was measured."""

    gigabytes: float  # data that the steps read, in units of 10^9 bytes
    seconds: float  # seconds of the steps and the reading
    megabytes_before: float  # resident memory before the target was made
    megabytes: float  # peak of resident memory
    # Distance of the mean of the draws' second half from the parameter behind the data.
    distance: float


def run(
    *,
    num_examples: int = 1_000_000,
    num_features: int = 100,
    batch_size: int = 5_000,
    batches_per_read: int = 20,
    step_size: float = 3e-9,
    num_results: int = 200,
    epochs: int = 1,
    seed: int = 0,
) -> Result:
    """Samples in the given number of passes over the data."""
    before = start_peak()
    truth = np.random.default_rng(seed).standard_normal(num_features)
    truth = tf.constant(truth / np.linalg.norm(truth), tf.float32)
    num_batches = num_examples // batch_size

    def batch(number: tf.Tensor) -> dict[str, tf.Tensor]:
        keys = tf.stack([tf.constant(seed, tf.int64), number])
        x = tf.random.stateless_normal([batch_size, num_features], keys, alg="philox")
        u = tf.random.stateless_uniform([batch_size], keys + 2**40, alg="philox")
        return {"x": x, "y": tf.cast(u < tf.sigmoid(tf.linalg.matvec(x, truth)), tf.float32)}

    def dataset(epoch: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(num_batches)
        return numbers.shuffle(num_batches, seed=epoch).map(batch)

    target = sgmcmc.StreamedLogProb(
        gaussian_log_prior,
        log_likelihood,
        dataset,
        num_batches * batch_size,
        batches_per_read=batches_per_read,
    )
    num_steps = epochs * num_batches
    stride = max(1, num_steps // num_results)
    with tempfile.TemporaryDirectory() as folder:
        result = sgmcmc.sample_chain(
            sgmcmc.SGLD(target, step_size * 50_000_000 / num_examples),
            tf.zeros([num_features]),
            num_steps // stride,
            num_steps_between_results=stride - 1,
            num_burnin_steps=num_steps - 1 - (num_steps // stride - 1) * stride,
            seed=seed,
            directory=folder,
            progress_bar=False,
        )
        draws = np.asarray(result.states)
        steps = int(result.final_kernel_results.target_state.position)
        assert steps == num_steps and result.is_complete
        bytes_a_batch = 4 * batch_size * (num_features + 1)
        return Result(
            steps * bytes_a_batch / 1e9,
            result.timings.seconds,
            before,
            peak(),
            float(np.linalg.norm(draws[len(draws) // 2 :].mean(axis=0) - truth)),
        )


def show(result: Result) -> None:
    print(
        f"{result.gigabytes:.2f} GB read in {result.seconds:.0f} s "
        f"({result.gigabytes / result.seconds:.3f} GB/s); resident memory {result.megabytes:.0f} "
        f"MB at most, {result.megabytes_before:.0f} MB before; distance {result.distance:.4f}"
    )


if __name__ == "__main__":
    command_line.main(__doc__, run, show)
