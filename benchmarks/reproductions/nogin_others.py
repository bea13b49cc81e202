"""Six samplers on a logistic regression: which are stable with small minibatches.

After Matthews & Weare, Langevin Markov chain Monte Carlo with stochastic gradients,
arXiv:1805.08863, figure 3 and section 5.2: the posterior of `nogin_logistic`. The paper says that
NOGIN is stable with n = 100, where the other schemes are not at the chosen step.

All samplers share one step h, 0.7 of the largest stable step of NOGIN without noise, as there, and
SGLD and mSGLD have epsilon = h^2. The friction is one over the largest posterior standard
deviation. SGHMC, mSGLD, CCAdL (with the paper's scheme) and NOGIN know Sigma, which is averaged
alike. Runs are short, because instability shows at once: a sampler counts as stable if the mean
variance of its coordinates is wrong by a factor of less than two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled
from benchmarks.common.problems import PRIOR_PRECISION, make_target
from benchmarks.common.reference import logistic_laplace
from benchmarks.reproductions.experiment import Claim, Experiment, main, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTOR = 2.0  # of a variance, below which a sampler counts as stable
AT = 100  # examples, where the paper finds the others unstable
SAMPLERS: dict[str, Callable[..., Any]] = {
    "SGLD": lambda target, h, friction, sigma: sgmcmc.SGLD(target, h**2),
    "mSGLD": lambda target, h, friction, sigma: sgmcmc.ModifiedSGLD(target, h**2, sigma),
    "SGHMC": lambda target, h, friction, sigma: sgmcmc.SGHMC(target, h, friction, sigma),
    "SGNHT": lambda target, h, friction, sigma: sgmcmc.SGNHT(target, h, friction),
    "CCAdL": lambda target, h, friction, sigma: sgmcmc.CCAdL(
        target, h, friction, sigma, scheme="euler"
    ),
    "NOGIN": lambda target, h, friction, sigma: sgmcmc.NOGIN(target, h, friction, sigma),
}


class Result(NamedTuple):
    """Mean ratios of variances to those of Laplace's approximation, by sampler and n."""

    ratios: dict[tuple[str, int], float]  # infinite for chains that became infinite


def run(
    *,
    batch_sizes: tuple[int, ...] = (100, 1000, 6000),
    num_features: int = 128,
    num_epochs: int = 20,
    num_chains: int = 4,
    seed: int = 0,
) -> Result:
    """Runs each sampler with each size of the minibatch, from draws of Laplace's approximation."""
    x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=num_features)
    mode, covariance = logistic_laplace(x, y, PRIOR_PRECISION)
    h = 0.7 * 2 * np.sqrt(np.linalg.eigvalsh(covariance)[0])
    friction = 1 / np.sqrt(np.linalg.eigvalsh(covariance)[-1])
    normals = np.random.default_rng(seed).standard_normal([num_chains, len(mode)])
    start = tf.constant(mode + normals @ np.linalg.cholesky(covariance).T, tf.float32)
    ratios = {}
    for size in batch_sizes:
        target = make_target(x, y, size)
        steps = max(10, num_epochs * len(x) // size)
        decay = max(0.99, 1 - size / (500 * len(mode)))
        for name, make in SAMPLERS.items():
            sigma = sgmcmc.covariance.Full(sgmcmc.covariance.RunningMean(decay))
            kernel = make(target, np.float32(h), np.float32(friction), sigma)
            thinning = max(1, steps // 500)
            draw = compiled(kernel, steps // thinning, thinning, steps // 5)
            states = draw(start, None, tf.constant([seed, size])).all_states.numpy()
            squares = (states.astype(np.float64) - mode) ** 2 / np.diag(covariance)
            ratio = float(squares.mean())
            ratios[name, size] = ratio if np.isfinite(ratio) else np.inf
    return Result(ratios)


def is_stable(ratio: float) -> bool:
    return 1 / FACTOR < ratio < FACTOR


def claims(result: Result) -> list[Claim]:
    sizes = sorted({size for _, size in result.ratios})
    at = {name: result.ratios[name, sizes[0]] for name in SAMPLERS}
    text = ", ".join(f"{name} {ratio:.3g}" for name, ratio in at.items())
    others = [name for name in SAMPLERS if name != "NOGIN"]
    large = ", ".join(f"{name} {result.ratios[name, sizes[-1]]:.3g}" for name in SAMPLERS)
    return [
        Claim(
            f"NOGIN is stable with n = {AT}, where the other schemes are not at the chosen step",
            f"mean ratio of the variances to Laplace's at n = {sizes[0]}: {text}",
            is_stable(at["NOGIN"]) and not any(is_stable(at[name]) for name in others),
            "stable where still within a factor of two: "
            + (", ".join(name for name in SAMPLERS if is_stable(at[name])) or "none"),
        ),
        Claim(f"the same ratios with n = {sizes[-1]}", large, None),
    ]


def show(result: Result) -> None:
    command_line.print_table(
        {"sampler": "", "n": "d", "variance ratio": ".3g"},
        [(*key, ratio) for key, ratio in result.ratios.items()],
    )


def plot(result: Result) -> Figure:
    """Draws the ratios against n; those that are infinite are left out."""
    figure, axes = subplots()
    sizes = sorted({size for _, size in result.ratios})
    for name in SAMPLERS:
        ratios = np.array([result.ratios[name, size] for size in sizes])
        ratios[~np.isfinite(ratios)] = np.nan
        axes[0, 0].loglog(sizes, ratios, "o-", label=name)
    axes[0, 0].axhspan(1 / FACTOR, FACTOR, alpha=0.15)
    axes[0, 0].set(xlabel="size of the minibatch", ylabel="variance ratio")
    axes[0, 0].legend(fontsize=7)
    return figure


EXPERIMENT = Experiment(
    paper="Matthews & Weare 2018",
    figure="figure 3, the other samplers",
    title="logistic regression, which samplers are stable with small minibatches",
    run=run,
    quick={"batch_sizes": (100, 3000), "num_features": 20, "num_epochs": 5},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
