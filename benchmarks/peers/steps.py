"""Time of one step, here and in other libraries, and of SGD in plain TensorFlow, JAX and PyTorch.

Logistic regression on MNIST 7 v 9 in 128 principal components and a constant (N = 12214, D = 129),
and a 784-100-10 network on MNIST (N = 60000). All sides have the same float32 arrays, minibatches
with replacement and step sizes. Each side is a process, which compiles a case once and is then
timed in turn with the others. Its last states must classify the data. The table gives the median
time of the repeats in microseconds a step of all chains. `ratio` is our time divided by that of the
fastest other library, and `most` is the largest acceptable ratio. In the rows of SGD, the column of
a library is a plain loop in its framework, which no sampler can beat.

`python -m benchmarks.peers.install` installs the others. One that is not installed is left out.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import datasets
from benchmarks.common import command_line
from benchmarks.common.environment import num_cores
from benchmarks.common.tables import Table
from benchmarks.peers import install
from benchmarks.peers.sides import logistic
from benchmarks.peers.worker import Case, Worker

OTHERS = {"BlackJAX": "blackjax", "SGMCMCJax": "sgmcmcjax", "posteriors": "posteriors"}
MOST_STEPS = {"posteriors": 500}  # of a call, as this loop is not compiled


class Row(NamedTuple):
    """A line of the table."""

    model: str  # name of the model in `DATA`
    sampler: str  # name of the sampler, or SGD
    n: int  # size of a minibatch
    chains: int  # number of chains
    shared: bool  # whether all chains share minibatches
    steps: int  # steps of a call
    most: float = math.nan  # the largest acceptable ratio; NaN if there is none

    @property
    def case(self) -> Case:
        return Case(self.n, self.chains, self.shared, True, False, self.steps, self.sampler)


ROWS = (
    Row("logistic", "SGD", 100, 1, False, 5000),
    Row("logistic", "SGLD", 100, 1, False, 5000, 0.5),
    Row("logistic", "SGHMC", 100, 1, False, 5000, 0.5),
    Row("logistic", "SGNHT", 100, 1, False, 5000, 0.5),
    Row("logistic", "SGD", 500, 1, False, 5000),
    Row("logistic", "SGLD", 500, 1, False, 5000, 0.7),
    Row("logistic", "SGHMC", 500, 1, False, 5000, 0.7),
    Row("logistic", "SGNHT", 500, 1, False, 5000, 0.7),
    Row("logistic", "SGLD", 100, 64, False, 200, 0.8),
    Row("logistic", "SGLD", 500, 64, False, 200, 0.8),
    Row("logistic", "SGLD", 100, 64, True, 1000, 1.0),
    Row("logistic", "SGLD", 500, 64, True, 1000, 1.0),
    Row("network", "SGD", 128, 1, False, 1000),
    Row("network", "SGLD", 128, 1, False, 1000, 1.0),
    Row("network", "SGHMC", 128, 1, False, 1000, 1.0),
    Row("network", "SGNHT", 128, 1, False, 1000, 1.0),
    Row("network", "SGLD", 128, 4, False, 500, 1.0),
)


def network() -> tuple[np.ndarray, np.ndarray]:
    x, y, _, _ = datasets.mnist(flatten=True)
    return x.astype(np.float32), y.astype(np.int64)


DATA = {"logistic": logistic, "network": network}


@contextlib.contextmanager
def sides(data: Path, folder: Path, problems: dict[str, str]) -> Generator[dict[str, Worker]]:
    """Starts this library and the others; `problems` receives why one did not start."""
    started = {"ours": Worker(sys.executable, "benchmarks.peers.steps_ours", data, None)}
    try:
        for name, module in OTHERS.items():
            python = install.python(module, folder)
            if not python.exists():
                problems[name] = f"run python -m benchmarks.peers.install {module}"
                continue
            try:
                started[name] = Worker(python, f"benchmarks.peers.steps_{module}", data, None)
            except RuntimeError as error:
                problems[name] = str(error).splitlines()[-1]
        yield started
    finally:
        for worker in started.values():
            worker.close()


def measure(
    workers: dict[str, Worker], case: Case, repeats: int, seed: int, problems: dict[str, str]
) -> dict[str, float]:
    """Returns median microseconds a step of the sides that have the case; the sides take turns."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    for repeat in range(repeats + 1):  # the first call compiles
        for name in list(times):
            num_steps = min(case.num_steps, MOST_STEPS.get(name, case.num_steps))
            try:
                found = workers[name].time(case._replace(num_steps=num_steps), seed + repeat)
                times[name].append(found)
            except (RuntimeError, BrokenPipeError) as error:
                if name == "ours":
                    raise
                problems[f"{name}, {case.sampler}"] = str(error).splitlines()[-1]
                del times[name]
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def cells(row: Row, found: dict[str, float]) -> tuple[str, ...]:
    """Returns a line of the table; `found` has microseconds by side.

    >>> cells(ROWS[1], {"ours": 30.0, "BlackJAX": 75.0, "posteriors": 300.0})[5:]
    ('30', '75', '-', '300', '0.40', '0.5', 'met')
    """
    names = ("ours", *OTHERS)
    others = [t for name, t in found.items() if name != "ours" and not math.isnan(t)]
    ratio = found["ours"] / min(others) if others else math.nan
    verdict = "" if math.isnan(row.most + ratio) else ("met" if ratio <= row.most else "missed")
    times = (found.get(name, math.nan) for name in names)
    return (
        row.model,
        row.sampler,
        str(row.n),
        str(row.chains),
        "shared" if row.shared else "own",
        *("-" if math.isnan(t) else f"{t:.0f}" for t in times),
        "-" if math.isnan(ratio) else f"{ratio:.2f}",
        "" if math.isnan(row.most) else f"{row.most:.1f}",
        verdict,
    )


