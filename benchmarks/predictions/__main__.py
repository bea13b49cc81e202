"""Predictions of networks by training and by sampling, with equal passes over the data.

For each problem and method the table gives the mean over the seeds, and their standard deviation,
of these scores on test data:

  NLL    the mean negative log predictive density, in nats,
  error  the share of wrong classes, or the root mean squared error,
  ECE    the expected calibration error (15 bins) of a classification,
  CRPS   the continuous ranked probability score of a regression,
  AUROC  how well the predictive entropy tells test inputs from those of another law: digits turned
         by 90 degrees, or docstrings of NumPy,

then the passes over the data, and the seconds with compilation and predictions. "*" marks the best
mean of a column, with all that are not beyond it by twice the standard error of the paired
difference between seeds.

The problems: 2000 digits of MNIST for a dense network, 784-50-10, and for a network with two
convolutions; the diabetes data of scikit-learn; and docstrings of Python's standard library, by
their package (see `benchmarks.predictions.docstrings`). All methods have the same prior, as a
penalty where they optimise: N(0, 10 / fan-in) for kernels, and N(0, 1) for biases and embeddings.

Adam trains for E epochs. A deep ensemble has 5 such networks, and the others take as many passes:
SWAG goes on from E epochs with the same Adam, dropout trains a network with a rate of 0.2 and keeps
it on for predictions, SGLD, SGHMC and cyclical SGHMC begin at Adam's weights, with a quarter of
their steps as burn-in, and the warm-started ensemble has 5 networks after E/2 epochs and 5 chains.
Prior and step sizes were chosen by hand on rows that are not test data. A step size at which a
chain does not stay finite is halved. The temperature is 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.common import command_line
from benchmarks.predictions import methods, scores
from benchmarks.predictions.problems import PROBLEMS

LOWER_IS_BETTER = {"nll": True, "error": True, "ece": True, "crps": True, "auroc": False}
QUICK_EPOCHS = 2


class Row(NamedTuple):
    """Scores of one method on one problem, `[seeds]` for each score, and what they cost."""

    problem: str
    method: str
    scores: dict[str, np.ndarray]
    passes: float
    seconds: float


def run(
    *, problems: tuple[str, ...] = tuple(PROBLEMS), seeds: int = 2, quick: bool = False
) -> Iterator[list[Row]]:
    """Yields the rows of each problem.

    Args:
      problems: names of problems.
      seeds: the number of repetitions.
      quick: two epochs and one seed.
    """
    tf.get_logger().setLevel("ERROR")
    for name in problems:
        problem = PROBLEMS[name]
        data = problem.data()
        epochs = QUICK_EPOCHS if quick else problem.epochs
        trainer = methods.Trainer(problem, data, epochs)
        score = scores.regression if problem.is_regression else scores.classification
        runs = []
        for seed in range(1 if quick else seeds):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "find_center ended|step_size must be below")
                runs.append(methods.run(trainer, seed))
        rows = []
        for of_seeds in zip(*runs, strict=True):
            found = [score(r.predicted, data.y_test)._asdict() for r in of_seeds]
            by_score = {key: np.array([f[key] for f in found]) for key in LOWER_IS_BETTER}
            seconds = float(np.mean([r.seconds for r in of_seeds]))
            rows.append(Row(name, of_seeds[0].method, by_score, of_seeds[0].passes, seconds))
        yield rows


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
    """Returns the line of the table."""
    line = [row.problem, row.method]
    for key, values in row.scores.items():
        if np.isnan(values).any():
            line.append("-")
            continue
        spread = f" ~ {values.std(ddof=1):.3f}" if len(values) > 1 else ""
        line.append(f"{values.mean():.3f}{spread}{'*' * (row.method in winners[key])}")
    return [*line, f"{row.passes:.0f}", f"{row.seconds:.0f}"]


HEADS = ("", "method", "NLL", "error", "ECE", "CRPS", "AUROC", "passes", "s")


def show(found: Iterator[list[Row]]) -> None:
    """Prints the table of each problem."""
    columns: Any = dict.fromkeys(HEADS, "")
    for rows in found:
        winners = {key: best(rows, key) for key in LOWER_IS_BETTER}
        command_line.print_table(columns, [cells(row, winners) for row in rows])
        print(flush=True)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"problems": PROBLEMS})
