"""SGHMC, SGNHT and CCAdL on the mean and precision of a Gaussian.

After Shang, Zhu, Leimkuhler & Storkey, Covariance-controlled adaptive Langevin thermostat for
large-scale Bayesian sampling, NIPS 2015, section 4.1, table 1 and figure 1: N = 100 examples from
N(0, 1), minibatches of n = 10, likelihood N(mu, 1 / gamma), prior mu | gamma ~ N(0, 1 / gamma),
gamma ~ Gamma(1, 1); step sizes h of 0.001 and 0.01 and frictions A of 1 and 10. The covariance of
the gradient noise depends on both parameters, which violates the assumption of SGNHT.

The marginals of the posterior are known: a Student t and a Gamma distribution. The error here is
the root mean square, over both marginals and 50 cells of equal probability, of the difference
between the fraction of samples in a cell and 1 / 50. The expected part of Monte Carlo noise is
subtracted. The standard error comes from a bootstrap over chains. (The paper's table has a root
mean square error of the distribution, whose cells it does not give. So orders can be compared, and
numbers cannot.)

The paper finds CCAdL better than SGNHT in every case. SGHMC without knowledge of the noise is worst
there, except for the small step and the large friction. SGHMC with Sigma is added here. A
difference counts as found if the squared errors are more than 4 standard errors apart.

The columns of the figure are the four cases. Its rows are the densities of mu and gamma with the
exact ones, and the autocorrelation of mu and gamma by time (h times the number of steps).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws
from benchmarks.reproductions.experiment import UNDECIDED, Claim, Experiment, main, subplots
from tfp_sgmcmc.covariance import Full, RunningMean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_EXAMPLES, BATCH_SIZE = 100, 10
STEP_SIZES, FRICTIONS = (0.001, 0.01), (1.0, 10.0)
CELLS = 50
SIGNIFICANT = 4.0  # standard errors
BINS, TAIL = 40, 1e-4  # of the drawn densities: the number, and the mass beyond each end
LAGS = 25  # of the drawn autocorrelation, in tenths of a unit of time
# Autocorrelation times of table 1, in steps, by h and A.
PAPER_TIMES = {
    "SGHMC": {(0.001, 1.0): 236.12, (0.001, 10.0): 333.04, (0.01, 1.0): 29.78, (0.01, 10.0): 39.33},
    "SGNHT": {(0.001, 1.0): 238.32, (0.001, 10.0): 406.71, (0.01, 1.0): 26.71, (0.01, 10.0): 55.0},
    "CCAdL": {(0.001, 1.0): 238.06, (0.001, 10.0): 402.45, (0.01, 1.0): 26.71, (0.01, 10.0): 54.43},
}
PAPER_NOISE = (
    "the paper's own errors at h = 0.001 are 0.0034 against 0.0037 (A = 1) and 0.0031 against "
    "0.0035 (A = 10), from a quarter of the states of this run"
)
BURNIN_TIME = 40.0  # a thermostat relaxes within a time of mu xi / T, which is at most 15 here


class Row(NamedTuple):
    """One sampler at one step size and friction."""

    sampler: str  # name of the sampler
    step_size: float  # h
    friction: float  # A
    # The square of the error above, without the bias of Monte Carlo noise. It can be negative if
    # the error is below the noise.
    squared_error: float
    standard_error: float  # standard error of `squared_error`
    variances: np.ndarray  # variances of mu and gamma, relative to those of the posterior
    autocorrelation_time: np.ndarray  # autocorrelation times of mu and gamma, in steps
    densities: np.ndarray  # estimated densities of mu and gamma, [2, BINS]
    autocorrelation: np.ndarray  # of mu and gamma at 0, 0.1, ... units of time, [2, LAGS]


class Result(NamedTuple):
    """All rows, and the exact densities."""

    rows: list[Row]
    values: np.ndarray  # values of mu and gamma in the middle of the bins, [2, BINS]
    exact: np.ndarray  # densities of mu and gamma there, [2, BINS]


def model() -> tuple[sgmcmc.MinibatchLogProb, list[Any]]:
    """Returns the target of (mu, gamma), and the exact marginals."""
    x = np.random.default_rng(0).standard_normal(NUM_EXAMPLES)
    precision, shape = NUM_EXAMPLES + 1, 1 + NUM_EXAMPLES / 2
    location = x.sum() / precision
    rate = 1 + 0.5 * (np.sum(x**2) - precision * location**2)
    scale = np.sqrt(rate / (shape * precision))

    def log_prior(mu: tf.Tensor, gamma: tf.Tensor) -> tf.Tensor:
        return 0.5 * tf.math.log(gamma) - 0.5 * gamma * mu**2 - gamma

    def log_likelihood(mu: tf.Tensor, gamma: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        mu, gamma = mu[..., tf.newaxis], gamma[..., tf.newaxis]
        return 0.5 * tf.math.log(gamma) - 0.5 * gamma * (batch - mu) ** 2

    def scores(mu: tf.Tensor, gamma: tf.Tensor, batch: tf.Tensor) -> list[tf.Tensor]:
        mu, gamma = mu[..., tf.newaxis], gamma[..., tf.newaxis]
        return [gamma * (batch - mu), 0.5 / gamma - 0.5 * (batch - mu) ** 2]

    target = sgmcmc.MinibatchLogProb(
        log_prior, log_likelihood, x, BATCH_SIZE, dtype=tf.float32, score_fn=scores
    )
    return target, [stats.t(2 * shape, location, scale), stats.gamma(shape, scale=1 / rate)]


SAMPLERS = {
    "SGHMC": lambda *args: sgmcmc.SGHMC(*args, covariance=None),
    "SGHMC with Sigma": sgmcmc.SGHMC,
    "SGNHT": sgmcmc.SGNHT,
    "CCAdL": lambda *args: sgmcmc.CCAdL(
        *args, covariance=Full(RunningMean(), include_current=True), scheme="euler"
    ),
}


def run(
    *,
    step_sizes: tuple[float, ...] = STEP_SIZES,
    num_chains: int = 64,
    time_span: float = 60.0,
    seed: int = 0,
) -> Result:
    """Runs all samplers.

    Args:
      step_sizes: h, 0.01 among them.
      num_chains: chains of each row with h = 0.001; those with h = 0.01 have ten times as many.
      time_span: h times the number of steps of each chain.
      seed: seed of the chains.
    """
    target, marginals = model()
    rows = []
    for name, make in SAMPLERS.items():
        for h in step_sizes:
            size = round(num_chains * h / STEP_SIZES[0])  # equally many steps at every h
            friction = np.repeat(np.array(FRICTIONS, np.float32), size)  # both in one run
            samples = _sample(make(target, h, friction), h, len(friction), time_span, seed)
            for a, group in zip(FRICTIONS, np.split(samples, len(FRICTIONS), axis=-1), strict=True):
                rows.append(Row(name, h, a, *_compare(group, marginals, h)))
    values = np.array([(e[1:] + e[:-1]) / 2 for e in map(_edges, marginals)])
    return Result(
        rows, values, np.array([m.pdf(v) for m, v in zip(marginals, values, strict=True)])
    )


def _edges(law: Any) -> np.ndarray:
    """Returns the edges of the bins of a drawn density."""
    return np.linspace(law.ppf(TAIL), law.isf(TAIL), BINS + 1)


def _sample(kernel: Any, h: float, num_chains: int, time_span: float, seed: int) -> np.ndarray:
    """Returns draws `[results, 2, chains]`, ten for each unit of time."""
    start = [tf.zeros([num_chains]), tf.ones([num_chains])]
    thinning, num_burnin_steps = round(0.1 / h), round(BURNIN_TIME / h)
    found = draws(kernel, start, [0, seed], round(10 * time_span), thinning, num_burnin_steps)
    return np.stack(found, axis=1)


def _compare(samples: np.ndarray, marginals: list[Any], h: float) -> tuple[Any, ...]:
    fractions, variances, densities = [], [], []
    for values, law in zip(np.moveaxis(samples, 1, 0), marginals, strict=True):
        cell = np.clip((law.cdf(values) * CELLS).astype(int), 0, CELLS - 1)
        fractions.append([np.bincount(c, minlength=CELLS) / len(cell) for c in cell.T])
        variances.append(np.mean((values - law.mean()) ** 2) / law.var())
        edges = _edges(law)
        densities.append(np.histogram(values, edges)[0] / values.size / np.diff(edges))
    deviations = np.concatenate(fractions, axis=1) - 1 / CELLS  # [chains, cells]

    def squared_error(chains: np.ndarray) -> float:
        noise = chains.var(axis=0, ddof=1) / len(chains)
        return float(np.mean(chains.mean(axis=0) ** 2 - noise))

    generator = np.random.default_rng(0)
    size = len(deviations)
    resampled = [squared_error(deviations[generator.integers(size, size=size)]) for _ in range(200)]
    effective = tfp.mcmc.effective_sample_size(
        np.moveaxis(samples, 1, 2), cross_chain_dims=1, filter_beyond_positive_pairs=True
    ).numpy()
    steps = len(samples) * samples.shape[-1] * round(0.1 / h)
    return (
        squared_error(deviations),
        float(np.std(resampled)),
        np.array(variances),
        steps / effective,
        np.array(densities),
        autocorrelation(samples, LAGS),
    )


def autocorrelation(samples: np.ndarray, num_lags: int) -> np.ndarray:
    """Returns the autocorrelation of each part of `[results, parts, chains]`, `[parts, lags]`.

    The mean is that of all chains together, so that short chains do not bias it.
    """
    centred = samples.astype(np.float64) - samples.mean(axis=(0, 2), keepdims=True, dtype=float)
    count = len(centred)
    products = [
        np.mean(centred[: count - lag] * centred[lag:], axis=(0, 2)) for lag in range(num_lags)
    ]
    return np.transpose(products / products[0])


def claims(result: Result) -> list[Claim]:
    rows = {(row.sampler, row.step_size, row.friction): row for row in result.rows}

    def difference(first: str, second: str, h: float, friction: float) -> float:
        """Returns how much smaller the first one's squared error is, in standard errors."""
        a, b = rows[first, h, friction], rows[second, h, friction]
        return (b.squared_error - a.squared_error) / np.hypot(a.standard_error, b.standard_error)

    def ordered(first: str, second: str, cases: list[tuple[float, float]], paper: str) -> Claim:
        found = [difference(first, second, *case) for case in cases]
        ours = "; ".join(
            f"h = {h:g}, A = {a:g}: {_root(rows[first, h, a])} ({first}) and "
            f"{_root(rows[second, h, a])} ({second}), {d:+.0f} standard errors"
            for (h, a), d in zip(cases, found, strict=True)
        )
        held = all(d > SIGNIFICANT for d in found)
        if not held and not any(d < -SIGNIFICANT for d in found):
            why = "differences below 4 standard errors decide nothing"
            return Claim(paper, f"error {ours}", UNDECIDED, f"{why}; {PAPER_NOISE}")
        return Claim(paper, f"error {ours}", held)

    times = {key: row.autocorrelation_time for key, row in rows.items()}
    cases = _cases(result)
    small = [case for case in cases if case[0] < 0.01]
    ratios = [times["CCAdL", h, a] / times["SGNHT", h, a] for h, a in cases]
    sigma = [difference("SGHMC with Sigma", "CCAdL", 0.01, a) for a in FRICTIONS]
    found = [
        ordered("CCAdL", "SGNHT", [(0.01, a) for a in FRICTIONS], "CCAdL is better at h = 0.01"),
        ordered(
            "SGNHT",
            "SGHMC",
            [case for case in cases if case != (0.001, 10.0)],
            "SGHMC without knowledge of the noise is worse than SGNHT, except at h = 0.001, A = 10",
        ),
        Claim(
            "CCAdL and SGNHT have nearly the same autocorrelation times",
            f"ratios {np.min(ratios):.2f} to {np.max(ratios):.2f} over all cases, mu and gamma; "
            + "; ".join(
                f"h = {h:g}, A = {a:g}: {_times(times['CCAdL', h, a])} steps for CCAdL"
                for h, a in cases
            ),
            bool(np.min(ratios) > 0.8 and np.max(ratios) < 1.25),
        ),
        Claim(
            "the autocorrelation times of table 1",
            "means over mu and gamma, in steps, the paper's in brackets: "
            + "; ".join(
                f"h = {h:g}, A = {a:g}: "
                + ", ".join(
                    f"{name} {times[name, h, a].mean():.1f} ({paper[h, a]:.1f})"
                    for name, paper in PAPER_TIMES.items()
                )
                for h, a in cases
            ),
            bool(
                all(
                    abs(np.log(times[name, h, a].mean() / paper[h, a])) < np.log(1.3)
                    for name, paper in PAPER_TIMES.items()
                    for h, a in cases
                )
            ),
            "held within a factor of 1.3; the paper does not say of which variable its times are",
        ),
        Claim(
            "SGHMC with Sigma against CCAdL at h = 0.01",
            f"its error is smaller by {sigma[0]:+.0f} standard errors at A = 1 and "
            f"{sigma[1]:+.0f} at A = 10",
            None,
            "the thermostat of CCAdL keeps the momenta at T, which are hotter than theta after a "
            "step",
        ),
    ]
    if small:
        exception = [difference(x, "SGHMC", 0.001, 10.0) for x in ("SGNHT", "CCAdL")]
        found[1:1] = [ordered("CCAdL", "SGNHT", small, "CCAdL is better at h = 0.001")]
        found[3:3] = [
            Claim(
                "at h = 0.001, A = 10 SGHMC is as good as the others",
                f"SGNHT and CCAdL are better by {exception[0]:+.1f} and {exception[1]:+.1f} "
                "standard errors",
                max(exception) < SIGNIFICANT,
            )
        ]
    return found


