"""The step size that `sgmcmc.tune` picks, beside the best of a fine grid.

SGLD on logistic regression, MNIST 7 v 9 in 50 random projections and a constant (see
`benchmarks.reproductions.mnist_7v9`). `tune` sees no reference. Its choice and each step size of
the grid are then run equally long, from the same start, with the same seeds. The table gives the
errors E1 of the mean and E2 of the covariance (Ahn et al. 2012, equation 14) as means over the
seeds, and the standard deviation of E2 between seeds. The first tuning is repeated and must give
the same result.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled
from benchmarks.common.problems import projected_mnist_7v9
from benchmarks.common.reference import Reference

# Factors of 1.5, from a hundredth of the largest stable step size to more than that step size.
CANDIDATES = [1e-6 * 1.5**k for k in range(13)]


class Row(NamedTuple):
    """Errors of runs with one step size; infinite if a chain diverged."""

    name: str
    step_size: float
    mean_error: float
    covariance_error: float
    deviation: float
    ratio: float


class Result(NamedTuple):
    """The runs of the grid and of the tuned step sizes, and the cost of the tuning."""

    reference: Reference
    rows: list[Row]
    rounds: list[sgmcmc.sampling.tuning.TuningRound]
    num_tuning_steps: int
    tuning_seconds: float


def run(
    *,
    batch_size: int = 500,
    num_chains: int = 16,
    num_steps: int = 8_000,
    num_burnin_steps: int = 2_000,
    thinning: int = 10,
    num_tuning_steps: int = 40_000,
    tunings: int = 3,
    repeats: int = 3,
    grid: tuple[float, ...] = tuple(np.geomspace(5e-6, 1e-4, 13)),
    num_reference_results: int = 300,
    seed: int = 0,
) -> Result:
    """Tunes, then runs the grid and the tuned step sizes."""
    target, reference = projected_mnist_7v9(batch_size, num_reference_results, seed)
    start = tf.zeros([num_chains, len(reference.mean)])

    def tune(number: int) -> Any:
        return sgmcmc.tune(
            make_kernel,
            {"step_size": CANDIDATES},
            target,
            start,
            num_steps=num_tuning_steps,
            seed=[seed, number],
        )

    def make_kernel(step_size: tf.Tensor) -> sgmcmc.SGLD:
        return sgmcmc.SGLD(target, step_size)

    sgld = compiled(make_kernel, num_steps // thinning, thinning, num_burnin_steps)

    def errors(step_size: float) -> np.ndarray:
        """Returns E1 and E2, `[repeats, 2]`."""
        found = []
        for repeat in range(repeats):
            step = tf.constant(step_size, tf.float32)
            samples = sgld(start, None, tf.constant([seed, repeat]), step).all_states.numpy()
            if not np.isfinite(samples).all():
                return np.full([repeats, 2], np.inf)
            found.append(reference.errors(samples))
        return np.array(found)

    began = time.perf_counter()
    first = tune(0)
    seconds = time.perf_counter() - began
    again = tune(0)
    assert first.best == again.best
    for a, b in zip(first.rounds, again.rounds, strict=True):
        np.testing.assert_array_equal(a.scores, b.scores)
    tuned = [first, *(tune(number) for number in range(1, tunings))]
    runs = [("grid", float(step_size)) for step_size in grid]
    runs += [(f"tune, seed {i}", found.best["step_size"]) for i, found in enumerate(tuned)]
    by_step = {step_size: errors(step_size) for step_size in dict.fromkeys(s for _, s in runs)}
    best = min(by_step[float(step_size)][:, 1].mean() for step_size in grid)
    rows = []
    for name, step_size in runs:
        found = by_step[step_size]
        mean_error, covariance_error = found.mean(axis=0)
        deviation = found[:, 1].std(ddof=1) if np.isfinite(covariance_error) else np.inf
        ratio = covariance_error / best
        rows.append(Row(name, step_size, mean_error, covariance_error, deviation, ratio))
    return Result(reference, rows, first.rounds, first.num_steps, seconds)


def show(result: Result) -> None:
    print(result.reference)
    for found in result.rounds:
        scores = zip(found.candidates, found.scores, strict=True)
        print(
            f"{found.num_steps} steps each:",
            ", ".join(f"{c['step_size']:.2g}: {score:.3g}" for c, score in scores),
        )
    print(f"{result.num_tuning_steps} steps in all, {result.tuning_seconds:.0f} s")
    columns = {"": "", "step size": ".3g", "E1": ".4f", "E2": ".3f", "sd of E2": ".3f"}
    command_line.print_table({**columns, "E2 / best": ".2f"}, result.rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show)
