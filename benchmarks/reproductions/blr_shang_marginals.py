"""Two weights of the logistic regression on MNIST 7 v 9: three samplers against HMC.

After Shang, Zhu, Leimkuhler & Storkey, Covariance-controlled adaptive Langevin thermostat for
large-scale Bayesian sampling, NIPS 2015, section 4.2 and figure 2, bottom row: the posterior of
`blr_shang`, and the law of the weights 2 and 5 by SGHMC without knowledge of the noise, by SGNHT
and by CCAdL with all of Sigma, at the friction A = 10 and the three step sizes of the caption. The
paper draws ellipses of 95 % beside those of HMC, from 10^6 states of each sampler after its
burn-in.

Here each sampler has one chain for each step size, which starts at the mode, and of which
`--num-steps` states after the burn-in count. The projection is random, so that the weights are not
the paper's. Its scale matters, because the steps are given. The axes of the figure show standard
deviations of up to about 0.005, and with the projection of `blr_shang` they are 0.20 and 0.16. So
the features are multiplied by `--scale`, here 25, after two others were tried. With 50 the standard
deviations are 0.004 and 0.003, CCAdL's largest factors are 1.04 and 1.07, and at h = 1e-4 the
paper's scheme is infinite. With 1 and 300,000 states no difference is above the noise.

A sampler's error is the largest factor by which its standard deviation is wrong in a direction of
the plane, and the distance of its mean in exact standard deviations. A chain of E effective draws
has a relative standard error of 1 / sqrt(2 E) of a standard deviation. Differences of less than
three standard errors decide nothing. CCAdL has the paper's scheme.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws, effective_sizes
from benchmarks.common.reference import Moments, exact_posterior, logistic_laplace, moments
from benchmarks.reproductions import blr_shang
from benchmarks.reproductions.experiment import UNDECIDED, Claim, Experiment, main, subplots
from benchmarks.reproductions.sgfs_ellipses import ellipse, ellipse_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAIR = (1, 4)  # weights 2 and 5
NINETY_FIVE = 2.4477  # radius of an ellipse of 95 %, in standard deviations
SAMPLERS: dict[str, Any] = {
    "SGHMC": functools.partial(sgmcmc.SGHMC, covariance=None),
    "SGNHT": sgmcmc.SGNHT,
    "CCAdL": functools.partial(
        sgmcmc.CCAdL,
        covariance=sgmcmc.covariance.Full(sgmcmc.covariance.RunningMean(), include_current=True),
        scheme="euler",
    ),
}


class Result(NamedTuple):
    """Moments of the two weights, by HMC and by sampler and step size."""

    exact: Moments
    found: dict[tuple[str, float], Moments]
    effective: dict[tuple[str, float], float]  # draws of the variance, the fewer of both weights


def run(
    *,
    step_sizes: tuple[float, ...] = (2e-5, 5e-5, 1e-4),
    friction: float = 10.0,
    scale: float = 25.0,
    num_steps: int = 1_000_000,
    num_burnin_steps: int = 100_000,
    batch_size: int = 500,
    num_reference_results: int = 200,
    seed: int = 0,
) -> Result:
    """Samples with each sampler at each step size, from the mode."""
    data, target = blr_shang.problem(batch_size, scale)
    laplace = logistic_laplace(data.x_train, data.y_train)
    reference = exact_posterior(target, laplace, num_results=num_reference_results, seed=seed)
    plane = np.ix_(PAIR, PAIR)
    h = tf.constant(step_sizes, tf.float32)
    start = tf.constant(np.tile(laplace[0], [len(step_sizes), 1]), tf.float32)
    thinning, found, effective = 50, {}, {}
    for stream, (name, make) in enumerate(SAMPLERS.items()):
        kernel = make(target, h, friction)
        states = draws(
            kernel, start, [seed, stream], num_steps // thinning, thinning, num_burnin_steps
        )
        for i, size in enumerate(step_sizes):
            chain = states[:, i][:, PAIR].astype(np.float64)
            found[name, size] = moments(chain[:, np.newaxis])
            squares = (chain - chain.mean(axis=0)) ** 2
            effective[name, size] = float(effective_sizes(squares).min())
    exact = reference.mean[list(PAIR)], reference.covariance[plane]
    return Result(exact, found, effective)


def errors(result: Result, name: str, size: float) -> tuple[float, float]:
    """Returns the largest factor of a standard deviation, and the distance of the mean."""
    mean, covariance = result.found[name, size]
    if not np.all(np.isfinite(covariance)):
        return np.inf, np.inf
    offset = np.abs(mean - result.exact[0]) / np.sqrt(np.diag(result.exact[1]))
    return float(np.exp(ellipse_error(covariance, result.exact[1]))), float(offset.max())


def larger(result: Result, name: str, other: str, size: float) -> float:
    """Returns by how many standard errors the factor of `name` is above that of `other`."""
    logs = [np.log(errors(result, key, size)[0]) for key in (name, other)]
    if not all(map(np.isfinite, logs)):
        return float(np.inf if logs[1] < np.inf else -np.inf)
    noise = sum(1 / (2 * result.effective[key, size]) for key in (name, other))
    return float((logs[0] - logs[1]) / np.sqrt(noise))


def claims(result: Result) -> list[Claim]:
    sizes = sorted({size for _, size in result.found})
    table = {key: errors(result, *key) for key in result.found}

    def cells(part: int) -> str:
        return "; ".join(
            f"h = {h:g}: " + ", ".join(f"{name} {table[name, h][part]:.2f}" for name in SAMPLERS)
            for h in sizes
        )

    def verdict(scores: list[float]) -> bool | str:
        return True if min(scores) > 3 else False if min(scores) < -3 else UNDECIDED

    def at_each(pairs: list[tuple[str, str]]) -> tuple[list[float], str]:
        scores = [min(larger(result, *pair, h) for pair in pairs) for h in sizes]
        text = ", ".join(
            f"{score:+.1f} at h = {h:g}" for score, h in zip(scores, sizes, strict=True)
        )
        return scores, f"the smaller difference, in standard errors: {text}"

    fewest = ", ".join(
        f"h = {h:g}: {min(result.effective[name, h] for name in SAMPLERS):.0f} or more"
        for h in sizes
    )
    near, near_text = at_each([("SGNHT", "CCAdL"), ("SGHMC", "CCAdL")])
    far, far_text = at_each([("SGHMC", "SGNHT"), ("SGHMC", "CCAdL")])
    offsets = [
        table["SGHMC", h][1] - max(table["SGNHT", h][1], table["CCAdL", h][1]) for h in sizes
    ]
    noise = [3 / np.sqrt(min(result.effective[name, h] for name in SAMPLERS)) for h in sizes]
    return [
        Claim(
            "CCAdL's ellipse is nearer to HMC's than those of SGNHT and SGHMC at every h",
            f"largest factor of a standard deviation {cells(0)}",
            verdict(near),
            f"{near_text}; effective draws {fewest}",
        ),
        Claim(
            "SGHMC's contour is well beyond the others, especially at large steps",
            f"SGHMC's largest factor of a standard deviation is {table['SGHMC', sizes[0]][0]:.2f} "
            f"at h = {sizes[0]:g} and {table['SGHMC', sizes[-1]][0]:.2f} at {sizes[-1]:g}",
            verdict(far),
            far_text,
        ),
        Claim(
            "SGHMC's mean deviates",
            f"distance of the mean in exact standard deviations {cells(1)}",
            UNDECIDED
            if all(abs(x) < y for x, y in zip(offsets, noise, strict=True))
            else bool(max(offsets) > 0),
            f"decided where above three standard errors; effective draws {fewest}",
        ),
    ]


def show(result: Result) -> None:
    columns = {"sampler": "", "h": "g", "factor of an sd": ".3f", "distance of the mean": ".3f"}
    rows = [(*key, *errors(result, *key), result.effective[key]) for key in result.found]
    command_line.print_table({**columns, "effective draws": ".0f"}, rows)


def plot(result: Result) -> Figure:
    """Draws the ellipses of 95 % in one panel for each step size."""
    sizes = sorted({size for _, size in result.found})
    figure, axes = subplots(1, len(sizes))
    for axis, h in zip(axes[0], sizes, strict=True):
        axis.plot(*ellipse(*result.exact, NINETY_FIVE), "k-", label="HMC")
        for i, name in enumerate(SAMPLERS):
            if np.all(np.isfinite(result.found[name, h][1])):
                axis.plot(*ellipse(*result.found[name, h], NINETY_FIVE), f"C{i}--", label=name)
        axis.set(title=f"h = {h:g}, A = 10", xlabel="weight 2", ylabel="weight 5")
    axes[0, 0].legend(fontsize=7)
    return figure


EXPERIMENT = Experiment(
    paper="Shang, Zhu, Leimkuhler & Storkey 2015",
    figure="figure 2, bottom row",
    title="two weights of the logistic regression on MNIST 7 v 9, against HMC",
    run=run,
    quick={"num_steps": 20_000, "num_burnin_steps": 10_000, "num_reference_results": 40},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
