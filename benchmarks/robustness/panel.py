"""The verdicts of `report` on good and bad runs: misses and false alarms are counted.

    python -m benchmarks.robustness.panel --quick

Each run's verdict is compared with what is known of it: sound (no word), near (a note with the size
of the bias), bad (a problem), or unseen (no check of this kind can find it). It fails if a bad or
near run passes without a word, or if more than 1 in 40 sound runs is spoken of.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood
from benchmarks.common.problems import correlated
from benchmarks.common.reference import logistic_laplace
from benchmarks.robustness import panel_draws
from benchmarks.robustness.panel_draws import NUM_CHAINS, NUM_RESULTS

MOST_FALSE_ALARMS = 1 / 40
N, D, BATCH = 2000, 8, 100
QUICK = ("NOGIN, logistic", "SGLD, sd 1.12", "likelihood times 20", "beyond the stability limit")


class Row(NamedTuple):
    """A run: what it is, what was expected and said, and its true width (NaN if not known)."""

    name: str
    expected: str
    said: str
    is_right: bool
    width: float
    words: str


class Problem(NamedTuple):
    """A posterior with its Laplace approximation (exact for the Gaussian)."""

    prior: Any
    likelihood: Any
    data: Any
    mode: np.ndarray
    covariance: np.ndarray

    def target(self, batch_size: int = BATCH, scale: float = 1.0, **options: Any) -> Any:
        """Returns the target, with its likelihood multiplied by `scale`."""
        return sgmcmc.MinibatchLogProb(
            self.prior,
            lambda theta, batch: scale * self.likelihood(theta, batch),
            options.pop("data", self.data),
            batch_size,
            **options,
        )

    @property
    def root(self) -> float:
        """The square root of the largest curvature."""
        return 1 / float(np.sqrt(np.linalg.eigvalsh(self.covariance)[0]))

    def starts(self, chains: int, sds: float = 1.0) -> tf.Tensor:
        z = np.random.default_rng(5).standard_normal([chains, D])
        start = self.mode + sds * z @ np.linalg.cholesky(self.covariance).T
        return tf.constant(start, tf.float32)


class Run(NamedTuple):
    """How to make a run of a kernel."""

    name: str
    expected: str
    problem: Problem
    kernel: Callable[[Problem], Any]
    thinning: int = 20
    burn_in: int = 2000
    sds: float = 1.0
    num_results: int = NUM_RESULTS


def logistic() -> Problem:
    x, y = correlated(N, D, 0)
    return Problem(gaussian_log_prior, log_likelihood, as_batch(x, y), *logistic_laplace(x, y, 1.0))


def gaussian(least: float, most: float) -> Problem:
    """Returns the mean of normal data with scales in this range: the posterior is Gaussian."""
    sds = np.linspace(least, most, D).astype(np.float32)
    data = (2 + sds * np.random.default_rng(1).standard_normal([N, D])).astype(np.float32)

    def likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum(((batch - theta[..., tf.newaxis, :]) / sds) ** 2, axis=-1)

    precision = N / sds.astype(np.float64) ** 2 + 1
    mode = data.astype(np.float64).sum(axis=0) / sds**2 / precision
    return Problem(gaussian_log_prior, likelihood, data, mode, np.diag(1 / precision))


def hmc(p: Problem, target: Any = None, factor: float = 1.0) -> Any:
    target = p.target() if target is None else target
    return tfp.mcmc.HamiltonianMonteCarlo(target, 0.5 * factor / p.root, 5)


def repeated(p: Problem, part: slice, times: int = 1) -> Any:
    """Returns the target on a part of the data, each example `times` times."""
    data = tf.nest.map_structure(lambda x: np.repeat(x[part], times, axis=0), p.data)
    return p.target(data=data)


def runs() -> list[Run]:
    """Returns all runs of kernels. Steps are in units of the largest curvature."""
    a, b, even = logistic(), gaussian(0.5, 1.5), gaussian(0.95, 1.05)
    g = sgmcmc

    def sgld(share: float, **options: Any) -> Callable[[Problem], Any]:
        """Returns SGLD with this share of its largest stable step, 4 / curvature."""
        return lambda p: g.SGLD(p.target(**options), share * 4 / p.root**2)

    def nogin(h: float, **options: Any) -> Callable[[Problem], Any]:
        return lambda p: g.NOGIN(
            p.target(**options), h / p.root, 0.5 * p.root, num_estimation_steps=100
        )

    def sghmc(**options: Any) -> Callable[[Problem], Any]:
        return lambda p: g.SGHMC(p.target(**options), 0.05 / p.root, 2 * p.root)

    def underdamped(h: float, friction: float) -> Callable[[Problem], Any]:
        return lambda p: g.UnderdampedLangevin(p.target(), h / p.root, friction * p.root)

    def sgfs(p: Problem) -> Any:
        return g.SGFS(p.target(), alpha=4 * p.root, num_estimation_steps=100)

    def with_control_variates(p: Problem) -> Any:
        center = tf.constant(p.mode, tf.float32)
        return g.SGLD(g.ControlVariate(p.target(), center), 0.05 / p.root**2)

    def euler(p: Problem) -> Any:
        return g.CCAdL(p.target(), 0.2 / p.root, 0.5 * p.root, scheme="euler")

    def corrected(p: Problem) -> Any:
        return g.CorrectedLangevin(p.target(), 1 / p.root**2)

    def wrong(scale: float, factor: float | None = None) -> Callable[[Problem], Any]:
        """Returns HMC on another likelihood, with a step for its width."""
        return lambda p: hmc(p, p.target(scale=scale), scale**-0.5 if factor is None else factor)

    def on_part(part: slice, factor: float, times: int = 1) -> Callable[[Problem], Any]:
        return lambda p: hmc(p, repeated(p, part, times), factor)

    def nan_likelihood(p: Problem) -> Any:
        edge = float(p.mode[0] + np.sqrt(p.covariance[0, 0]))

        def likelihood(theta: tf.Tensor, batch: Any) -> tf.Tensor:
            return p.likelihood(theta, batch) * tf.where(theta[..., :1] > edge, np.nan, 1.0)

        return g.NOGIN(p._replace(likelihood=likelihood).target(), 0.2 / p.root, 0.5 * p.root)

    return [
        Run("NOGIN, logistic", "sound", a, nogin(0.2)),
        Run("NOGIN, Gaussian", "sound", b, nogin(0.2)),
        Run("SGLD, control variates", "sound", a, with_control_variates, 100),
        Run("corrected Langevin", "sound", a, corrected),
        Run("SGHMC", "sound", a, sghmc(), 60),
        Run("SGFS, logistic", "sound", a, sgfs, 100),
        Run("SGFS, Gaussian", "sound", b, sgfs, 100),
        Run("underdamped Langevin", "sound", a, underdamped(0.005, 1.0), 300),
        Run("HMC", "sound", a, hmc, 2),
        Run("SGLD, sd 1.12", "near", even, sgld(0.013), 60),
        Run("SGLD, sd 1.07", "near", even, sgld(0.0075), 100),
        Run("CCAdL, Euler steps", "near", even, euler, 50),
        Run("SGLD, step far too large (logistic)", "bad", a, sgld(0.5), 1),
        Run("SGLD, step far too large (Gaussian)", "bad", b, sgld(0.95), 1),
        Run("gradient noise ignored (SGLD)", "bad", a, sgld(0.01, batch_size=10), 100),
        Run("gradient noise ignored (underdamped)", "bad", b, underdamped(0.1, 0.5)),
        Run("explosion", "bad", b, sgld(1.01), 0, 0),
        Run("no burn-in (logistic)", "bad", a, sgld(0.001), 10, 0, 40.0),
        Run("no burn-in (Gaussian)", "bad", b, sgld(0.001), 10, 0, 100.0),
        Run("a far start", "bad", b, lambda p: hmc(p, factor=0.2), 5, 0, 133.0),
        Run("tiny steps (from the mode)", "bad", a, sgld(1e-6), 0, 0, 0.0),
        Run("tiny steps (spread starts)", "bad", b, sgld(1e-6), 0, 0),
        Run("likelihood times 20", "bad", a, wrong(scale=20.0), 2),
        Run("a quarter of the data", "bad", a, on_part(slice(0, N // 4), 2.0), 2),
        Run("a mean in place of a sum", "bad", a, wrong(scale=1 / N, factor=20.0), 4),
        Run("epochs with Sigma (SGHMC)", "bad", a, sghmc(reshuffle="epoch"), 60),
        Run("epochs with Sigma (NOGIN)", "bad", a, nogin(0.2, reshuffle="epoch")),
        Run("beyond the stability limit", "bad", a, nogin(2.6), 20),
        Run("skipped minibatches", "bad", a, nan_likelihood),
        Run("duplicated data", "unseen", a, on_part(slice(None), 0.7, 2), 2),
    ]  # fmt: skip


def judge(name: str, expected: str, found: Any, width: float = np.nan) -> Row:
    """Compares a report with what was expected."""
    said = "problem" if found.problems else "note" if found.notes else "nothing"
    right = {"sound": said == "nothing", "near": said == "note", "bad": said == "problem"}
    words = " | ".join([*found.problems, *found.notes])
    return Row(name, expected, said, right.get(expected, True), width, words)


def judged_run(run: Run, groups: int) -> Iterator[Row]:
    """Makes a run with four chains for each group, and judges each group."""
    p, chains = run.problem, NUM_CHAINS * groups
    kernel = run.kernel(p)
    try:
        result = sgmcmc.sample_chain(
            kernel,
            p.starts(chains, run.sds),
            run.num_results,
            seed=0,
            num_burnin_steps=run.burn_in * max(1, run.thinning // 20),
            num_steps_between_results=run.thinning,
            trace_fn=lambda _, results: getattr(results, "target_log_prob", ()),
            progress_bar=False,
            preflight_check=False,
        )
    except sgmcmc.NonFiniteChainError as error:
        yield Row(run.name, run.expected, "stopped", run.expected == "bad", np.nan, str(error))
        return
    target = kernel.target_log_prob_fn if run.expected == "unseen" else p.target()
    for group in range(groups):
        part = slice(group * NUM_CHAINS, (group + 1) * NUM_CHAINS)
        states = np.asarray(result.states)[:, part]
        draws = {name: x[:, part] for name, x in result.named_draws().items()}
        of_group = types.SimpleNamespace(
            states=states,
            trace=None,
            kernel=kernel,
            final_kernel_results=_of_chains(result.final_kernel_results, part, chains),
            named_draws=lambda draws=draws: draws,
        )
        with np.errstate(all="ignore"):
            off = np.cov(states.reshape(-1, D).astype(np.float64), rowvar=False)
            width = np.sqrt(np.trace(np.linalg.solve(p.covariance, off)) / D)
        yield judge(run.name, run.expected, sgmcmc.report(of_group, target), float(width))


def _of_chains(results: Any, part: slice, chains: int) -> Any:
    """Returns a kernel's results for some of its chains."""

    def pick(x: Any) -> Any:
        return x[part] if tf.is_tensor(x) and x.shape.rank and x.shape[0] == chains else x

    return tf.nest.map_structure(pick, results)


