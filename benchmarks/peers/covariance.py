"""Time of one step of NOGIN and CCAdL, here and in a loop written by hand in JAX.

MNIST 7 v 9 in 128 principal components and a constant: N = 12214, D = 129, n = 500, float32, a
full covariance averaged over past minibatches, drawn with replacement on both sides. Both start a
process, compile each case once, and are then timed in turn; the table gives the least and the
median time of the repeats, in microseconds a step. The ratio, of medians, is to JAX; of `diag` to
SGLD here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np

import datasets
from benchmarks.environment import num_cores
from benchmarks.peers import install
from benchmarks.peers.sgld import workers
from benchmarks.peers.worker import Case, Worker

OURS = "benchmarks.peers.covariance_ours"
JAX = "benchmarks.peers.covariance_jax"
ROWS = (  # name, side, the row that it is compared with
    ("NOGIN", 1, None),
    ("NOGIN", 0, ("NOGIN", 1)),
    ("NOGIN closed", 0, ("NOGIN", 1)),
    ("CCAdL", 1, None),
    ("CCAdL", 0, ("CCAdL", 1)),
    ("CCAdL closed", 0, ("CCAdL", 1)),
    ("SGLD", 0, None),
    ("NOGIN diag", 0, ("SGLD", 0)),
    ("CCAdL diag", 0, ("SGLD", 0)),
    ("NOGIN diag closed", 0, ("SGLD", 0)),
)


def print_table(sides: list[Worker], arguments: argparse.Namespace, cores: int) -> None:
    print(f"\ncores: {cores}; microseconds a step, least / median of {arguments.repeats}")
    times: dict[tuple[str, int], list[float]] = {(name, side): [] for name, side, _ in ROWS}
    for repeat in range(arguments.repeats + 1):
        for (name, side), values in times.items():
            case = Case(arguments.batch_size, 1, False, True, False, arguments.steps, name)
            values.append(sides[side].time(case, arguments.seed + repeat))
    medians = {key: statistics.median(values[1:]) for key, values in times.items()}
    for name, side, base in ROWS:
        values = times[name, side][1:]
        cell = f"{min(values):.0f} / {medians[name, side]:.0f}"
        ratio = "" if base is None else f"{medians[name, side] / medians[base]:.2f}"
        print(f"{'JAX' if side else 'ours':>5} {name:<18} {cell:>15} {ratio:>6}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--jax-python",
        type=Path,
        default=install.python(),
        help="an interpreter that has JAX; `python -m benchmarks.peers.install` makes %(default)s",
    )
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--steps", type=int, default=2_000, help="steps a call")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-core-only", action="store_true")
    arguments = parser.parse_args()
    if not arguments.jax_python.exists():
        parser.error(
            f"{arguments.jax_python} does not exist; run `python -m benchmarks.peers.install` or "
            "give --jax-python"
        )
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "mnist_7v9.npz"
        x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=128)
        np.savez(data, x=x, y=y.astype(np.float32))
        settings = [] if arguments.one_core_only else [None]
        if hasattr(os, "sched_setaffinity"):
            settings.append({max(os.sched_getaffinity(0))})
        for cores in settings:
            with workers(arguments.jax_python, data, cores, OURS, JAX) as sides:
                print("\n" + "\n".join(side.versions for side in sides))
                print_table(sides, arguments, len(cores) if cores else num_cores())


if __name__ == "__main__":
    main()
