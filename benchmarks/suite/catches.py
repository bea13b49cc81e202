"""Samplers that are slowed or biased on purpose, and the benchmarks of the suite that notice it.

Each is compared with the unchanged sampler by the suite's measurements and the thresholds of
`asv.conf.json`. Rows named "none" are controls: the unchanged sampler with other seeds, which must
not exceed a threshold. The script fails if a fault is not noticed or a control is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.common import command_line, problems
from benchmarks.suite import ENVIRONMENT
from benchmarks.suite.thresholds import threshold

os.environ.update(ENVIRONMENT)  # before TensorFlow

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfp_sgmcmc as sgmcmc  # noqa: E402
from benchmarks.common.timing import in_turn  # noqa: E402
from benchmarks.common.timing import seconds as clock  # noqa: E402
from benchmarks.suite import chains, scores  # noqa: E402
from tfp_sgmcmc import random  # noqa: E402

PROBLEM = "synthetic"
NUM_STEPS = 500
OTHER_SEEDS = tuple(seed + 100 for seed in scores.SEEDS)


class Row(NamedTuple):
    """A benchmark before and after a change."""

    change: str
    benchmark: str
    before: float
    after: float
    threshold: float

    @property
    def told(self) -> bool:
        return self.after > self.before * (1 + self.threshold)


class SlowSGLD(sgmcmc.SGLD):
    """SGLD that does its work twice."""

    def one_step(self, current_state: Any, previous_kernel_results: Any, seed: Any = None) -> Any:
        seed = random.as_seed(seed)
        other, _ = super().one_step(current_state, previous_kernel_results, random.fold_in(seed, 1))
        state, results = super().one_step(current_state, previous_kernel_results, seed)
        return tf.where(tf.math.is_finite(other), state, other), results


class WrongSGNHT(sgmcmc.SGNHT):
    """SGNHT whose thermostat is fed |p| instead of p^2."""

    def _temperatures(self, p: Any, mass: Any, chain_ndims: int) -> Any:
        return tf.reduce_mean(tf.abs(p), axis=-1)


def changes(target: Any) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Returns the sampler's name in the suite and the changed kernel, by name of the change."""
    return {
        "work done twice": ("SGLD, eps 2e-5", lambda: SlowSGLD(target, 2e-5)),
        "noise halved": ("SGLD, eps 2e-5", lambda: sgmcmc.SGLD(target, 2e-5, temperature=0.5)),
        "thermostat fed |p|": ("SGNHT", lambda: WrongSGNHT(target, 0.003, friction=1.0)),
    }


def compare(num_repeats: int = 15) -> list[Row]:
    """Measures all rows.

    Args:
      num_repeats: repeats of the times, of which the least counts.
    """
    target, methods = chains.methods(PROBLEM, problems.BATCH_SIZE)
    rows, unchanged = [], {}
    for change, (name, make_kernel) in changes(target).items():
        method = chains.Method(make_kernel, target.batch_size)
        if name not in unchanged:
            unchanged[name] = scores.measure(PROBLEM, target, methods[name])
            other = scores.measure(PROBLEM, target, methods[name], OTHER_SEEDS)
            rows += _rows(f"{name}: none", unchanged[name], other)
        rows += _rows(change, unchanged[name], scores.measure(PROBLEM, target, method))
        benchmark = "steps.Steps.time_steps"
        pair = seconds([methods[name].make_kernel(), make_kernel()], num_repeats)
        rows.append(Row(change, benchmark, *pair, threshold(benchmark)))
    return rows


def _rows(change: str, before: scores.Scores, after: scores.Scores) -> list[Row]:
    pairs = zip(before._asdict().items(), after, strict=True)
    names = ((f"accuracy.Accuracy.track_{field}", b, a) for (field, b), a in pairs)
    return [
        Row(change, name, float(b.mean()), float(a.mean()), threshold(name))
        for name, b, a in names
        if np.all(np.isfinite(b))
    ]


def seconds(kernels: list[Any], num_repeats: int) -> list[float]:
    """Returns the least time of a compiled call of each kernel; the kernels take turns."""
    start = tf.zeros([problems.data(PROBLEM)[0].shape[1]])
    runs = [chains.Chain(kernel, start, NUM_STEPS) for kernel in kernels]
    times = in_turn({i: lambda run=run: clock(run) for i, run in enumerate(runs)}, num_repeats)
    return [min(found) for found in times.values()]


def show(rows: list[Row]) -> None:
    columns = {"change": "", "benchmark": "", "before": ".3g", "after": ".3g", "threshold": ".0%"}
    cells = [(*row[:1], row.benchmark.split(".")[-1], *row[2:], "told"[: 4 * row.told])
             for row in rows]  # fmt: skip
    command_line.print_table({**columns, "": ""}, cells)
    told = {row.change: any(r.told for r in rows if r.change == row.change) for row in rows}
    wrong = [change for change, found in told.items() if found == change.endswith(": none")]
    if wrong:
        sys.exit(f"wrongly noticed or missed: {', '.join(wrong)}")


if __name__ == "__main__":
    command_line.main(__doc__, compare, show)