def run(*, quick: bool = False, only: str = "") -> list[Row]:
    """Prints the panel as it is made, and returns its rows.

    Args:
      quick: a part of the panel, in about a minute.
      only: part of the names of the runs to make.
    """
    found = list[Row]()

    def judged() -> Iterator[tuple[Any, ...]]:
        for row in rows(quick, only):
            found.append(row)
            mark = "" if row.is_right else "WRONG"
            width = "" if np.isnan(row.width) else f"{row.width:.3g}"
            yield row.name, row.expected, row.said, width, mark, row.words[:140]

    columns = {"run": "<40", "expected": "<8", "said": "<8", "width": "<9", "": "<5", "words": "<1"}
    command_line.print_table(columns, judged())
    return found


def rows(quick: bool, only: str = "") -> Iterator[Row]:
    """Makes and judges the runs; sound ones several times."""
    for seed in range(2 if quick else 5):
        for name, (draws, log_prob) in panel_draws.sound(seed).items():
            if only in name:
                yield judge(name, "sound", sgmcmc.report({"theta": draws}, log_prob))
    for kind, made in (
        ("bad", panel_draws.broken(0)),
        ("near", panel_draws.near(0)),
        ("unseen", panel_draws.unseen(0)),
    ):
        for name, (draws, log_prob) in made.items():
            if only in name:
                yield judge(name, kind, sgmcmc.report({"theta": draws}, log_prob))
    for each in runs():
        if only in each.name and (each.name in QUICK or not quick):
            yield from judged_run(each, 3 if each.expected == "sound" and not quick else 1)


def show(found: list[Row]) -> None:
    """Prints the counts; raises SystemExit if the aim is missed."""
    sound = [r for r in found if r.expected == "sound"]
    alarms = sum(not r.is_right for r in sound)
    wrong = [r for r in found if r.expected in ("near", "bad") and not r.is_right]
    missed = [r for r in wrong if r.said == "nothing"]
    print(f"{alarms} false alarms in {len(sound)} sound runs; {len(missed)} misses", end="")
    print(f" and {len(wrong) - len(missed)} wrong levels in {len(found) - len(sound)} others")
    if wrong or alarms > max(1, len(sound) * MOST_FALSE_ALARMS):
        raise SystemExit("The panel missed its aim: no miss, and at most 1 false alarm in 40.")


def main() -> None:
    command_line.main(__doc__, run, show)


if __name__ == "__main__":
    main()
