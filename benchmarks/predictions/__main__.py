"""Predictions of networks by training and by sampling, with equal passes over the data.

For each problem and method the table gives the mean over the seeds, and their standard deviation,
of these scores on test data:

  NLL    the mean negative log predictive density, in nats,
  error  the share of wrong classes, or the root mean squared error,
  ECE    the expected calibration error (15 bins) of a classification,
  CRPS   the continuous ranked probability score of a regression,
  AUROC  how well the predictive entropy tells test inputs from those of another law: digits turned
         by 90 degrees, or docstrings of NumPy,

then the passes over the data, the processor seconds with compilation and predictions, and the
megabytes of the weights that predictions need. "*" marks the best
mean of a column, with all that are not beyond it by twice the standard error of the paired
difference between seeds.

The problems: 2000 digits of MNIST for a dense network, 784-50-10, and for a network with two
convolutions; the diabetes data of scikit-learn; and docstrings of Python's standard library, by
their package (see `benchmarks.predictions.docstrings`). All methods have the same prior, as a
penalty where they optimise: N(0, 10 / fan-in) for kernels, and N(0, 1) for biases and embeddings;
only "annealed", which is `fit` with `SamplerCallback()` and no other argument, has its own.

Adam trains for E epochs. A deep ensemble has 5 such networks, and the others take as many passes:
SWAG goes on from E epochs with the same Adam, dropout trains a network with a rate of 0.2 and keeps
it on for predictions, "annealed" has 5 chains of E epochs. SGLD, SGHMC and cyclical SGHMC begin at
Adam's weights, with a quarter of their steps as burn-in, and the warm-started ensemble has 5
networks after E/2 epochs and 5 chains.
Prior and step sizes were chosen by hand on rows that are not test data. A step size at which a
chain does not stay finite is halved. The temperature is 1.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.common import command_line
from benchmarks.common.kept_results import kept_result
from benchmarks.common.tables import Table
from benchmarks.predictions import methods, scores
from benchmarks.predictions.problems import PROBLEMS

LOWER_IS_BETTER = {"nll": True, "error": True, "ece": True, "crps": True, "auroc": False}
HEADS = {"nll": "NLL", "error": "error", "ece": "ECE", "crps": "CRPS", "auroc": "AUROC"}
QUICK_EPOCHS = 2


class Row(NamedTuple):
    """Scores of one method on one problem, `[seeds]` for each score, with its cost."""

    method: str
    scores: dict[str, np.ndarray]
    passes: float
    seconds: float
    megabytes: float


def run(
    *,
    problems: tuple[str, ...] = tuple(PROBLEMS),
    seeds: int = 2,
    quick: bool = False,
    folder: str = "",
) -> Iterator[tuple[str, list[Row]]]:
    """Yields each problem with its rows.

    Args:
      problems: names of problems.
      seeds: the number of repetitions.
      quick: two epochs and one seed.
      folder: keeps the scores of each problem and seed, which a later call reads again.
    """
    tf.get_logger().setLevel("ERROR")
    for name in problems:
        epochs = QUICK_EPOCHS if quick else PROBLEMS[name].epochs
        measure = Measure(name, epochs, folder)
        by_seed = [measure(seed) for seed in range(1 if quick else seeds)]
        yield name, [joined(rows) for rows in zip(*by_seed, strict=True)]


class Measure:
    """Measures a problem with one seed, or reads what an earlier call kept in a folder."""

    def __init__(self, name: str, epochs: int, folder: str):
        self.name, self.epochs, self.folder = name, epochs, folder
        self._trainer: methods.Trainer | None = None

    def __call__(self, seed: int) -> list[Row]:
        """Returns the rows of one seed."""
        name = re.sub(r"\W+", "_", self.name)
        file = f"{name}_{self.epochs}_epochs_seed_{seed}"
        return [as_row(x) for x in kept_result(self.folder, file, lambda: self._run(seed))]

    def _run(self, seed: int) -> list[dict[str, Any]]:
        problem = PROBLEMS[self.name]
        if self._trainer is None:
            self._trainer = methods.Trainer(problem, problem.data(), self.epochs)
        trainer = self._trainer
        score = scores.regression if problem.is_regression else scores.classification
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "find_center ended|step_size must be below")
            results = methods.run(trainer, seed)
        y = trainer.data.y_test
        return [
            {
                "method": r.method,
                "scores": {k: float(v) for k, v in score(r.predicted, y)._asdict().items()},
                "passes": r.passes,
                "seconds": r.seconds,
                "megabytes": r.megabytes,
            }
            for r in results
        ]


def as_row(result: dict[str, Any]) -> Row:
    """Returns the row of a single seed."""
    by_score = {key: np.array([result["scores"][key]]) for key in LOWER_IS_BETTER}
    cost = (result[key] for key in ("passes", "seconds", "megabytes"))
    return Row(result["method"], by_score, *cost)


def joined(rows: Sequence[Row]) -> Row:
    """Returns the row of several seeds."""
    by_score = {k: np.concatenate([r.scores[k] for r in rows]) for k in LOWER_IS_BETTER}
    seconds = float(np.mean([r.seconds for r in rows]))
    first = rows[0]
    return Row(first.method, by_score, first.passes, seconds, first.megabytes)


def best(rows: list[Row], key: str) -> set[str]:
    """Returns the methods that are best by a score, ties included."""
    sign = 1 if LOWER_IS_BETTER[key] else -1
    values = {row.method: sign * row.scores[key] for row in rows}
    if not all(np.isfinite(v).all() for v in values.values()):
        return set()
    winner = min(values, key=lambda m: values[m].mean())
    found = {winner}
    for method, value in values.items():
        gap = value - values[winner]
        if len(gap) > 1 and gap.mean() <= 2 * gap.std(ddof=1) / len(gap) ** 0.5:
            found.add(method)
    return found


def cells(row: Row, winners: dict[str, set[str]]) -> list[str]:
    """Returns the line of the table, with the scores that `winners` has."""
    line = [row.method]
    for key, methods_of_key in winners.items():
        values = row.scores[key]
        spread = f" ~ {values.std(ddof=1):.3f}" if len(values) > 1 else ""
        line.append(f"{values.mean():.3f}{spread}{'*' * (row.method in methods_of_key)}")
    return [*line, f"{row.passes:.0f}", f"{row.seconds:.0f}", f"{row.megabytes:.2f}"]


def show(found: Iterable[tuple[str, list[Row]]]) -> dict[str, Table]:
    """Prints the table of each problem, with the scores that apply to it; returns the tables."""
    tables = {}
    for name, rows in found:
        keys = [k for k in LOWER_IS_BETTER if not any(np.isnan(r.scores[k]).any() for r in rows)]
        winners = {key: best(rows, key) for key in keys}
        heads = ("method", *(HEADS[key] for key in keys), "passes", "cpu s", "MB")
        print(f"\n{name}", flush=True)
        lines = [cells(row, winners) for row in rows]
        tables[name[0].upper() + name[1:]] = command_line.print_table(
            dict.fromkeys(heads, ""), lines
        )
    return tables


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"problems": PROBLEMS}, table="predictions")
