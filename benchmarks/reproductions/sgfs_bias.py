"""Bias against the cost of independent draws: MNIST 7 v 9 in a random projection.

After Ahn, Korattikara & Welling, Bayesian posterior sampling via stochastic gradient Fisher
scoring, ICML 2012, figure 2: the problem of `sgfs_ellipses`. For every method and setting, the
errors E1 of the mean and E2 of the covariance (equation 14) at two times are shown against 1/ATUC,
the number of independent draws for a unit of cost. The settings are alpha from 0 to 6 for SGFS-f,
SGFS-d and SGFS-b (blocks of about ten weights), seven step sizes of SGLD, and 50 to 1 leapfrog
steps of HMC on all data.

The paper's cost is seconds. Here it is passes over the data, which are the same on every machine,
and the seconds of a pass are beside them. SGFS has B = gamma N V, the paper's choice, so alpha is a
plain number. V is kept after the first steps, which are burn-in. All settings of a method run as
chains beside each other that share minibatches. HMC has a fixed step of 0.6 of its largest stable
one. An autocorrelation time that is too long for the chain counts as infinite.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood, score
from benchmarks.common.reference import Reference, exact_posterior
from benchmarks.reproductions.experiment import UNDECIDED, Claim, Experiment, main, subplots
from benchmarks.reproductions.sgfs_ellipses import problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCKS = (11, 10, 10, 10, 10)  # weights in each block of SGFS-b, the constant in the first one
ALPHAS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
STEP_SIZES = (1e-6, 2e-6, 4e-6, 8e-6, 16e-6, 32e-6, 64e-6)  # 0.7 of the largest stable one
LEAPFROG_STEPS = (50, 40, 30, 20, 10, 1)
HMC_DRAWS = 60  # at least, for its autocorrelation times
DRAWS = 20  # of a compiled call
METHODS = ("SGFS-f", "SGFS-d", "SGFS-b", "SGLD")  # beside HMC
CERTAIN = 2.0  # ratio of draws a second that another machine or other work would hardly turn round


class Point(NamedTuple):
    """A method with one setting."""

    method: str
    setting: float  # alpha, epsilon or the number of leapfrog steps
    rate: float  # 1/ATUC: independent draws a pass, by the mean time of all weights
    seconds: float  # seconds of a chain for a pass
    mean_errors: tuple[float, float]  # E1 after a quarter of the passes and after all
    covariance_errors: tuple[float, float]  # E2, likewise


class Result(NamedTuple):
    """The exact posterior, and all points."""

    reference: Reference
    passes: float  # passes of a chain until the second of the two times
    points: list[Point]


def in_blocks(batch_size: int) -> sgmcmc.MinibatchLogProb:
    """Returns the target of `problem` for a state with a part for each block."""
    x, y, _, _ = datasets.mnist_7v9()

    def whole(parts: Any) -> tf.Tensor:
        return tf.concat(parts, axis=-1)

    return sgmcmc.MinibatchLogProb(
        lambda *parts: gaussian_log_prior(whole(parts)),
        lambda *args: log_likelihood(whole(args[:-1]), args[-1]),
        as_batch(x, y),
        batch_size,
        score_fn=lambda *args: tf.split(score(whole(args[:-1]), args[-1]), BLOCKS, axis=-1),
        shared_batch=True,
    )


def run(
    *,
    methods: tuple[str, ...] = METHODS,
    alphas: tuple[float, ...] = ALPHAS,
    step_sizes: tuple[float, ...] = STEP_SIZES,
    leapfrog_steps: tuple[int, ...] = LEAPFROG_STEPS,
    batch_size: int = 500,
    num_chains: int = 4,
    num_passes: int = 2_000,
    num_fisher_steps: int = 200,
    thinning: int = 10,
    num_reference_results: int = 600,
    seed: int = 0,
) -> Result:
    """Runs all methods.

    Args:
      methods: the methods beside HMC.
      alphas: settings of SGFS.
      step_sizes: epsilon of SGLD.
      leapfrog_steps: numbers of leapfrog steps of HMC.
      batch_size: n.
      num_chains: independent chains of each setting.
      num_passes: the second of the two times, in passes over the data. The first is a quarter.
      num_fisher_steps: steps that V is estimated from; they do not move the chain.
      thinning: steps between draws, except for HMC.
      num_reference_results: draws of each HMC chain of the reference.
      seed: seed of all draws.
    """
    target, laplace = problem(batch_size)
    reference = exact_posterior(target, laplace, num_results=num_reference_results, seed=seed)
    points = []

    def start(settings: int) -> tf.Tensor:
        return tf.constant(np.tile(laplace[0], [settings * num_chains, 1]), tf.float32)

    def sgfs(target: Any, covariance: str) -> Callable[[np.ndarray], Any]:
        return lambda alpha: sgmcmc.SGFS(
            target,
            alpha=alpha,
            B="scaled_fisher",
            covariance=covariance,
            num_fisher_steps=num_fisher_steps,
            num_estimation_steps=num_fisher_steps,
        )

    makers: dict[str, tuple[Callable[[np.ndarray], Any], tuple[float, ...]]] = {
        "SGFS-f": (sgfs(target, "full"), alphas),
        "SGFS-d": (sgfs(target, "diag"), alphas),
        "SGFS-b": (sgfs(in_blocks(batch_size), "block"), alphas),
        "SGLD": (lambda epsilon: sgmcmc.SGLD(target, epsilon[:, np.newaxis]), step_sizes),
    }
    for name in methods:
        make, settings = makers[name]
        kernel = make(np.repeat(np.asarray(settings, np.float32), num_chains))
        state: Any = start(len(settings))
        state = tf.split(state, BLOCKS, axis=-1) if name == "SGFS-b" else state
        cost = thinning * batch_size / target.num_examples
        burnin, results = num_fisher_steps // thinning, int(num_passes / cost)
        stream = [seed, METHODS.index(name)]
        samples, seconds = timed_draws(kernel, state, thinning, results, stream, burnin)
        for setting, group in zip(settings, np.split(samples, len(settings), axis=1), strict=True):
            points.append(point(name, setting, group, cost, num_passes, seconds, reference))
    step = 0.6 * 2 * np.sqrt(np.linalg.eigvalsh(laplace[1])[0])
    for leapfrog in leapfrog_steps:
        kernel = tfp.mcmc.HamiltonianMonteCarlo(target, step, leapfrog)
        results = max(HMC_DRAWS, num_passes // leapfrog)
        samples, seconds = timed_draws(kernel, start(1), 1, results, [seed, 100 + leapfrog], 1)
        points.append(point("HMC", leapfrog, samples, leapfrog, num_passes, seconds, reference))
    return Result(reference, num_passes, points)


def timed_draws(
    kernel: Any, state: Any, thinning: int, results: int, seed: list[int], burnin: int
) -> tuple[np.ndarray, float]:
    """Returns draws `[results, chains, D]`, and the seconds of a chain for a draw.

    Draws are made by calls of `DRAWS`. The first one, which compiles the chain, and others up to
    `burnin` draws are dropped.
    """
    block, carried = compiled(kernel, DRAWS, thinning), kernel.bootstrap_results(state)
    calls = [-(-max(burnin, 1) // DRAWS), -(-results // DRAWS)]
    kept, begin = [], 0.0
    for i in range(sum(calls)):
        if i == calls[0]:
            begin = time.perf_counter()
        last = block(state, carried, tf.constant([1000 * seed[0] + seed[1], i]))
        state = tf.nest.map_structure(lambda x: x[-1], last.all_states)
        carried = last.final_kernel_results
        parts = [x.numpy() for x in tf.nest.flatten(last.all_states)]
        kept.append(np.concatenate(parts, axis=-1))
    samples = np.concatenate(kept[calls[0] :])
    seconds = (time.perf_counter() - begin) / len(samples) / samples.shape[1]
    return samples[:results], seconds


def point(
    method: str,
    setting: float,
    samples: np.ndarray,
    cost: float,
    passes: float,
    seconds: float,
    reference: Reference,
) -> Point:
    """Returns the errors as means over chains, and the rate, of draws `[S, chains, D]`.

    A draw takes `cost` passes and `seconds`.
    """
    times = sgmcmc.diagnostics.autocorrelation_time_unit_cost(
        samples.astype(np.float64), cost, chain_ndims=1
    )
    first, last = (
        np.mean([reference.errors(samples[:used, [c]]) for c in range(samples.shape[1])], axis=0)
        for used in (max(2, int(share * passes / cost)) for share in (0.25, 1.0))
    )
    rate = float(np.nan_to_num(1 / np.mean(times)))
    errors = [(float(a), float(b)) for a, b in zip(first, last, strict=True)]
    return Point(method, float(setting), rate, seconds / cost, *errors)


def by_method(result: Result) -> dict[str, list[Point]]:
    """Returns the points of each method, in the order of the settings."""
    methods = dict.fromkeys(p.method for p in result.points)
    return {name: [p for p in result.points if p.method == name] for name in methods}


def claims(result: Result) -> list[Claim]:
    points = by_method(result)
    first = {name: found[0] for name, found in points.items()}
    rates = {name: max(p.rate for p in found) for name, found in points.items()}
    others = ("SGLD", "HMC")
    kinds = [name for name in ("SGFS-f", "SGFS-b", "SGFS-d") if name in points]
    biases = [first[name].covariance_errors[1] for name in kinds]
    seconds = {name: max(p.rate / p.seconds for p in found) for name, found in points.items()}
    ours = first["SGFS-f"].rate / first["SGFS-f"].seconds
    ratios = {name: ours / seconds[name] if seconds[name] else np.inf for name in others}
    least = min(ratios.values())
    found = [
        Claim(
            "SGFS-f at alpha = 0 mixes faster in seconds than SGLD at any step and than HMC",
            f"{ours:.2g} independent draws a second, "
            + ", ".join(f"{ratio:.2g} times those of {name}" for name, ratio in ratios.items())
            + f"; {first['SGFS-f'].rate:.2g} draws a pass, "
            + ", ".join(f"{name} up to {rates[name]:.2g}" for name in others),
            UNDECIDED if 1 / CERTAIN < least < CERTAIN else least > 1,
            f"seconds of this machine with V kept, where a factor below {CERTAIN:g} decides "
            "nothing; a pass of SGFS-f takes "
            f"{first['SGFS-f'].seconds / first['SGLD'].seconds:.1f} times as long as one of SGLD",
        )
    ]
    for measure, what, floor in (
        ("covariance_errors", "covariance, E2", result.reference.covariance_floor),
        ("mean_errors", "mean, E1", result.reference.mean_floor),
    ):
        best = {name: min(getattr(p, measure)[0] for p in every) for name, every in points.items()}
        found.append(
            Claim(
                f"at the first time SGFS-f has a smaller error of the {what}, than SGLD and HMC",
                f"at the best setting after {result.passes / 4:g} passes: "
                + ", ".join(f"{name} {error:.3f}" for name, error in best.items()),
                best["SGFS-f"] + floor < min(best[name] for name in others),
                f"a difference below the noise of the reference, {floor:.3f}, does not count",
            )
        )
    return [
        *found,
        Claim(
            "at alpha = 0 the bias grows from SGFS-f to SGFS-d"
            + "; blocks are between" * (len(kinds) == 3),
            f"E2 at alpha = 0 after {result.passes:g} passes: "
            + ", ".join(f"{name} {bias:.3f}" for name, bias in zip(kinds, biases, strict=True)),
            biases == sorted(biases),
        ),
    ]


def show(result: Result) -> None:
    print(result.reference)
    columns = {"method": "", "setting": "g", "1/ATUC": ".3g", "seconds of a pass": ".2g"}
    columns |= {f"{e}, {n:g}": ".3f" for e in ("E1", "E2") for n in times(result)}
    rows = [(*p[:4], *p.mean_errors, *p.covariance_errors) for p in result.points]
    command_line.print_table(columns, rows)


def times(result: Result) -> tuple[float, float]:
    """Returns the two times, in passes."""
    return result.passes / 4, result.passes


def plot(result: Result) -> Figure:
    """Draws errors against 1/ATUC: the mean (left), the covariance (right), by time (rows)."""
    figure, axes = subplots(2, 2)
    errors = (("mean_errors", "E1, mean"), ("covariance_errors", "E2, covariance"))
    for at, (row, after) in enumerate(zip(axes, times(result), strict=True)):
        for axis, (measure, name) in zip(row, errors, strict=True):
            for method, points in by_method(result).items():
                known = [p for p in points if p.rate > 0]
                values = [getattr(p, measure)[at] for p in known]
                label = method if known else f"{method}: time too long for the chain"
                axis.loglog([p.rate for p in known], values, "o-", label=label)
            axis.set(xlabel="1/ATUC, draws a pass", ylabel=f"{name}, {after:g} passes")
    axes[0, 0].legend(fontsize=7)
    return figure


EXPERIMENT = Experiment(
    paper="Ahn, Korattikara & Welling 2012",
    figure="figure 2",
    title="bias against independent draws for a unit of cost",
    run=run,
    quick={
        "methods": ("SGFS-f", "SGFS-d", "SGLD"),
        "alphas": (0.0,),
        "step_sizes": (8e-6, 64e-6),
        "leapfrog_steps": (10,),
        "num_chains": 2,
        "num_passes": 200,
        "num_reference_results": 40,
    },
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
