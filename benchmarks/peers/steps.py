"""Time of one step, here and in other libraries, and of SGD in plain TensorFlow, JAX and PyTorch.

Logistic regression on MNIST 7 v 9 in 128 principal components and a constant (N = 12214, D = 129),
and a 784-100-10 network on MNIST (N = 60000). The same float32 arrays, minibatches with replacement
and the same step sizes on all sides; each side is a process of its own that compiles a case once,
is timed in turn, and must classify. The table gives the median time of the repeats in microseconds
a step, of all chains; `ratio` is ours to the fastest other library's, `most` what it should be at
most. In the rows of SGD a library's column is its framework's plain loop, the floor.

The others come from `python -m benchmarks.peers.install`; one that is not there is left out.
"""

from __future__ import annotations

import argparse
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
from benchmarks import command_line
from benchmarks.environment import num_cores
from benchmarks.peers import install
from benchmarks.peers.worker import Case, Worker

OTHERS = {"BlackJAX": "blackjax", "SGMCMCJax": "sgmcmcjax", "posteriors": "posteriors"}
MOST_STEPS = {"posteriors": 500}  # a call of a loop that is not compiled


class Row(NamedTuple):
    """A line of the table.

    Attributes:
      model: whose posterior; a name in `DATA`.
      sampler: its name; SGD is the floor.
      n: size of a minibatch.
      chains: their number.
      shared: whether all chains see one minibatch.
      steps: that a call takes.
      most: the ratio that is aimed at; NaN where there is none.
    """

    model: str
    sampler: str
    n: int
    chains: int
    shared: bool
    steps: int
    most: float = math.nan

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


def logistic() -> tuple[np.ndarray, np.ndarray]:
    x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=128)
    return x, y.astype(np.float32)


def network() -> tuple[np.ndarray, np.ndarray]:
    x, y, _, _ = datasets.mnist(flatten=True)
    return x.astype(np.float32), y.astype(np.int64)


DATA = {"logistic": logistic, "network": network}


@contextlib.contextmanager
def sides(data: Path, folder: Path, problems: dict[str, str]) -> Generator[dict[str, Worker]]:
    """Ours and every other library that starts; `problems` says why another does not."""
    started = {"ours": Worker(sys.executable, "benchmarks.peers.steps_ours", data, None)}
    try:
        for name, module in OTHERS.items():
            python = install.python(module, folder)
            if not python.exists():
                problems[name] = f"not installed; python -m benchmarks.peers.install {module}"
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
    """Median microseconds a step of each side that can; the sides take turns."""
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
    """A line of the table; `found` are microseconds by side.

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


def compare(rows: list[Row], repeats: int, seed: int, folder: Path) -> None:
    problems: dict[str, str] = {}
    table = []
    for model in dict.fromkeys(row.model for row in rows):
        with tempfile.TemporaryDirectory() as place:
            data = Path(place) / "data.npz"
            x, y = DATA[model]()
            np.savez(data, x=x, y=y)
            with sides(data, folder, problems) as workers:
                print(model, *(w.versions for w in workers.values()), sep="\n  ", flush=True)
                for row in rows:
                    if row.model == model:
                        found = measure(workers, row.case, repeats, seed, problems)
                        table.append(cells(row, found))
                        print(" ", *table[-1], flush=True)
    print(f"\ncores: {num_cores()}; microseconds a step, medians of {repeats}")
    names = ("model", "sampler", "n", "chains", "minibatch", "ours", *OTHERS, "ratio", "most", "")
    command_line.print_table(dict.fromkeys(names, ""), table)
    for name, problem in problems.items():
        print(f"{name}: {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--samplers", nargs="+", default=sorted({row.sampler for row in ROWS}))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=install.FOLDER, help="of the environments")
    arguments = parser.parse_args()
    rows = [r for r in ROWS if r.model in arguments.models and r.sampler in arguments.samplers]
    compare(rows, arguments.repeats, arguments.seed, arguments.folder)
