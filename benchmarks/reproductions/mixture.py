"""Six samplers on the centres of a Gaussian mixture, by the size of the minibatch.

After Matthews & Weare, Langevin Markov chain Monte Carlo with stochastic gradients,
arXiv:1805.08863, section 5.1, with the data and the model of the authors' code: N = 1000 draws of a
mixture with weights 1/3 and 2/3 and unit variances, whose two centres are inferred. The posterior
has two modes, with curvatures from 46 to 530, and a bridge between them. Here the prior is N(0,
10^2), which makes the posterior proper. Its moments are known by quadrature.

The figure shows the error of the variances by the size of the minibatch n, at equal numbers of
passes over the data. So a small minibatch makes many noisy steps, and a large one few exact steps.
SGLD and mSGLD take epsilon = h^2. The paper chooses h so that all samplers perform equally with all
data. Here each sampler runs at the steps 0.005 to 0.08, of which 0.09 is the largest stable one of
NOGIN. The sampler whose best error with n = N is the largest sets the level, and each of the others
takes the step at which its error there is nearest to that, for every n.

Each sampler makes independent runs from exact draws of the posterior. The friction is one over the
largest posterior standard deviation, the authors' rule. Minibatches are drawn without replacement.
Samplers that use the covariance of the gradient noise average over past minibatches, with decay
0.9. The error of a run is the error of its variances of the two centres, relative to the exact
ones. The table gives its mean square over runs and centres, bias and Monte Carlo error together.

`--equal steps --batch-sizes 10 30 100 300 1000` makes `--num-steps` steps with every n. The last
columns of the table that is printed have the error at each step size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common.chains import draws
from benchmarks.reproductions.experiment import UNDECIDED, Claim, Experiment, main, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS = (1 / 3, 2 / 3)
PRIOR_SCALE = 10.0
GRID = np.linspace(-2.5, 2.5, 501)  # less than 1e-10 of the posterior's mass is outside
BATCH_SIZES = (5, 10, 30, 100, 300, 1000)
STEP_SIZES = (0.005, 0.01, 0.02, 0.04, 0.08)

# V varies within the posterior. Averages over about ten minibatches follow it.
COVARIANCE = sgmcmc.covariance.Full(sgmcmc.covariance.RunningMean(0.9))

SAMPLERS: dict[str, Callable[[Any, Any, float], Any]] = {
    "SGLD": lambda target, h, friction: sgmcmc.SGLD(target, h[:, np.newaxis] ** 2),
    "mSGLD": lambda target, h, friction: sgmcmc.ModifiedSGLD(
        target, h[:, np.newaxis] ** 2, COVARIANCE
    ),
    "SGHMC": lambda target, h, friction: sgmcmc.SGHMC(target, h, friction, COVARIANCE),
    "SGNHT": lambda target, h, friction: sgmcmc.SGNHT(target, h, friction, scheme="adodab"),
    "CCAdL": lambda target, h, friction: sgmcmc.CCAdL(
        target, h, friction, COVARIANCE, scheme="euler"
    ),
    "NOGIN": lambda target, h, friction: sgmcmc.NOGIN(target, h, friction, COVARIANCE),
}


class Posterior(NamedTuple):
    """Exact moments by quadrature on a grid, and draws."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    draws: NDArray[np.float32]


class Result(NamedTuple):
    """Everything that was measured."""

    posterior: Posterior  # the exact posterior
    step_sizes: tuple[float, ...]  # the values of h
    # By sampler and batch size, [step sizes, runs]; infinite for runs that became infinite.
    squared_errors: dict[tuple[str, int], NDArray[np.float64]]

    def steps(self) -> dict[str, int]:
        """Returns the index of each sampler's step size, with equal errors at the largest n."""
        largest = max(size for _, size in self.squared_errors)
        errors = {
            name: np.nan_to_num(values.mean(axis=1), nan=np.inf, posinf=np.inf)
            for (name, size), values in self.squared_errors.items()
            if size == largest
        }
        least = [values.min() for values in errors.values()]
        level = max(value for value in least if np.isfinite(value))
        with np.errstate(divide="ignore"):
            return {
                name: int(np.argmin(np.abs(np.log(values / level))))
                for name, values in errors.items()
            }


