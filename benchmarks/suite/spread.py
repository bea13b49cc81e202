"""How far other seeds move the tracked scores, beside the thresholds of `asv.conf.json`.

A score is a mean over the suite's seeds. Its relative standard deviation is the one of a single
chain divided by the square root of the number of seeds. Four standard deviations should stay below
the threshold.
"""

from __future__ import annotations

import os

import numpy as np

from benchmarks.common import command_line
from benchmarks.suite import ENVIRONMENT
from benchmarks.suite.profiles import FAST
from benchmarks.suite.thresholds import threshold

Rows = list[tuple[str, str, float, float]]


def measure(problem: str = "synthetic", num_seeds: int = 16) -> Rows:
    """Returns rows of method, score, four standard deviations and threshold."""
    os.environ.update(ENVIRONMENT)
    from benchmarks.common import problems
    from benchmarks.suite import chains, scores

    target, methods = chains.methods(problem, problems.BATCH_SIZE)
    rows = []
    for name in FAST.scored:
        found = scores.measure(problem, target, methods[name], range(100, 100 + num_seeds))
        for field, values in found._asdict().items():
            spread = np.std(values, ddof=1) / np.mean(values) / np.sqrt(len(scores.SEEDS))
            bound = threshold(f"accuracy.Accuracy.track_{field}")
            rows.append((name, field, float(4 * spread), bound))
    return rows


def show(rows: Rows) -> None:
    columns = {"method": "", "score": "", "4 sd": ".2f", "threshold": ".2f"}
    command_line.print_table(columns, [row for row in rows if np.isfinite(row[2])])


if __name__ == "__main__":
    command_line.main(__doc__, measure, show)