def _cases(result: Result) -> list[tuple[float, float]]:
    """Returns the pairs of step size and friction."""
    return sorted({(row.step_size, row.friction) for row in result.rows})


def _root(row: Row) -> str:
    error = np.sqrt(max(row.squared_error, 0.0))
    return f"{error:.4f} +- {_spread(row):.4f}"


def _spread(row: Row) -> float:
    """Returns the error that one more standard error of its square adds."""
    square = max(row.squared_error, 0.0)
    return np.sqrt(square + row.standard_error) - np.sqrt(square)


def _times(times: np.ndarray) -> str:
    return "/".join(f"{t:.0f}" for t in times)


def plot(result: Result) -> Figure:
    """Draws densities and autocorrelation, one column for each step size and friction."""
    cases = _cases(result)
    figure, axes = subplots(4, len(cases), size=(2.6, 1.9))
    lags = np.arange(LAGS) * 0.1
    for column, (h, friction) in enumerate(cases):
        top, middle, *bottom = axes[:, column]
        for row in (r for r in result.rows if (r.step_size, r.friction) == (h, friction)):
            for i, axis in enumerate((top, middle)):
                axis.plot(result.values[i], row.densities[i], label=row.sampler)
            for i, axis in enumerate(bottom):
                axis.plot(lags, row.autocorrelation[i], label=row.sampler)
        for i, (axis, name) in enumerate(zip((top, middle), ("mu", "gamma"), strict=True)):
            axis.plot(result.values[i], result.exact[i], "k:", label="exact")
            axis.set(xlabel=name, ylabel="density" if column == 0 else "")
            bottom[i].set(
                xlabel="lag (units of time)",
                ylabel=f"autocorrelation of {name}" if column == 0 else "",
            )
        top.set_title(f"h = {h:g}, A = {friction:g}")
    lines, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names))
    return figure


def show(result: Result) -> None:
    print("error +- standard error; variances of mu and gamma in units of the posterior's")
    columns = {"sampler": "", "h": "", "A": ".0f", "error": ".5f", "+-": ".5f"}
    cells = []
    for row in result.rows:
        error = np.sqrt(max(row.squared_error, 0.0))
        times = _times(row.autocorrelation_time)
        cells.append((*row[:3], error, _spread(row), *row.variances, times))
    columns |= {"var mu": ".3f", "var gamma": ".3f", "time": ""}
    command_line.print_table(columns, cells)


EXPERIMENT = Experiment(
    paper="Shang, Zhu, Leimkuhler & Storkey 2015",
    figure="table 1 and figure 1",
    title="mean and precision of a Gaussian, SGHMC, SGNHT and CCAdL",
    run=run,
    quick={"step_sizes": (0.01,), "num_chains": 32, "time_span": 40.0},
    show=show,
    claims=claims,
    plot=plot,
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
