"""SGLD with a growing minibatch against a small constant one, on a9a.

After He & Xin, Hybrid deterministic-stochastic gradient Langevin dynamics for Bayesian learning,
Communications in Information and Systems 2013, figures 1 and 2: logistic regression on UCI Adult as
a9a with a constant column, prior N(0, I), 80 % for training, equal step sizes for both. One
minibatch grows by a factor of 1.1 a step from 1 example to all of them, and the other one stays at
4. The table gives the log joint probability for each training example and the test accuracy, as
means over independent runs. It compares equal numbers of steps, as the figures do, and equal
numbers of passes over the data.

At equal steps the growing minibatch wins, because it uses far more examples. At equal passes the
constant one has taken many more steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled
from benchmarks.common.logistic import accuracy, as_batch, gaussian_log_prior, log_likelihood
from benchmarks.reproductions.experiment import UNDECIDED, Claim, Experiment, main, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAST = slice(-1, None)  # record
CHUNK = 512  # examples that a growing minibatch gathers at once


class Curve(NamedTuple):
    """The progress of independent runs, with one entry for each record."""

    steps: np.ndarray  # steps so far, [records]
    passes: np.ndarray  # passes over the data so far, [records]
    log_joint: np.ndarray  # log p(theta, data) / N at the state of the record, [records, runs]
    accuracy: np.ndarray  # test accuracy of that state, [records, runs]


class Result(NamedTuple):
    """All curves; `constant_long` makes as many passes as `growing`, and may be missing."""

    growing: Curve
    constant: Curve
    constant_long: Curve | None
    smaller: int  # steps in which the growing minibatch has fewer examples than the constant one


class Settings(NamedTuple):
    """Settings that the runs of both kinds of minibatches share."""

    growth: float
    constant_size: int
    step_sizes: tuple[float, float]  # the first and the last of them
    num_steps: int
    num_runs: int
    num_long: int  # runs at equal passes
    num_records: int
    seed: int


def run(
    *,
    growth: float = 1.1,
    constant_size: int = 4,
    first_step_size: float = 2e-4,
    last_step_size: float = 2e-5,
    num_steps: int = 200,
    num_runs: int = 50,
    num_long: int = 4,
    seed: int = 0,
) -> Result:
    """Samples with both minibatches."""
    data = datasets.a9a(split="random", seed=seed)
    x_train, x_test = (
        np.pad(x, [(0, 0), (1, 0)], constant_values=1) for x in (data.x_train, data.x_test)
    )
    steps = first_step_size, last_step_size
    return compare(
        lambda size: sgmcmc.MinibatchLogProb(
            gaussian_log_prior, log_likelihood, as_batch(x_train, data.y_train), size
        ),
        tf.zeros([x_train.shape[1]]),
        lambda states: accuracy(states @ x_test.T, data.y_test),
        Settings(growth, constant_size, steps, num_steps, num_runs, num_long, 100, seed),
    )


def compare(
    make_target: Callable[[int], sgmcmc.MinibatchLogProb],
    start: tf.Tensor,
    test_accuracy: Callable[[np.ndarray], np.ndarray],
    settings: Settings,
) -> Result:
    """Samples with a growing and a constant minibatch.

    Args:
      make_target: size of the minibatch -> target.
      start: the first state.
      test_accuracy: states `[records, ...]` -> accuracies `[records]`.
      settings: see `Settings`.
    """
    num_examples = make_target(1).num_examples
    num_steps, constant_size = settings.num_steps, settings.constant_size
    sizes = np.minimum(settings.growth ** np.arange(num_steps), num_examples)
    passes = np.cumsum(np.ceil(sizes)) / num_examples
    schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(*settings.step_sizes, num_steps)

    def curve(size: int | None, num_steps: int, num_runs: int, stream: int) -> Curve:
        target = make_target(size or CHUNK)
        kernel = sgmcmc.SGLD(
            sgmcmc.GrowingBatch(target, settings.growth) if size is None else target, schedule
        )
        every = max(1, num_steps // settings.num_records)
        chain = compiled(kernel, num_steps // every, every)
        log_joint, found = tf.function(target, jit_compile=True), []
        for i in range(num_runs):
            states = chain(start, None, tf.constant([settings.seed, 1000 * stream + i])).all_states
            found.append((log_joint(states).numpy() / num_examples, test_accuracy(states.numpy())))
        steps = np.arange(1, num_steps // every + 1) * every
        return Curve(
            steps,
            passes[steps - 1] if size is None else steps * size / num_examples,
            *(np.stack(values, axis=1) for values in zip(*found, strict=True)),
        )

    long = None
    if settings.num_long:
        steps = int(passes[-1] * num_examples / constant_size)
        long = curve(constant_size, steps, settings.num_long, 2)
    return Result(
        curve(None, num_steps, settings.num_runs, 0),
        curve(constant_size, num_steps, settings.num_runs, 1),
        long,
        int(np.sum(np.ceil(sizes) < constant_size)),
    )


def plot(result: Result) -> Figure:
    """Draws both measures against steps, and against passes if that was run."""
    rows = [("steps", (result.growing, result.constant))]
    if result.constant_long is not None:
        rows.append(("passes over the data", (result.growing, result.constant_long)))
    figure, axes = subplots(len(rows), 2)
    for row, (measure, curves) in zip(axes, rows, strict=True):
        for name, curve in zip(("growing", "constant"), curves, strict=True):
            at = curve.steps if measure == "steps" else curve.passes
            for axis, values in zip(row, (curve.log_joint, curve.accuracy), strict=True):
                middle, spread = values.mean(axis=1), values.std(axis=1)
                axis.plot(at, middle, label=name)
                axis.fill_between(at, middle - spread, middle + spread, alpha=0.2)
        for axis, name in zip(row, ("log joint probability / N", "test accuracy"), strict=True):
            axis.set(xlabel=measure, ylabel=name, xscale="linear" if measure == "steps" else "log")
            axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    def claim(
        text: str, first: Curve, second: Curve, measure: str, why: str = "", at: slice = LAST
    ) -> Claim:
        values = [getattr(curve, measure)[at].mean(axis=0) for curve in (first, second)]
        found = " and ".join(
            f"{x.mean():.4f}" + f" +- {_error(x):.4f}" * (len(x) > 1) for x in values
        )
        error = sum(_error(x) ** 2 for x in values) ** 0.5
        ahead = (values[0].mean() - values[1].mean()) / error
        held = None if why else bool(ahead > 3)
        if held is False:
            why = f"by {abs(ahead):.1f} standard errors of the difference, where 3 are asked for"
            why = f"ahead {why}" if ahead > 0 else f"behind {why}"
            held = UNDECIDED if abs(ahead) < 3 else False
        runs = " and ".join(str(size) for size in dict.fromkeys(map(len, values)))
        name = measure.replace("_", " ") + " / N" * (measure == "log_joint")
        return Claim(text, f"{name} {found} (mean of {runs} runs)", held, why)

    text = "at equal steps the growing minibatch is ahead of the constant one"
    pair = result.growing, result.constant
    found = [claim(text, *pair, m) for m in ("log_joint", "accuracy")]
    at = slice(0, int(np.sum(result.growing.steps <= result.smaller)))
    if at.stop:
        text = (
            f"at first, here over the first {result.smaller} steps, in which the growing minibatch "
            "is the smaller one, the constant one is ahead"
        )
        found += [claim(text, *pair[::-1], m, at=at) for m in ("log_joint", "accuracy")]
    if result.constant_long is not None:
        why = (
            "at equal passes the constant minibatch has taken "
            f"{result.constant_long.steps[-1]} steps, the growing one {result.growing.steps[-1]}"
        )
        pair = result.growing, result.constant_long
        found.append(claim("at equal passes over the data", *pair, "log_joint", why))
    return found


def _error(values: np.ndarray) -> float:
    """Returns the standard error of the mean; infinite for a single run."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else np.inf


def show(result: Result) -> None:
    rows = []
    for name, curve in zip(("growing", "constant", "constant"), result[:3], strict=True):
        if curve is None:
            continue
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
    quick={"num_runs": 16, "num_long": 1},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