def run(
    *,
    models: tuple[str, ...] = tuple(DATA),
    samplers: tuple[str, ...] = tuple(sorted({row.sampler for row in ROWS})),
    repeats: int = 5,
    seed: int = 0,
    folder: Path = install.FOLDER,
) -> tuple[list[tuple[str, ...]], dict[str, str], set[str]]:
    """Times all chosen rows; returns the table, what failed or is not installed, and versions.

    Args:
      folder: the folder of the environments.
    """
    problems: dict[str, str] = {}
    versions: set[str] = set()
    table = []
    for model in models:
        rows = [row for row in ROWS if row.model == model and row.sampler in samplers]
        with tempfile.TemporaryDirectory() as place:
            data = Path(place) / "data.npz"
            x, y = DATA[model]()
            np.savez(data, x=x, y=y)
            with sides(data, folder, problems) as workers:
                found = [worker.versions for worker in workers.values()]
                versions.update(found)
                print(model, *found, sep="\n  ", flush=True)
                for row in rows:
                    table.append(cells(row, measure(workers, row.case, repeats, seed, problems)))
                    print(" ", *table[-1], flush=True)
    return table, problems, versions


def show(result: tuple[list[tuple[str, ...]], dict[str, str], set[str]]) -> Table:
    lines, problems, versions = result
    print(f"\ncores: {num_cores()}; microseconds a step, medians")
    names = (
        "model",
        "sampler",
        "n",
        "chains",
        "minibatch",
        "ours",
        *OTHERS,
        "ratio",
        "most",
        "aim",
    )
    shown = command_line.print_table(dict.fromkeys(names, ""), lines)
    for name, problem in problems.items():
        print(f"{name}: {problem}")
    notes = [*sorted(versions), *(f"{name}: {problem}" for name, problem in problems.items())]
    return shown._replace(note="; ".join(notes) + ".")


def main() -> None:
    command_line.main(__doc__, run, show, choices={"models": DATA}, table="peers")
