"""Predictions of networks by training and by sampling, with equal passes over the data.

Data, networks and splits are those of `python -m benchmarks.predictions.ensembles`. Members of the
deep ensemble of five, "DE5", train by Adam until the loss on 15 % of the rows has not improved for
20 epochs. The other methods take as many passes over the data as all five, unless the column
"passes" says otherwise:

  Adam            one of the five,
  DE5, all rows   five networks trained anew with all rows, for as many epochs as was best before,
  dropout         a network trained with a rate of 0.2, with five times the patience; predictions
                  are means of 30 passes with dropout,
  SWAG            draws from normal distributions with the means and variances of the weights at
                  the ends of epochs, five times 16: five networks with three quarters of the
                  epochs, then constant steps of Adam,
  last-layer Laplace  30 draws of the last layer at the network of "Adam",
  annealed        `fit` with `SamplerCallback()` and no other argument,
  SGLD, underdamped Langevin  samplers at temperature 1 from the network of "Adam", with steps by
                  `find_step_size`, which are halved until the chain stays finite; the first
                  quarter is burn-in,
  posterior       `fit` with `SamplerCallback("posterior", prior=...)`.

The prior of the samplers at temperature 1 and of Laplace's approximation is N(0, 10 / inputs) for
kernels and N(0, 1) for biases. The table gives the means over the splits of

  NLL          the mean negative log predictive density, in nats,
  NLL - DE5    its difference from DE5's, paired by split, with its standard error,
  error        the share of wrong classes, or the root mean squared error,
  calibration  the expected calibration error (15 bins), or the coverage of 90 % intervals,
  AUROC        how well the predictive entropy tells test inputs from those of another law: images
               turned by 90 degrees, or rows each of whose columns is from another test row,
  passes       over the rows that are not test data,
  cpu s        processor seconds with compilation and predictions,
  MB           the size of the weights that predictions need.

A second table counts for each method the data on which its NLL is better than DE5's by more than
twice the standard error, and those on which it is worse by more than that and 0.01 nats. It has
medians over the data of the difference, the processor time as a multiple of DE5's, and the size.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.common import command_line
from benchmarks.common.kept_results import kept_result
from benchmarks.common.tables import Table as Printed
from benchmarks.predictions import scores
from benchmarks.predictions.ensembles import DENSE, Scores, difference
from benchmarks.predictions.methods import METHODS
from benchmarks.predictions.study import Study
from benchmarks.predictions.tabular import TABLES, Table

MARGIN = 0.01  # nats by which a method must be worse to count
PROBLEMS = tuple(name for name in DENSE if name != "kdd")  # the largest


def run(
    *,
    problems: tuple[str, ...] = PROBLEMS,
    splits: int = 5,
    first_split: int = 0,
    units: tuple[int, ...] = (50, 50),
    quick: bool = False,
    folder: str = "",
) -> Iterator[tuple[str, list[dict[str, Scores]]]]:
    """Yields each problem with the scores of the methods in each split.

    Args:
      problems: names of data.
      splits: the number of splits.
      first_split: the number of the first.
      units: widths of the hidden layers.
      quick: two epochs and one split.
      folder: keeps the scores of each problem and split, which a later call reads again.
    """
    tf.get_logger().setLevel("ERROR")
    width = "-".join(map(str, units))
    for name in problems:
        table, found = TABLES[name](), []
        for seed in range(first_split, first_split + (1 if quick else splits)):
            file = f"{name}_{width}_{seed}{'_quick' * quick}"
            make = functools.partial(compare, table, seed, units, quick)
            found.append(kept_result(folder, file, make))
            print(name, seed, found[-1], flush=True)
        yield name, found


def compare(table: Table, seed: int, units: tuple[int, ...], quick: bool) -> dict[str, Scores]:
    """Returns scores and costs of the methods in one split."""
    study, found = Study(table, seed, units, quick), dict[str, Scores]()
    score = scores.classification if table.num_classes else scores.regression
    size = sum(4 * w.size for w in study.model(0).get_weights()) / 1e6
    for name, make in METHODS.items():
        study.seconds, start = 0.0, time.process_time()
        result = make(study)
        seconds = study.seconds + time.process_time() - start
        found[name] = {
            **score(result.predicted, study.data.y_test)._asdict(),
            "passes": result.passes, "seconds": seconds, "megabytes": size * result.num_sets,
        }  # fmt: skip
    keras.backend.clear_session()
    return found


def compared(gap: float, error: float) -> str:
    """Returns "better", "worse" or "" for a difference of NLL and its standard error."""
    if gap < -2 * error:
        return "better"
    return "worse" if gap > max(2 * error, MARGIN) else ""


def show(found: Iterable[tuple[str, list[dict[str, Scores]]]]) -> dict[str, Printed]:
    """Prints the table of each method and that of all data; returns them."""
    lines: list[list[str]] = []
    by_method: dict[str, list[dict[str, Any]]] = {}
    for name, by_split in found:
        for i, method in enumerate(by_split[0]):
            mean = {
                key: float(np.mean([s[method][key] for s in by_split]))
                for key in by_split[0][method]
            }
            gap, error = difference(by_split, method)
            lines.append([
                "" if i else name, method, f"{mean['nll']:.3f}",
                "" if method == "DE5" else f"{gap:+.3f} +- {error:.3f}",
                f"{mean['error']:.3f}", f"{mean['calibration']:.3f}",
                "" if np.isnan(mean["auroc"]) else f"{mean['auroc']:.3f}",
                f"{mean['passes']:.0f}", f"{mean['seconds']:.0f}", f"{mean['megabytes']:.2f}",
            ])  # fmt: skip
            unit = np.mean([s["DE5"]["seconds"] for s in by_split])
            by_method.setdefault(method, []).append({
                "verdict": compared(gap, error), "gap": gap,
                "seconds": mean["seconds"] / unit, "megabytes": mean["megabytes"],
            })  # fmt: skip
    totals = []
    for method, rows in by_method.items():
        counts = [str(sum(r["verdict"] == v for r in rows)) for v in ("better", "worse")]
        median = {k: float(np.median([r[k] for r in rows])) for k in rows[0] if k != "verdict"}
        totals.append([
            method, *counts, f"{median['gap']:+.3f}", f"{median['seconds']:.2f}",
            f"{median['megabytes']:.2f}",
        ])  # fmt: skip
    heads = ["method", "better", "worse", "NLL - DE5", "cpu / DE5", "MB"]
    summary = command_line.print_table(dict.fromkeys(heads, ""), totals)
    heads = [
        "data", "method", "NLL", "NLL - DE5", "error", "calibration", "AUROC", "passes", "cpu s",
        "MB",
    ]  # fmt: skip
    title = f"Over the {len(next(iter(by_method.values()), []))} data sets"
    return {
        title: summary,
        "By data set": command_line.print_table(dict.fromkeys(heads, ""), lines),
    }


if __name__ == "__main__":
    command_line.main(__doc__, run, show, choices={"problems": DENSE}, table="predictions")
