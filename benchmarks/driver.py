"""What `sgmcmc.sample` costs beside `tfp.mcmc.sample_chain`, and the memory it takes.

SGLD on logistic regression, MNIST 7 v 9 in 128 principal components and a constant (D = 129,
float32), all states kept. Both are compiled in a first call that is not counted, and are then timed
in turn, the driver with its progress bar; the second table gives the driver's resident memory
while it streams to a directory, in a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import describe

STEP_SIZE = 1e-5


def make_kernel(batch_size: int) -> Any:
    import datasets
    import tfp_sgmcmc as sgmcmc
    from benchmarks.logistic import as_batch, gaussian_log_prior, log_likelihood

    x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=128)
    target = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, as_batch(x, y), batch_size)
    return sgmcmc.SGLD(target, STEP_SIZE), np.zeros(x.shape[1], np.float32)


def speed(batch_size: int, num_steps: int, repeats: int) -> None:
    """Prints microseconds a step of both, of calls timed in turn."""
    import tensorflow as tf
    import tensorflow_probability as tfp

    import tfp_sgmcmc as sgmcmc

    kernel, initial = make_kernel(batch_size)

    @tf.function(jit_compile=True)
    def chain(seed: tf.Tensor) -> tf.Tensor:
        return tfp.mcmc.sample_chain(
            num_steps, tf.constant(initial), kernel=kernel, trace_fn=None, seed=seed
        )

    def sample_chain(seed: int) -> float:
        began = time.perf_counter()
        chain(tf.constant([0, seed])).numpy()
        return time.perf_counter() - began

    def sample(seed: int, **options: Any) -> float:
        return sgmcmc.sample(
            kernel, initial, num_steps, seed=seed, progress_bar=True, **options
        ).timings.seconds

    def to_disk(seed: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return sample(seed, directory=folder)

    sides: dict[str, Callable[[int], float]] = {
        "sample_chain": sample_chain,
        "sample": sample,
        "sample, to disk": to_disk,
    }
    sample_chain(0)  # compiles; `sample` tells its compilation apart
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name, side in sides.items():
            times[name].append(1e6 * side(1 + repeat) / num_steps)
    base = times["sample_chain"]
    for name, values in times.items():
        ratio = statistics.median(t / b for t, b in zip(values, base, strict=True))
        print(
            f"{batch_size:>4} {name:>16} {min(values):>8.2f} / {statistics.median(values):.2f} "
            f"{min(values) / min(base):>7.3f} {ratio:>7.3f}",
            flush=True,
        )


def memory(batch_size: int, num_results: int, folder: str) -> None:
    """Prints the resident memory of a run after its second checkpoint, and its peak from there."""
    import tfp_sgmcmc as sgmcmc
    from benchmarks.memory import peak, start_peak

    kernel, initial = make_kernel(batch_size)
    before = 0.0

    def watch() -> None:
        nonlocal before
        while not (checkpoint := Path(folder) / "checkpoint.npz").exists():
            time.sleep(0.1)
        first = checkpoint.stat().st_mtime_ns
        while checkpoint.stat().st_mtime_ns == first:
            time.sleep(0.1)
        before = start_peak()

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = sgmcmc.sample(
        kernel,
        initial,
        num_results,
        seed=0,
        directory=folder,
        progress_bar=False,
        checkpoint_seconds=1.0,
    )
    added = peak() - before
    watcher.join()
    size = num_results * initial.nbytes / 1e6
    print(
        f"{result.num_results} results of D = {len(initial)} ({size:.0f} MB on disk): {before:.0f} "
        f"MB after the second checkpoint, at most {added:.1f} MB more from there to the last result"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--num-results", type=int, default=1_000_000, help="for the memory")
    parser.add_argument("--memory-in", help="measure the memory in this process and directory")
    arguments = parser.parse_args()
    if arguments.memory_in:
        memory(arguments.batch_sizes[0], arguments.num_results, arguments.memory_in)
        return
    print(describe())
    print(
        f"microseconds a step, least / median of {arguments.repeats}; ratio of least, median ratio"
    )
    for batch_size in arguments.batch_sizes:
        speed(batch_size, arguments.steps, arguments.repeats)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.driver", *sys.argv[1:], "--memory-in", folder]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
