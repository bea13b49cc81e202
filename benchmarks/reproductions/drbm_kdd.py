"""SGD, SGLD, SGFS-d and SGFS-f on KDD Cup 1999: a restricted Boltzmann machine of 2647 parameters.

After Ahn, Korattikara & Welling, Bayesian posterior sampling via stochastic gradient Fisher
scoring, ICML 2012, section 5.3 and table 1: F = 40 features, C = 23 classes, H = 41 hidden units,
90 % of the rows for training, 5 % for validation and 5 % for the test, minibatches of n = 500, the
prior N(0, I / lambda) with lambda = 10, the test error and the time of each method.

These are the 494,021 rows of the 10 % file; the paper has all 4,898,430. SGD predicts by its
current state, a sampler by the mean of the class probabilities over the second half of its states
so far, of which two a pass are kept. Each method chooses its setting by the validation error at the
end. SGD and SGLD have the paper's schedule epsilon = a (100,000 + t)^-0.9, with its a = 0.1, and
with 0.3 and 1, as N is a tenth of the paper's. SGFS-d has B = I at three learning rates epsilon N /
2, and the paper's B = gamma N V at its alpha = 8.95 and at 20 and 40, where V is averaged over 200
steps before the first move. All chains start at the same random weights. Times are of one chain,
without compilation. Errors are compared after equally many passes, row by row of the test data.

Without options the full form takes five passes, and SGFS-f, of which a step takes 0.3 to 0.5
seconds of a core beside other work, is not in it; `--methods SGLD SGFS-f` takes two passes of it.
It has B = I. The 100,000 steps of the paper were taken on a GPU, by programs that need no
TensorFlow there:

    python -m benchmarks.reproductions.drbm_kdd --write --programs FOLDER --methods SGD SGFS-f
    python -m benchmarks.devices.run_program FOLDER/SGFS-f.npz --calls 113 --may-be-infinite \\
        --output FOLDER/SGFS-f.draws.npz
    python -m benchmarks.reproductions.drbm_kdd --num-passes 113 --programs FOLDER --methods ...

The second command is run there for each program. SGFS-f with B = gamma N V factors a matrix at
every step for its noise, 48 milliseconds there, and was not run to its end.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line, drbm, drbm_sums
from benchmarks.common.chains import compiled
from benchmarks.common.second_half import wrong_so_far
from benchmarks.reproductions import drbm_kdd_programs
from benchmarks.reproductions.drbm_hmc import repeated
from benchmarks.reproductions.experiment import UNDECIDED, Claim, Experiment, main, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATES_A_PASS = 2
PRECISION = 10.0  # lambda of the prior


class Method(NamedTuple):
    """A way to train or sample."""

    kernel: Callable[[Any, Any], Any]  # (target, settings [chains]) -> kernel
    settings: tuple[float, ...]  # to choose from, one chain each
    most_passes: int | None = None  # fewer than the others, because of its time


def sgld(target: Any, a: tf.Tensor, temperature: float = 1.0) -> sgmcmc.SGLD:
    """Returns SGLD with the schedule a (100,000 + t)^-0.9."""
    schedules = (
        lambda step, a=part: a * (1e5 + tf.cast(step, tf.float32)) ** -0.9
        for part in drbm.for_chains(a)
    )
    return sgmcmc.SGLD(target, drbm.Weights(*schedules), temperature)


def sgfs(target: Any, rates: tf.Tensor, covariance: Any) -> sgmcmc.SGFS:
    """Returns SGFS with B = I at learning rates epsilon N / 2."""
    epsilon = 2 * rates / target.num_examples
    return sgmcmc.SGFS(target, epsilon, covariance=covariance, num_estimation_steps=0)


def scaled_sgfs(target: Any, alphas: tf.Tensor, form: Any) -> sgmcmc.SGFS:
    """Returns SGFS with B = gamma N V and, as in the paper, the current minibatch in V."""
    covariance = form(sgmcmc.covariance.RunningMean(), include_current=True)
    return sgmcmc.SGFS(
        target, B="scaled_fisher", alpha=alphas, covariance=covariance, num_estimation_steps=200
    )


FULL_COVARIANCE = sgmcmc.covariance.Full(sgmcmc.covariance.RunningMean(), solver="lagged_cholesky")
SCALED, SCALED_FULL = "SGFS-d, B = gamma N V", "SGFS-f, B = gamma N V"
METHODS = {
    "SGD": Method(functools.partial(sgld, temperature=0.0), (0.1, 0.3, 1.0)),
    "SGLD": Method(sgld, (0.1, 0.3, 1.0)),
    "SGFS-d": Method(functools.partial(sgfs, covariance="diag"), (10.0, 30.0, 100.0)),
    SCALED: Method(functools.partial(scaled_sgfs, form=sgmcmc.covariance.Diag), (8.95, 20.0, 40.0)),
    "SGFS-f": Method(functools.partial(sgfs, covariance=FULL_COVARIANCE), (3.0, 10.0, 30.0), 2),
    SCALED_FULL: Method(
        functools.partial(scaled_sgfs, form=sgmcmc.covariance.Full), (8.95, 20.0, 40.0), 2
    ),
}
FULL = tuple(name for name in METHODS if not name.startswith("SGFS-f"))


class Row(NamedTuple):
    """One method at its chosen setting."""

    method: str
    setting: float
    validation: dict[float, float]  # validation errors at the end, by setting
    passes: np.ndarray  # passes over the data so far, [records]
    test: np.ndarray  # test errors at these passes, [records]
    wrong: np.ndarray  # which test rows are wrong there, [records, rows]
    seconds: float  # seconds of all passes of one chain
    num_test: int  # number of test rows
    device: str = "CPU"


def run(
    *,
    num_passes: int = 5,
    batch_size: int = 500,
    num_hidden: int = 41,
    num_rows: int = 0,
    methods: tuple[str, ...] = FULL,
    programs: str = "",
    write: bool = False,
    seed: int = 0,
) -> list[Row]:
    """Runs the methods.

    Args:
      num_passes: passes over the training rows.
      batch_size: n.
      num_hidden: H.
      num_rows: rows of all parts together, 0 for all.
      methods: names of the methods.
      programs: folder of programs with their draws, which are read in place of running chains.
      write: writes the programs, and runs nothing.
      seed: seed of the split, the start and the chains.
    """
    data = datasets.kddcup99(test_fraction=0.1, encoding="integer", seed=seed)
    num_rows = num_rows or len(data.x_train) + len(data.x_test)
    train, held_out = int(0.9 * num_rows), int(0.05 * num_rows)
    rows_of_training = data.x_train[:train], data.y_train[:train], batch_size, PRECISION
    with_sums = drbm_sums.Target(*rows_of_training)
    with_scores = drbm.target(*rows_of_training, shared_batch=True)
    start = drbm.initial(num_hidden, data.x_train.shape[1], 23, seed)
    every = max(1, train // (batch_size * STATES_A_PASS))  # steps from one state to the next

    rows = {"validation": slice(held_out), "test": slice(held_out, 2 * held_out)}

    def validation_error(states: list[np.ndarray]) -> float:
        """Returns the error of the mean over states, infinite if that is not finite."""
        p = drbm.probabilities(states, data.x_test[rows["validation"]]).mean(axis=0)
        wrong = p.argmax(axis=-1) != data.y_test[rows["validation"]]
        return float(wrong.mean() if np.all(np.isfinite(p)) else np.inf)

    def wrong_test_rows(states: list[np.ndarray], is_sampler: bool) -> np.ndarray:
        p, y = drbm.probabilities(states, data.x_test[rows["test"]]), data.y_test[rows["test"]]
        return wrong_so_far(p, y) if is_sampler else (p.argmax(axis=-1) != y).astype(np.float32)

    def kernel_of(name: str) -> Any:
        target = with_scores if name.startswith("SGFS-f") else with_sums
        return METHODS[name].kernel(target, tf.constant(METHODS[name].settings, tf.float32))

    if write:
        kernels = {name: kernel_of(name) for name in methods}
        drbm_kdd_programs.write(Path(programs), kernels, repeated(start, 3), every, STATES_A_PASS)
        sys.exit(f"The programs are in {programs}.")
    found = []
    for name in methods:
        settings, most_passes = METHODS[name].settings, METHODS[name].most_passes
        if programs:
            num_states = num_passes * STATES_A_PASS
            states, seconds, device = drbm_kdd_programs.read(Path(programs), name, num_states)
        else:
            num_states = min(num_passes, most_passes or num_passes) * STATES_A_PASS
            chains = repeated(start, len(settings))
            states, seconds = timed_states(kernel_of(name), chains, every, num_states, seed)
            device = "CPU"
        by_setting = [[x[:, i] for x in states] for i in range(len(settings))]
        # The error at the end takes the last half of the states, or the last.
        last = num_states // 2 if name != "SGD" else num_states - 1
        validation = [validation_error([x[last:] for x in of]) for of in by_setting]
        chosen = int(np.argmin(validation))
        wrong = wrong_test_rows(by_setting[chosen], name != "SGD")
        found.append(
            Row(
                name,
                settings[chosen],
                dict(zip(settings, validation, strict=True)),
                np.arange(1, num_states + 1) * every * batch_size / train,
                wrong.mean(axis=1),
                wrong,
                seconds / len(settings),
                held_out,
                device,
            )
        )
    return found


def timed_states(
    kernel: Any, start: drbm.Weights, every: int, num_states: int, seed: int
) -> tuple[list[np.ndarray], float]:
    """Returns the parts `[num_states, chains, ...]`, and the seconds without compilation."""
    run_one = compiled(kernel, 1, every)
    state, results = start, kernel.bootstrap_results(start)
    run_one(state, results, tf.constant([seed, 0]))  # compiles
    kept = []
    begin = time.perf_counter()
    for i in range(num_states):
        found = run_one(state, results, tf.constant([seed, i + 1]))
        results = found.final_kernel_results
        state = drbm.Weights(*(part[0] for part in found.all_states))
        kept.append([part.numpy() for part in state])
    seconds = time.perf_counter() - begin
    return [np.stack(parts) for parts in zip(*kept, strict=True)], seconds


def claims(found: list[Row]) -> list[Claim]:
    by_name = {row.method: row for row in found}
    seconds = {name: row.seconds / row.passes[-1] for name, row in by_name.items()}

    device = found[0].device

    def cells(values: dict[str, float], form: str) -> str:
        return ", ".join(f"{name} {value:{form}}" for name, value in values.items())

    result = []
    for ours in ("SGFS-d", "SGFS-f"):
        others = [name for name in ("SGD", "SGLD") if name in by_name]
        if ours in by_name and others:
            last = len(by_name[ours].test) - 1
            errors = {name: float(by_name[name].test[last]) for name in (*others, ours)}
            # The difference of two methods, row by row, in standard errors.
            gaps = {x: by_name[x].wrong[last] - by_name[ours].wrong[last] for x in others}
            scores = {x: _score(gap) for x, gap in gaps.items()}
            least = min(scores.values())
            held = UNDECIDED if abs(least) < 2 else least > 0
            unknown = "; row by row " + ", ".join(
                f"{x} is {score:+.1f} standard errors above" for x, score in scores.items()
            )
            result.append(
                Claim(
                    f"the test error of {ours} is smaller than with {' and '.join(others)}",
                    f"after {by_name[ours].passes[-1]:.1f} passes: {cells(errors, '.5f')}",
                    held,
                    f"one start, the 10 % file, and equal passes{unknown}",
                )
            )
    for name in filter(by_name.__contains__, (SCALED, SCALED_FULL)):
        row = by_name[name]
        result.append(
            Claim(
                f"{name}, the paper's choice, from the same random start",
                f"after {row.passes[-1]:.1f} passes an error of {row.test[-1]:.5f} at alpha = "
                f"{row.setting:g}; validation errors {_by_setting(row)}",
                None,
                "entries with rare features have a V near 0 at first, which throws chains far",
            )
        )
    if {"SGLD", "SGFS-d"} <= {*by_name} and "SGFS-f" not in by_name:
        result.append(
            Claim(
                "SGFS-d takes little more time than SGLD",
                f"seconds a pass: {cells(seconds, '.2g')} ({device})",
                seconds["SGFS-d"] < 4 * seconds["SGLD"],
                "held if below 4 times SGLD's; SGFS-f is not in this run",
            )
        )
    if {"SGLD", "SGFS-d", "SGFS-f"} <= {*by_name}:
        result.append(
            Claim(
                "SGFS-d takes little more time than SGLD, and SGFS-f much more",
                f"seconds a pass: {cells(seconds, '.2g')} ({device})",
                seconds["SGFS-d"] < 4 * seconds["SGLD"] < seconds["SGFS-f"],
                "the bound between little and much is 4 times SGLD's",
            )
        )
    return result


def _score(gap: np.ndarray) -> float:
    """Returns the mean of differences in its standard errors, 0 if there are none."""
    return float(gap.sum() / np.sqrt(np.sum(gap**2))) if np.any(gap) else 0.0


def _by_setting(row: Row) -> str:
    return ", ".join(f"{setting:g}: {error:.5f}" for setting, error in row.validation.items())


def show(found: list[Row]) -> None:
    columns = {"method": "", "setting": "g", "passes": ".1f", "test error": ".5f", "s": ".1f"}
    command_line.print_table(
        columns, [(r.method, r.setting, r.passes[-1], r.test[-1], r.seconds) for r in found]
    )
    for row in found:
        print(f"{row.method}, validation error by setting: {_by_setting(row)}")


def plot(found: list[Row]) -> Figure:
    """Draws test errors against passes and against seconds."""
    figure, axes = subplots(1, 2)
    for row in found:
        label = f"{row.method}, {row.setting:g}"
        axes[0, 0].semilogy(row.passes, row.test, label=label)
        axes[0, 1].loglog(row.seconds * row.passes / row.passes[-1], row.test, label=label)
    for axis, name in zip(axes[0], ("passes over the data", "seconds"), strict=True):
        axis.set(xlabel=name, ylabel="test error")
        axis.legend(fontsize=6)
    return figure


EXPERIMENT = Experiment(
    paper="Ahn, Korattikara & Welling 2012",
    figure="table 1",
    title="a restricted Boltzmann machine on KDD Cup 1999, error and time",
    run=run,
    quick={
        "num_passes": 2,
        "num_hidden": 10,
        "num_rows": 30_000,
        "methods": ("SGLD", "SGFS-d", "SGFS-f"),
    },
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
