"""Time of one step of NOGIN and CCAdL, here and in a loop written by hand in JAX.

MNIST 7 v 9 in 128 principal components and a constant: N = 12214, D = 129, n = 500, float32. Both
sides draw with replacement and average a full covariance over past minibatches. Each side is a
process, which compiles each case once and is then timed in turn with the other. The table gives the
least and the median time of the repeats, in microseconds a step. Ratios are ratios of medians: to
JAX, and of `diag` to SGLD here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import command_line
from benchmarks.common.tables import Table
from benchmarks.peers import install
from benchmarks.peers.sides import sides, times
from benchmarks.peers.worker import Case

PYTHON = install.python()
ROWS = (  # sampler, side (1 is JAX), and the row that it is compared with
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


def run(
    *,
    jax_python: Path = PYTHON,
    batch_size: int = 500,
    steps: int = 2_000,
    repeats: int = 5,
    seed: int = 0,
    one_core_only: bool = False,
) -> Iterator[tuple[Any, ...]]:
    """Times all rows.

    Args:
      jax_python: an interpreter that has JAX; `python -m benchmarks.peers.install` makes the
        default.
      steps: steps of a call.
    """
    ours, peer = "benchmarks.peers.covariance_ours", "benchmarks.peers.covariance_jax"
    for cores, workers in sides(jax_python, ours, peer, one_core_only):
        jobs = {
            (name, side): (workers[side], Case(batch_size, 1, False, True, False, steps, name))
            for name, side, _ in ROWS
        }
        least, median = times(jobs, repeats, seed)
        for name, side, base in ROWS:
            key = name, side
            ratio = "" if base is None else f"{median[key] / median[base]:.2f}"
            yield cores, "JAX" if side else "ours", name, least[key], median[key], ratio


def show(rows: Iterator[tuple[Any, ...]]) -> Table:
    columns = {"cores": "d", "side": ">5s", "": "<18s", "least": "6.0f", "median": "6.0f"}
    return command_line.print_table({**columns, "ratio": ">6s"}, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="peers.covariance")
