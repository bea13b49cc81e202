"""SGHMC, SGNHT and CCAdL on the mean and precision of a Gaussian.

After Shang, Zhu, Leimkuhler & Storkey, Covariance-controlled adaptive Langevin thermostat for
large-scale Bayesian sampling, NIPS 2015, section 4.1 and table 1: N = 100 examples from N(0, 1),
minibatches of n = 10, likelihood N(mu, 1 / gamma), prior mu | gamma ~ N(0, 1 / gamma), gamma ~
Gamma(1, 1); step sizes h of 0.001 and 0.01 and frictions A of 1 and 10. The covariance of the
gradient noise depends on both parameters, which violates the assumption of SGNHT.

The marginals of the posterior are known: a Student t and a Gamma distribution. The error here is
the root mean square, over both marginals and 50 cells of equal probability, of the difference
between the fraction of samples in a cell and 1 / 50. The expected part of Monte Carlo noise is
subtracted. The standard error comes from a bootstrap over chains. (The paper's table has a root
mean square error of the distribution, whose cells it does not give. So orders can be compared, and
numbers cannot.)

The paper finds CCAdL better than SGNHT in every case. SGHMC without knowledge of the noise is worst
there, except for the small step and the large friction. SGHMC with Sigma is added here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import draws
from tfp_sgmcmc.covariance import Full, RunningMean

NUM_EXAMPLES, BATCH_SIZE = 100, 10
STEP_SIZES, FRICTIONS = (0.001, 0.01), (1.0, 10.0)
CELLS = 50
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
        *args, covariance=Full(RunningMean(), include_current=True)
    ),
}


def run(*, num_chains: int = 64, time_span: float = 60.0, seed: int = 0) -> list[Row]:
    """Runs all samplers.

    Args:
      num_chains: chains of each row with the smaller step size.
      time_span: h times the number of steps of each chain.
      seed: seed of the chains.
    """
    target, marginals = model()
    rows = []
    for name, make in SAMPLERS.items():
        for h in STEP_SIZES:
            size = round(num_chains * h / STEP_SIZES[0])  # equally many steps at every h
            friction = np.repeat(np.array(FRICTIONS, np.float32), size)  # both in one run
            samples = _sample(make(target, h, friction), h, len(friction), time_span, seed)
            for a, group in zip(FRICTIONS, np.split(samples, len(FRICTIONS), axis=-1), strict=True):
                rows.append(Row(name, h, a, *_compare(group, marginals, h)))
    return rows


def _sample(kernel: Any, h: float, num_chains: int, time_span: float, seed: int) -> np.ndarray:
    """Returns draws `[results, 2, chains]`, ten for each unit of time."""
    start = [tf.zeros([num_chains]), tf.ones([num_chains])]
    thinning, num_burnin_steps = round(0.1 / h), round(BURNIN_TIME / h)
    found = draws(kernel, start, [0, seed], round(10 * time_span), thinning, num_burnin_steps)
    return np.stack(found, axis=1)


def _compare(samples: np.ndarray, marginals: list[Any], h: float) -> tuple[Any, ...]:
    fractions, variances = [], []
    for values, law in zip(np.moveaxis(samples, 1, 0), marginals, strict=True):
        cell = np.clip((law.cdf(values) * CELLS).astype(int), 0, CELLS - 1)
        fractions.append([np.bincount(c, minlength=CELLS) / len(cell) for c in cell.T])
        variances.append(np.mean((values - law.mean()) ** 2) / law.var())
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
    )


def show(rows: list[Row]) -> None:
    print("error +- standard error; variances of mu and gamma in units of the posterior's")
    columns = {"sampler": "", "h": "", "A": ".0f", "error": ".5f", "+-": ".5f"}
    cells = []
    for row in rows:
        error = np.sqrt(max(row.squared_error, 0.0))
        spread = np.sqrt(max(row.squared_error, 0.0) + row.standard_error) - error
        times = "/".join(f"{t:.0f}" for t in row.autocorrelation_time)
        cells.append((*row[:3], error, spread, *row.variances, times))
    columns |= {"var mu": ".3f", "var gamma": ".3f", "time": ""}
    command_line.print_table(columns, cells)


if __name__ == "__main__":
    command_line.main(__doc__, run, show)
