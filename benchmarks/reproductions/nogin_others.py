"""Six samplers on a logistic regression: which are stable with small minibatches, and how accurate.

After Matthews & Weare, Langevin Markov chain Monte Carlo with stochastic gradients,
arXiv:1805.08863, figure 3 and section 5.2: the posterior of `nogin_logistic`, and the error of the
variances after two hundred passes. The paper says that NOGIN is superior to the other schemes, and
that it is stable with n = 100, where they are not at the chosen step.

The step h is 0.7 of the largest stable step of NOGIN without noise, as in `nogin_logistic`, and
SGLD and mSGLD have epsilon = h^2. The paper has a step for each method, which it does not give. So
each sampler also runs with a half and a quarter of h, and errors are compared at the best of its
three steps. The friction is one over the largest posterior standard deviation. SGHMC, mSGLD, CCAdL
(with the paper's scheme) and NOGIN know Sigma, which is averaged alike, over the length that is
NOGIN's default. The first tenth of the passes is burn-in. A sampler counts as stable if the mean
variance of its coordinates is wrong by a factor of less than two. The error is the root mean
square over coordinates and chains of the relative error of a variance, against long HMC.
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
from benchmarks.common.reference import exact_posterior, logistic_laplace
from benchmarks.reproductions.experiment import UNDECIDED, Claim, Experiment, main, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTOR = 2.0  # of a variance, below which a sampler counts as stable
AT = 100  # examples, where the paper finds the others unstable
SHARES = (1.0, 0.5, 0.25)  # of the step h
SAMPLERS: dict[str, Callable[..., Any]] = {
    "SGLD": lambda target, h, friction, sigma: sgmcmc.SGLD(target, h[:, np.newaxis] ** 2),
    "mSGLD": lambda target, h, friction, sigma: sgmcmc.ModifiedSGLD(
        target, h[:, np.newaxis] ** 2, sigma
    ),
    "SGHMC": lambda target, h, friction, sigma: sgmcmc.SGHMC(target, h, friction, sigma),
    "SGNHT": lambda target, h, friction, sigma: sgmcmc.SGNHT(target, h, friction),
    "CCAdL": lambda target, h, friction, sigma: sgmcmc.CCAdL(
        target, h, friction, sigma, scheme="euler"
    ),
    "NOGIN": lambda target, h, friction, sigma: sgmcmc.NOGIN(target, h, friction, sigma),
}


class Row(NamedTuple):
    """One sampler with one size of the minibatch; infinite where a chain became infinite."""

    ratio: float  # mean ratio of the variances to the exact ones, at the step h
    squared_errors: np.ndarray  # mean squared relative error of the variances, [shares, chains]

    @property
    def best(self) -> tuple[float, float]:
        """The root mean square error at the best step, and the share of h that this step is."""
        errors = self.squared_errors.mean(axis=1)
        i = int(np.argmin(errors))
        return float(np.sqrt(errors[i])), SHARES[i]


Result = dict[tuple[str, int], Row]  # by sampler and size of the minibatch


def run(
    *,
    batch_sizes: tuple[int, ...] = (100, 300, 1000, 3000),
    num_features: int = 128,
    num_epochs: int = 200,
    num_chains: int = 4,
    num_reference_results: int = 200,
    seed: int = 0,
) -> Result:
    """Runs each sampler with each size of the minibatch, from draws of Laplace's approximation."""
    x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=num_features)
    laplace = mode, covariance = logistic_laplace(x, y, PRIOR_PRECISION)
    reference = exact_posterior(
        make_target(x, y, 500), laplace, num_results=num_reference_results, seed=seed
    )
    exact = np.diag(reference.covariance)
    h = 0.7 * 2 * np.sqrt(np.linalg.eigvalsh(covariance)[0])
    steps_of_chains = np.repeat(np.float32(h) * np.array(SHARES, np.float32), num_chains)
    friction = np.float32(1 / np.sqrt(np.linalg.eigvalsh(covariance)[-1]))
    normals = np.random.default_rng(seed).standard_normal([len(steps_of_chains), len(mode)])
    start = tf.constant(mode + normals @ np.linalg.cholesky(covariance).T, tf.float32)
    found = {}
    for size in batch_sizes:
        target = make_target(x, y, size)
        steps = max(10, num_epochs * len(x) // size)
        decay = max(0.99, 1 - size / (500 * len(mode)))
        thinning = max(1, steps // 2000)
        for name, make in SAMPLERS.items():
            sigma = sgmcmc.covariance.Full(sgmcmc.covariance.RunningMean(decay))
            kernel = make(target, steps_of_chains, friction, sigma)
            draw = compiled(kernel, int(0.9 * steps) // thinning, thinning, steps // 10)
            states = draw(start, None, tf.constant([seed, size])).all_states.numpy()
            errors = sgmcmc.diagnostics.squared_variance_error(states, exact)
            ratio = states[:, :num_chains].astype(np.float64).var(axis=0) / exact
            mean = float(ratio.mean()) if np.all(np.isfinite(ratio)) else np.inf
            found[name, size] = Row(mean, errors.reshape(len(SHARES), num_chains))
    return found


def is_stable(ratio: float) -> bool:
    return 1 / FACTOR < ratio < FACTOR


def claims(found: Result) -> list[Claim]:
    sizes = sorted({size for _, size in found})
    others = [name for name in SAMPLERS if name != "NOGIN"]

    def ratios(size: int) -> str:
        return ", ".join(f"{name} {found[name, size].ratio:.3g}" for name in SAMPLERS)

    def errors(size: int) -> str:
        cells = (f"{name} {found[name, size].best[0]:.3g}" for name in SAMPLERS)
        return f"n = {size}: {', '.join(cells)}"

    stable = [name for name in SAMPLERS if is_stable(found[name, sizes[0]].ratio)]
    least = {
        name: min((found[name, size] for size in sizes), key=lambda row: row.best[0])
        for name in SAMPLERS
    }
    gaps = [_score(least[name], least["NOGIN"]) for name in others]
    shares = ", ".join(f"{name} {found[name, sizes[0]].best[1]:g}" for name in SAMPLERS)
    return [
        Claim(
            f"NOGIN is stable with n = {AT}, where the other schemes are not at the chosen step",
            f"mean ratio of the variances to the exact ones at n = {sizes[0]}: {ratios(sizes[0])}",
            stable == ["NOGIN"],
            f"stable where still within a factor of two: {', '.join(stable) or 'none'}",
        ),
        Claim(
            "NOGIN is superior: at its best n it has a smaller error after the same passes than "
            "each other scheme at its best n",
            "relative error of the variances, each at its best step: "
            + "; ".join(errors(size) for size in sizes),
            True if min(gaps) > 3 else False if min(gaps) < -3 else UNDECIDED,
            f"NOGIN is ahead of the nearest by {min(gaps):.1f} standard errors; the best steps at "
            f"n = {sizes[0]}, as shares of h: {shares}",
        ),
        Claim(f"the ratios of the variances with n = {sizes[-1]}", ratios(sizes[-1]), None),
    ]


def _score(other: Row, ours: Row) -> float:
    """Returns by how many standard errors the other's mean square error is larger."""
    values = []
    for row in (other, ours):
        errors = row.squared_errors[SHARES.index(row.best[1])]
        values.append((errors.mean(), errors.var(ddof=1) / len(errors)))
    if not np.isfinite(values[0][0]):
        return np.inf
    return float((values[0][0] - values[1][0]) / np.sqrt(values[0][1] + values[1][1]))


def show(found: Result) -> None:
    command_line.print_table(
        {"sampler": "", "n": "d", "variance ratio": ".3g", "error": ".3g", "share of h": "g"},
        [(*key, row.ratio, *row.best) for key, row in found.items()],
    )


def plot(found: Result) -> Figure:
    """Draws errors at the best step and ratios at h against n, without those that are infinite."""
    figure, axes = subplots(1, 2)
    sizes = sorted({size for _, size in found})
    for name in SAMPLERS:
        rows = [found[name, size] for size in sizes]
        for axis, values in zip(
            axes[0], ([r.best[0] for r in rows], [r.ratio for r in rows]), strict=True
        ):
            values = np.array(values)
            values[~np.isfinite(values)] = np.nan
            axis.loglog(sizes, values, "o-", label=name)
    axes[0, 1].axhspan(1 / FACTOR, FACTOR, alpha=0.15)
    axes[0, 0].set(xlabel="size of the minibatch", ylabel="relative error of the variances")
    axes[0, 1].set(xlabel="size of the minibatch", ylabel="variance ratio at h")
    axes[0, 0].legend(fontsize=7)
    return figure


EXPERIMENT = Experiment(
    paper="Matthews & Weare 2018",
    figure="figure 3, the other samplers",
    title="logistic regression, six samplers by the size of the minibatch",
    run=run,
    quick={
        "batch_sizes": (100, 3000),
        "num_features": 20,
        "num_epochs": 20,
        "num_reference_results": 60,
    },
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
