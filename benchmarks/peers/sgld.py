"""Time of one step of SGLD, here and in BlackJAX, on logistic regression.

MNIST 7 v 9 in 128 principal components and a constant: N = 12214, D = 129, float32. Both sides
start a process, compile each case once, and are then timed in turn; the table gives the least and
the median time of the repeats, in microseconds a step (of all chains). The ratio is of medians.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import numpy as np

import datasets
from benchmarks.environment import num_cores
from benchmarks.peers import install
from benchmarks.peers.worker import Case, Worker

# chains, one minibatch for all, every state kept
LAYOUTS = ((1, False, False), (1, False, True), (64, False, False), (64, True, False))


@contextlib.contextmanager
def workers(
    peer_python: Path,
    data: Path,
    cores: set[int] | None,
    ours: str = "benchmarks.peers.sgld_ours",
    peer: str = "benchmarks.peers.sgld_blackjax",
) -> Generator[list[Worker]]:
    """Our side and the peer's, each a module that serves timings."""
    started = [Worker(sys.executable, ours, data, cores)]
    try:
        started.append(Worker(peer_python, peer, data, cores))
        yield started
    finally:
        for worker in started:
            worker.close()


def compare(sides: list[Worker], cases: list[Case], repeats: int, seed: int) -> list[list[float]]:
    """Times of ours in each of the cases, then BlackJAX's (with replacement), taken in turn."""
    jobs = [(sides[0], case) for case in cases] + [(sides[1], cases[0])]
    for worker, case in jobs:
        worker.time(case, seed)
    times: list[list[float]] = [[] for _ in jobs]
    for repeat in range(repeats):
        for (worker, case), result in zip(jobs, times, strict=True):
            result.append(worker.time(case, seed + 1 + repeat))
    return times


def print_table(sides: list[Worker], arguments: argparse.Namespace, cores: int) -> None:
    print(f"\ncores: {cores}; microseconds a step, least / median of {arguments.repeats}")
    print(
        f"{'n':>4} {'chains':>6} {'minibatch':>9} {'kept':>4} {'ours':>15} {'no replacement':>15} "
        f"{'BlackJAX':>15} {'ratio':>6} {'no rep.':>7}"
    )
    for n in arguments.batch_sizes:
        for chains, shared, keep_all in LAYOUTS:
            steps = max(200, arguments.steps // chains)
            cases = [Case(n, chains, shared, again, keep_all, steps) for again in (True, False)]
            times = compare(sides, cases, arguments.repeats, arguments.seed)
            medians = [statistics.median(t) for t in times]
            cells = (f"{min(t):.1f} / {m:.1f}" for t, m in zip(times, medians, strict=True))
            print(
                f"{n:>4} {chains:>6} {'shared' if shared else 'own':>9} "
                f"{'all' if keep_all else 'last':>4} " + " ".join(f"{c:>15}" for c in cells),
                f"{medians[0] / medians[2]:>6.2f} {medians[1] / medians[2]:>7.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--blackjax-python",
        type=Path,
        default=install.python(),
        help="an interpreter that has BlackJAX; `python -m benchmarks.peers.install` makes "
        "%(default)s",
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--steps", type=int, default=20_000, help="of one chain, a call")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-core-only", action="store_true")
    arguments = parser.parse_args()
    if not arguments.blackjax_python.exists():
        parser.error(
            f"{arguments.blackjax_python} does not exist; run "
            "`python -m benchmarks.peers.install` or give --blackjax-python"
        )
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "mnist_7v9.npz"
        x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=128)
        np.savez(data, x=x, y=y.astype(np.float32))
        settings = [] if arguments.one_core_only else [None]
        if hasattr(os, "sched_setaffinity"):
            settings.append({max(os.sched_getaffinity(0))})
        for cores in settings:
            with workers(arguments.blackjax_python, data, cores) as sides:
                print("\n" + "\n".join(side.versions for side in sides))
                print_table(sides, arguments, len(cores) if cores else num_cores())


if __name__ == "__main__":
    main()
