"""This library and another one on MNIST 7 v 9, in two processes, on all cores and on one."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

import datasets
from benchmarks.common.environment import num_cores, one_core
from benchmarks.common.timing import in_turn
from benchmarks.peers.worker import Case, Worker

Key = TypeVar("Key", bound=Hashable)


def logistic() -> tuple[np.ndarray, np.ndarray]:
    """Returns features, `[12214, 129]`, and labels in {0., 1.}."""
    x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=128)
    return x, y.astype(np.float32)


def sides(
    peer_python: Path, ours: str, peer: str, one_core_only: bool
) -> Iterator[tuple[int, list[Worker]]]:
    """Yields the number of cores and both sides, on all cores and (on Linux) on one.

    `ours` and `peer` are the modules that serve timings, the latter by `peer_python`.
    """
    if not peer_python.exists():
        sys.exit(
            f"{peer_python} does not exist. Run `python -m benchmarks.peers.install` or name "
            "another interpreter."
        )
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "mnist_7v9.npz"
        x, y = logistic()
        np.savez(data, x=x, y=y)
        settings = [] if one_core_only else [None]
        core = one_core()
        if core is not None:
            settings.append(core)
        for cores in settings:
            started: list[Worker] = []
            try:
                for python, module in ((sys.executable, ours), (peer_python, peer)):
                    started.append(Worker(python, module, data, cores))
                    print(started[-1].versions)
                yield len(cores) if cores else num_cores(), started
            finally:
                for worker in started:
                    worker.close()


def times(
    jobs: Mapping[Key, tuple[Worker, Case]], repeats: int, seed: int
) -> tuple[dict[Key, float], dict[Key, float]]:
    """Returns the least and the median microseconds a step of jobs that take turns."""
    found = in_turn(
        {key: lambda w=worker, c=case: w.time(c, seed) for key, (worker, case) in jobs.items()},
        repeats,
    )
    least = {key: min(values) for key, values in found.items()}
    return least, {key: statistics.median(values) for key, values in found.items()}
