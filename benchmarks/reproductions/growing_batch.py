"""SGLD with a growing minibatch against a small constant one, on a9a.

After He & Xin, Hybrid deterministic-stochastic gradient Langevin dynamics for Bayesian learning,
Communications in Information and Systems 2013, figures 1 and 2: logistic regression on UCI Adult as
a9a with a constant column, prior N(0, I), 80 % for training, equal step sizes for both. One
minibatch grows by a factor of 1.1 a step from 1 example to all of them, and the other one stays at
4. The table gives the log joint probability for each training example and the test accuracy, as
means over independent chains. It compares equal numbers of steps, as the figures do, and equal
numbers of passes over the data.

At equal steps the growing minibatch wins, because it uses far more examples. At equal passes the
constant one has taken many more steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws
from benchmarks.common.logistic import accuracy, as_batch, gaussian_log_prior, log_likelihood
from benchmarks.reproductions.experiment import Claim, Experiment, main, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHUNK = 512  # examples that a growing minibatch gathers at once
LONG_CHAINS = 4  # of the constant minibatch at equal passes, with a thousand times as many steps


class Curve(NamedTuple):
    """The progress of chains, with one entry for each record."""

    steps: np.ndarray  # steps so far, [records]
    passes: np.ndarray  # passes over the data so far, [records]
    log_joint: np.ndarray  # log p(theta, data) / N at the state of the record, [records, chains]
    accuracy: np.ndarray  # test accuracy of that state, [records, chains]


class Result(NamedTuple):
    """All curves; `constant_long` makes as many passes as `growing`."""

    growing: Curve
    constant: Curve
    constant_long: Curve


def run(
    *,
    growth: float = 1.1,
    constant_size: int = 4,
    first_step_size: float = 2e-4,
    last_step_size: float = 2e-5,
    num_steps: int = 200,
    num_chains: int = 32,
    seed: int = 0,
) -> Result:
    """Samples with both minibatches."""
    data = datasets.a9a(split="random", seed=seed)
    x_train, x_test = (
        np.pad(x, [(0, 0), (1, 0)], constant_values=1) for x in (data.x_train, data.x_test)
    )
    num_examples = len(x_train)
    sizes = np.minimum(growth ** np.arange(num_steps), num_examples)
    passes = np.cumsum(np.ceil(sizes)) / num_examples
    long = int(passes[-1] * num_examples / constant_size)

    def curve(size: int | None, num_steps: int, num_chains: int, stream: int) -> Curve:
        target = sgmcmc.MinibatchLogProb(
            gaussian_log_prior, log_likelihood, as_batch(x_train, data.y_train), size or CHUNK
        )
        kernel = sgmcmc.SGLD(
            sgmcmc.GrowingBatch(target, growth) if size is None else target, schedule
        )
        every = max(1, num_steps // 100)

        start = tf.zeros([num_chains, x_train.shape[1]])
        states = draws(kernel, start, [seed, stream], num_steps // every, every)
        log_joint = tf.function(target, jit_compile=True)(states).numpy() / num_examples
        steps = np.arange(1, len(states) + 1) * every
        return Curve(
            steps,
            passes[steps - 1] if size is None else steps * size / num_examples,
            log_joint,
            accuracy(states @ x_test.T, data.y_test),
        )

    schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(
        first_step_size, last_step_size, num_steps
    )
    return Result(
        curve(None, num_steps, num_chains, 0),
        curve(constant_size, num_steps, num_chains, 1),
        curve(constant_size, long, LONG_CHAINS, 2),
    )


def plot(result: Result) -> Figure:
    """Draws both measures against steps (top) and passes (bottom)."""
    figure, axes = subplots(2, 2)
    for name, curve in zip(("growing", "constant"), result, strict=False):
        axes[0, 0].plot(curve.steps, curve.log_joint.mean(axis=1), label=name)
        axes[0, 1].plot(curve.steps, curve.accuracy.mean(axis=1), label=name)
    for name, curve in (("growing", result.growing), ("constant", result.constant_long)):
        axes[1, 0].semilogx(curve.passes, curve.log_joint.mean(axis=1), label=name)
        axes[1, 1].semilogx(curve.passes, curve.accuracy.mean(axis=1), label=name)
    for row, measure in zip(axes, ("steps", "passes over the data"), strict=True):
        for axis, name in zip(row, ("log joint probability / N", "test accuracy"), strict=True):
            axis.set(xlabel=measure, ylabel=name)
            axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    growing, constant, long = (curve.log_joint[-1] for curve in result)

    def ours(first: np.ndarray, second: np.ndarray) -> str:
        found = " and ".join(f"{x.mean():.4f} +- {x.std():.4f}" for x in (first, second))
        return f"log joint / N {found} (sd between chains)"

    return [
        Claim(
            "at equal steps the growing minibatch is ahead of the constant one",
            ours(growing, constant),
            bool(growing.mean() > constant.mean()),
        ),
        Claim(
            "at equal passes",
            ours(growing, long),
            None,
            "at equal passes the constant minibatch has taken a thousand times as many steps",
        ),
    ]


def show(result: Result) -> None:
    rows = []
    for name, curve in zip(("growing", "constant", "constant"), result, strict=True):
        for i in sorted({len(curve.steps) * part // 4 - 1 for part in (1, 2, 4)}):
            measures = (curve.log_joint[i], curve.accuracy[i])
            cells = (f"{v.mean():.4f} +- {v.std():.4f}" for v in measures)
            rows.append((name, curve.steps[i], curve.passes[i], *cells))
    command_line.print_table(
        {"minibatch": "", "steps": "d", "passes": ".3f", "log joint / N": "", "accuracy": ""}, rows
    )


EXPERIMENT = Experiment(
    paper="He & Xin 2013",
    figure="figures 1 and 2",
    title="a9a, a minibatch that grows against a constant one",
    run=run,
    quick={"num_chains": 8, "num_steps": 120},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
