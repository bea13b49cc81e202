"""Time and memory of `sgmcmc.sample` beside `tfp.mcmc.sample_chain`.

SGLD on logistic regression, MNIST 7 v 9 in 128 principal components and a constant (D = 129,
float32), all states kept. All sides are compiled in a first call that is not counted and are then
timed in turn, the driver with its progress bar. Last comes the driver's resident memory while it
streams to a directory, in a new process.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood
from benchmarks.common.memory import in_new_process, peak, start_peak
from benchmarks.common.timing import in_turn, seconds

STEP_SIZE = 1e-5


def make_kernel(batch_size: int) -> tuple[sgmcmc.SGLD, np.ndarray]:
    """Returns the kernel and its first state."""
    x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=128)
    target = sgmcmc.MinibatchLogProb(gaussian_log_prior, log_likelihood, as_batch(x, y), batch_size)
    return sgmcmc.SGLD(target, STEP_SIZE), np.zeros(x.shape[1], np.float32)


def speed(batch_size: int, num_steps: int, repeats: int) -> Iterator[tuple[Any, ...]]:
    """Times all sides in turn, in microseconds a step."""
    kernel, initial = make_kernel(batch_size)
    chain = compiled(kernel, num_steps)
    state, seed = tf.constant(initial), tf.constant([0, 1])

    def sample(**options: Any) -> float:
        result = sgmcmc.sample_chain(
            kernel, initial, num_steps, seed=1, progress_bar=True, **options
        )
        return result.timings.seconds

    def to_disk() -> float:
        with tempfile.TemporaryDirectory() as folder:
            return sample(directory=folder)

    sides: dict[str, Callable[[], float]] = {
        "sample_chain": lambda: seconds(lambda: chain(state, None, seed).all_states.numpy()),
        "sample": sample,
        "sample, to disk": to_disk,
    }
    times = in_turn(sides, repeats)
    base = times["sample_chain"]
    for name, values in times.items():
        ratio = statistics.median(t / b for t, b in zip(values, base, strict=True))
        least, median = (1e6 * x / num_steps for x in (min(values), statistics.median(values)))
        yield batch_size, name, least, median, min(values) / min(base), ratio


def memory(batch_size: int, num_results: int) -> str:
    """Returns, in words, the resident memory of a run from its second checkpoint on."""
    kernel, initial = make_kernel(batch_size)
    before = 0.0

    def watch(checkpoint: Path) -> None:
        nonlocal before
        while not checkpoint.exists():
            time.sleep(0.1)
        first = checkpoint.stat().st_mtime_ns
        while checkpoint.stat().st_mtime_ns == first:
            time.sleep(0.1)
        before = start_peak()

    with tempfile.TemporaryDirectory() as folder:
        watcher = threading.Thread(target=watch, args=[Path(folder) / "checkpoint.npz"])
        watcher.start()
        result = sgmcmc.sample_chain(
            kernel, initial, num_results, seed=0, progress_bar=False,
            directory=sgmcmc.Directory(folder, seconds_between_commits=1.0),
        )  # fmt: skip
        added = peak() - before
        watcher.join()
    size = num_results * initial.nbytes / 1e6
    return (
        f"{result.num_results} results of D = {len(initial)} ({size:.0f} MB on disk): {before:.0f} "
        f"MB after the second checkpoint, at most {added:.1f} MB more from there to the last result"
    )


def run(
    *,
    batch_sizes: tuple[int, ...] = (100, 500),
    steps: int = 100_000,
    repeats: int = 7,
    num_results: int = 1_000_000,
) -> tuple[Iterator[tuple[Any, ...]], Callable[[], str]]:
    """Prepares both measurements.

    Args:
      num_results: results of the run whose memory is measured.
    """
    rows = (row for n in batch_sizes for row in speed(n, steps, repeats))
    return rows, lambda: in_new_process(memory, batch_sizes[0], num_results)


def show(result: tuple[Iterator[tuple[Any, ...]], Callable[[], str]]) -> None:
    rows, memory = result
    print("microseconds a step; ratios of the least times, and medians of the ratios")
    columns = {"n": "4d", "": "16s", "least": "8.2f", "median": "8.2f"}
    command_line.print_table({**columns, "ratio": "7.3f", "median ratio": "7.3f"}, rows)
    print(memory())


if __name__ == "__main__":
    command_line.main(__doc__, run, show)