def log_prior(theta: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum((theta / PRIOR_SCALE) ** 2, axis=-1)


def _joint(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the log joint probability of each example and its centre, `[chains..., n, 2]`."""
    residual = x[..., tf.newaxis] - theta[..., tf.newaxis, :]
    return tf.math.log(tf.constant(WEIGHTS, theta.dtype)) - 0.5 * residual**2


def log_likelihood(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_logsumexp(_joint(theta, x), axis=-1)


def scores(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns the gradients of `log_likelihood` with respect to the centres."""
    residual = x[..., tf.newaxis] - theta[..., tf.newaxis, :]
    return residual * tf.nn.softmax(_joint(theta, x), axis=-1)


def exact_posterior(x: NDArray[np.float32], num_draws: int, seed: int) -> Posterior:
    """Sums over the grid. A draw is uniform within a cell, which is drawn by its mass."""
    first, second = np.meshgrid(GRID, GRID, indexing="ij")
    log_density = -0.5 * (first**2 + second**2) / PRIOR_SCALE**2
    for value in x.astype(np.float64):
        densities = np.exp(-0.5 * (value - GRID) ** 2)
        log_density += np.log(WEIGHTS[0] * densities[:, np.newaxis] + WEIGHTS[1] * densities)
    masses = np.exp(log_density - log_density.max())
    masses /= masses.sum()
    points = np.stack([first.ravel(), second.ravel()], axis=1)
    mean = masses.ravel() @ points
    covariance = np.cov(points.T, aweights=masses.ravel(), ddof=0)
    generator = np.random.default_rng(seed)
    draws = points[generator.choice(len(points), size=num_draws, p=masses.ravel())]
    draws += (GRID[1] - GRID[0]) * generator.uniform(-0.5, 0.5, size=draws.shape)
    return Posterior(mean, covariance, draws.astype(np.float32))


def run(
    *,
    batch_sizes: tuple[int, ...] = BATCH_SIZES,
    step_sizes: tuple[float, ...] = STEP_SIZES,
    samplers: tuple[str, ...] = tuple(SAMPLERS),
    equal: str = "epochs",
    num_epochs: int = 1_000,
    num_runs: int = 6,
    num_steps: int = 20_000,
    num_burnin_steps: int = 1_000,
    seed: int = 0,
) -> Result:
    """Runs all samplers.

    Args:
      batch_sizes: values of n.
      step_sizes: values of h.
      samplers: names of the samplers.
      equal: what is equal for every n, "epochs" (with a twentieth of them for burn-in) or "steps".
      num_epochs: passes over the data, with `--equal epochs`.
      num_runs: independent chains of each sampler at each step size.
      num_steps: steps, with `--equal steps`.
      num_burnin_steps: steps before these.
      seed: seed of all draws.

    Raises:
      ValueError: `equal` is unknown.
    """
    if equal not in ("epochs", "steps"):
        raise ValueError(f"equal must be 'epochs' or 'steps'. Received: {equal!r}.")
    x = datasets.gaussian_mixture().x[:, 0]
    posterior = exact_posterior(x, len(step_sizes) * num_runs, seed)
    friction = float(1 / np.sqrt(np.linalg.eigvalsh(posterior.covariance)[-1]))
    h = np.repeat(np.asarray(step_sizes, np.float32), num_runs)
    variances = np.diag(posterior.covariance)
    squared_errors = {}
    for batch_size in batch_sizes:
        target = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, x, batch_size, score_fn=scores)
        if equal == "epochs":
            num_steps = num_epochs * len(x) // batch_size
            num_burnin_steps = num_steps // 20
        for name in samplers:
            kernel = SAMPLERS[name](target, h, friction)
            stream = [seed, 100 * batch_size + list(SAMPLERS).index(name)]
            samples = draws(
                kernel, posterior.draws, stream, num_steps - num_burnin_steps, 1, num_burnin_steps
            )
            errors = sgmcmc.diagnostics.squared_variance_error(samples, variances)
            squared_errors[name, batch_size] = errors.reshape(len(step_sizes), num_runs)
    return Result(posterior, step_sizes, squared_errors)


def cell(errors: NDArray[np.float64]) -> str:
    """Returns the mean over runs, with its standard error."""
    if not np.all(np.isfinite(errors)):
        return "infinite"
    return f"{errors.mean():.2g} +- {errors.std() / len(errors) ** 0.5:.1g}"


def show(result: Result) -> None:
    steps = result.steps()
    print("exact variances", np.diag(result.posterior.covariance))
    print(f"{'n':>5} {'sampler':>8} {'h':>7} {'MSE +- standard error':>22}   MSE by step size")
    for (name, batch_size), errors in result.squared_errors.items():
        h, chosen = result.step_sizes[steps[name]], errors[steps[name]]
        every = " ".join(f"{e:>8.2g}" for e in errors.mean(axis=1))
        print(f"{batch_size:>5} {name:>8} {h:>7} {cell(chosen):>22}   {every}")


def claims(result: Result) -> list[Claim]:
    names = list(dict.fromkeys(name for name, _ in result.squared_errors))
    sizes = sorted({size for _, size in result.squared_errors})
    steps = result.steps()
    chosen = {key: values[steps[key[0]]] for key, values in result.squared_errors.items()}
    mean = {key: float(errors.mean()) for key, errors in chosen.items()}
    others = [name for name in names if name != "NOGIN"]
    noisy = [n for n in sizes if n <= 100]

    def score(name: str, other: str, size: int) -> float:
        """By how many standard errors the mean square error of `other` is larger."""
        if not np.isfinite(mean[other, size]):
            return np.inf
        noise = sum(chosen[key, size].var(ddof=1) / len(chosen[key, size]) for key in (name, other))
        return (mean[other, size] - mean[name, size]) / float(np.sqrt(noise))

    ahead = {n: min(score("NOGIN", name, n) for name in others) for n in noisy}
    text = "; ".join(
        f"n = {n}: " + ", ".join(f"{name} {cell(chosen[name, n])}" for name in names) for n in noisy
    )
    found = [
        Claim(
            "NOGIN has the smallest error of all samplers with small minibatches",
            f"mean square relative error {text}",
            True if min(ahead.values()) > 2 else False if min(ahead.values()) < -2 else UNDECIDED,
            "ahead of the next one by "
            + ", ".join(f"{value:.1f} standard errors at n = {n}" for n, value in ahead.items()),
        )
    ]
    first, last, largest = noisy[0], noisy[-1], sizes[-1]
    below = [n for n in noisy if n < 10]
    if 10 in noisy and below:
        least = {name: min(mean[name, n] for n in below) / mean[name, 10] for name in names}
        alone: bool | str = least["NOGIN"] < 1 and all(not least[name] < 1 for name in others)
        small = min(below, key=lambda n: mean["NOGIN", n])
        pair = chosen["NOGIN", small], chosen["NOGIN", 10]
        at_best = [result.squared_errors["NOGIN", n].mean(axis=1).min() for n in (small, 10)]
        gap = abs(pair[0].mean() - pair[1].mean())
        if gap < 2 * np.sqrt(sum(x.var(ddof=1) / len(x) for x in pair)):
            alone = UNDECIDED  # NOGIN's own change is within the noise
        found.append(
            Claim(
                "NOGIN is the only scheme that improves below n = 10",
                "the least mean square error below n = 10 in units of that at n = 10: "
                + ", ".join(f"{name} {ratio:.2g}" for name, ratio in least.items()),
                alone,
                f"at the steps chosen with n = N; at the best step for each n, NOGIN has "
                f"{at_best[0]:.2g} at n = {small} and {at_best[1]:.2g} at n = 10",
            )
        )
    if {"SGLD", "mSGLD"} <= {*names}:
        ratio = {n: mean["mSGLD", n] / mean["SGLD", n] for n in (first, largest)}
        found.append(
            Claim(
                "mSGLD is better than SGLD with large minibatches and worse with small ones",
                "its mean square error in units of SGLD's: "
                + ", ".join(f"{value:.2g} at n = {n}" for n, value in ratio.items()),
                UNDECIDED if np.isnan(ratio[first]) else bool(ratio[first] > 1),
                "judged at the smallest n, as both are alike where the noise is gone",
            )
        )
        found.append(
            Claim(
                "SGLD is reliable also with small minibatches",
                "its root mean square error is "
                + ", ".join(f"{mean['SGLD', n] ** 0.5:.2g} at n = {n}" for n in noisy),
                bool(np.all(np.isfinite([mean["SGLD", n] for n in sizes]))),
                "held if it is finite at every n; its step is the one chosen with n = N",
            )
        )
    variance = float(np.mean(np.diag(result.posterior.covariance) ** 2))
    best = min(sizes, key=lambda n: mean["NOGIN", n])
    least_error = mean["NOGIN", best] * variance
    found += [
        Claim(
            "all samplers perform equally at n = N, at the chosen steps",
            f"mean square relative error at n = {largest}: "
            + ", ".join(
                f"{name} {cell(chosen[name, largest])} (h = {result.step_sizes[steps[name]]:g})"
                for name in names
            ),
            None,
        ),
        Claim(
            f"growth of the root mean square error from n = {last} to {first}",
            ", ".join(
                f"{name} {np.sqrt(mean[name, first] / mean[name, last]):.2g}" for name in names
            ),
            None,
        ),
        Claim(
            "NOGIN's smallest error is below 1e-6 after up to 30,000 passes",
            f"about {least_error:.1e} at n = {best}",
            True if least_error < 1e-6 else UNDECIDED,
            "as the square of an absolute error; the paper does not give the unit",
        ),
    ]
    return found


def plot(result: Result) -> Figure:
    """Draws the error of each sampler, at its step, by n."""
    figure, axes = subplots()
    steps = result.steps()
    for name in dict.fromkeys(name for name, _ in result.squared_errors):
        sizes = [size for key, size in result.squared_errors if key == name]
        errors = [result.squared_errors[name, n][steps[name]].mean() for n in sizes]
        label = f"{name}, h = {result.step_sizes[steps[name]]:g}"
        axes[0, 0].loglog(sizes, np.sqrt(errors), "o-", label=label)
    axes[0, 0].set(xlabel="size of the minibatch n", ylabel="relative error of the variances")
    axes[0, 0].legend(fontsize=7)
    return figure


EXPERIMENT = Experiment(
    paper="Matthews & Weare 2018",
    figure="figure 2",
    title="centres of a mixture, error by the size of the minibatch",
    run=run,
    quick={
        "batch_sizes": (5, 10, 30, 1000),
        "step_sizes": (0.02, 0.04),
        "samplers": ("SGLD", "SGNHT", "NOGIN"),
        "num_epochs": 250,
        "num_runs": 12,
    },
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
