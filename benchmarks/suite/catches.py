"""Samplers that are slowed or biased on purpose, and which benchmarks of the suite tell.

Each is compared with the library's own by the suite's measurements and the thresholds of
`asv.conf.json`. The last rows are the library's own with other seeds, of which none may be told.
Ends with an error where a fault goes unseen, or a row of the control does not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import command_line
from benchmarks.suite import ENVIRONMENT
from benchmarks.suite.thresholds import threshold

os.environ.update(ENVIRONMENT)  # before TensorFlow

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfp_sgmcmc as sgmcmc  # noqa: E402
from benchmarks.suite import chains, problems, scores  # noqa: E402
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
    """Does its work twice."""

    def one_step(self, current_state: Any, previous_kernel_results: Any, seed: Any = None) -> Any:
        seed = random.as_seed(seed)
        other, _ = super().one_step(current_state, previous_kernel_results, random.fold_in(seed, 1))
        state, results = super().one_step(current_state, previous_kernel_results, seed)
        return tf.where(tf.math.is_finite(other), state, other), results


class WrongSGNHT(sgmcmc.SGNHT):
    """Its thermostat is fed |p| instead of p^2."""

    def _temperatures(self, p: Any, mass: Any, chain_ndims: int) -> Any:
        return tf.reduce_mean(tf.abs(p), axis=-1)


def changes(target: Any) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Name of the change -> name of the sampler in the suite, and the changed kernel."""
    return {
        "work done twice": ("SGLD, eps 2e-5", lambda: SlowSGLD(target, 2e-5)),
        "noise halved": ("SGLD, eps 2e-5", lambda: sgmcmc.SGLD(target, 2e-5, temperature=0.5)),
        "thermostat fed |p|": ("SGNHT", lambda: WrongSGNHT(target, 0.003, friction=1.0)),
    }


def compare(num_repeats: int = 15) -> list[Row]:
    """All rows; `num_repeats` of the times, of which the least count."""
    target, methods = chains.methods(PROBLEM, problems.BATCH_SIZE)
    rows, own = [], {}
    for change, (name, make_kernel) in changes(target).items():
        method = chains.Method(make_kernel, target.batch_size)
        if name not in own:
            own[name] = scores.measure(PROBLEM, target, methods[name])
            other = scores.measure(PROBLEM, target, methods[name], OTHER_SEEDS)
            rows += _rows(f"{name}: none", own[name], other)
        rows += _rows(change, own[name], scores.measure(PROBLEM, target, method))
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
    """The least time of a compiled call of each kernel, the kernels taking turns."""
    start = tf.zeros([problems.data(PROBLEM)[0].shape[1]])
    runs = [chains.Chain(kernel, start, NUM_STEPS) for kernel in kernels]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(num_repeats + 1):  # the first call compiles
        for run, found in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            found.append(time.perf_counter() - begin)
    return [min(found[1:]) for found in times]


def show(rows: list[Row]) -> None:
    columns = {"change": "", "benchmark": "", "before": ".3g", "after": ".3g", "threshold": ".0%"}
    cells = [(*row[:1], row.benchmark.split(".")[-1], *row[2:], "told"[: 4 * row.told])
             for row in rows]  # fmt: skip
    command_line.print_table({**columns, "": ""}, cells)
    told = {row.change: any(r.told for r in rows if r.change == row.change) for row in rows}
    wrong = [change for change, found in told.items() if found == change.endswith(": none")]
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    command_line.main(__doc__, compare, show)
