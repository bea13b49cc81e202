"""`certify` against the truth: posteriors with reference draws, biased chains, and exact draws.

The first table has regressions of posteriordb, from zeros and in their units. Their draws are those
of `sample(target)`, and the certificate has weighted draws of its own. It gives

  D           parameters,
  k           the Pareto shape of the weights; above 0.7 the certificate says not to believe it, and
              -inf stands for largest weights that are equal,
  efficiency  of the weighted draws,
  means       of how many parameters the 95 % interval of the mean holds the reference's mean,
  sds         the same of the standard deviation,
  largest     the largest distance in standard errors, those of the reference included.

The second table has chains with a known bias: the mean of N = 100 numbers in 5 dimensions, whose
posterior and whose chains' laws are normal and known. `exact` is the ratio of the chain's standard
deviation to the posterior's, `told` the certificate's ratio and its standard error, averaged over
the dimensions, and `distance` that of `told` from one in standard errors, for the worst dimension.
An alarm is a distance of more than four.

The third table has independent draws of that posterior, many times: the alarms among them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.tables import Table
from benchmarks.posteriordb.posterior import entry
from benchmarks.posteriordb.regressions import POSTERIORS
from datasets import posteriordb_reference

N, DIMENSIONS, CHAINS = 100, 5, 4
_ALARM = 4.0  # standard errors
_INTERVAL = 1.96
_NUM_WEIGHTED = 10_000  # draws that tell the bias of a chain, whose errors are about 0.7 %


class Reference(NamedTuple):
    """A certificate beside reference draws; see the module."""

    posterior: str
    dimensions: int
    pareto_k: float
    efficiency: float
    means: int
    sds: int
    largest: float


class Biased(NamedTuple):
    """A certificate of a chain whose bias is known; see the module."""

    chain: str
    exact: float
    told: float
    error: float
    distance: float


def reference(name: str, num_results: int) -> Reference:
    """Compares the certificate of a run with reference draws."""
    posterior, truth = POSTERIORS[name](), posteriordb_reference(name)
    target = posterior.target("float64")
    start = posterior.start("zeros", "float64")
    result = sgmcmc.sample(target, start, num_results, seed=0, progress_bar=False)
    found = sgmcmc.certify(result, target, seed=1)
    names = [n for n in truth.names if n.split("[")[0] in posterior.shapes]
    known = [truth.names.index(n) for n in names]
    mean, mean_error, sd, sd_error = (
        np.array([float(entry(nest, n)) for n in names])
        for nest in (found.mean, found.mean_error, found.sd, found.sd_error)
    )
    deviation = truth.deviation[known]
    of_means = np.hypot(mean_error, deviation / np.sqrt(truth.num_draws))
    of_sds = np.hypot(sd_error, deviation / np.sqrt(2 * truth.num_draws))
    distances = np.abs(
        [(mean - truth.mean[known]) / of_means, (sd - deviation) / of_sds]
    )  # the reference draws are nearly independent
    inside = (distances < _INTERVAL).sum(axis=1)
    largest = float(distances.max())
    return Reference(name, len(names), found.pareto_k, found.efficiency, *inside, largest)


def numbers() -> np.ndarray:
    """Returns x."""
    return np.random.default_rng(0).standard_normal([N, DIMENSIONS]).astype(np.float32)


def mean_of_numbers(of_likelihood: float = 1.0) -> sgmcmc.MinibatchLogProb:
    """Returns a target whose posterior is N(mean of x, 1 / N) under a flat prior."""
    return sgmcmc.MinibatchLogProb(
        lambda theta: tf.zeros_like(theta[..., 0]),
        lambda theta, x: (
            -0.5 * of_likelihood * tf.reduce_sum((x - theta[..., tf.newaxis, :]) ** 2, axis=-1)
        ),
        numbers(),
        N,
    )


# A chain's kernel, and the ratio of its standard deviation to the posterior's. With epsilon H = e
# and exact gradients, a step of SGLD multiplies by 1 - e / 2 and adds noise of variance e T / H, so
# that the variance is T / H / (1 - e / 4).
CHAINS_OF: Mapping[str, tuple[Callable[[], Any], float]] = {
    "unbiased": (lambda: sgmcmc.CorrectedLangevin(mean_of_numbers(), 1.0 / N), 1.0),
    "step of SGLD 0.4 / H": (
        lambda: sgmcmc.SGLD(mean_of_numbers(), 0.4 / N),
        (1 - 0.4 / 4) ** -0.5,
    ),
    "step of SGLD 0.8 / H, twice as large": (
        lambda: sgmcmc.SGLD(mean_of_numbers(), 0.8 / N),
        (1 - 0.8 / 4) ** -0.5,
    ),
    "noise x 1.1": (
        lambda: sgmcmc.SGLD(mean_of_numbers(), 0.04 / N, temperature=1.1**2),
        1.1 * (1 - 0.04 / 4) ** -0.5,
    ),
    "likelihood x 0.9": (
        lambda: sgmcmc.CorrectedLangevin(mean_of_numbers(0.9), 1.0 / N),
        0.9**-0.5,
    ),
}


def biased(name: str, num_results: int) -> Biased:
    """Returns what the certificate tells of a chain."""
    make, exact = CHAINS_OF[name]
    run = sgmcmc.sample_chain(
        make(), tf.zeros([CHAINS, DIMENSIONS]), num_results, num_burnin_steps=500,
        num_steps_between_results=19, seed=0, progress_bar=False, preflight_check=False,
    )  # fmt: skip
    draws = np.asarray(run.states)
    found = sgmcmc.certify(draws, mean_of_numbers(), num_draws=_NUM_WEIGHTED, seed=1)
    ratio, error = found.sd_ratio.mean(), np.sqrt((found.sd_ratio_error**2).mean() / DIMENSIONS)
    return Biased(name, exact, ratio, error, largest_distance(found))


def largest_distance(found: sgmcmc.Certificate) -> float:
    """Returns the distance of the worst mean or standard deviation, in standard errors."""
    distances = (
        np.abs(found.mean_offset) / found.mean_offset_error,
        np.abs(found.sd_ratio - 1) / found.sd_ratio_error,
    )
    return float(np.max(distances))


def alarms(num_repeats: int, num_results: int) -> int:
    """Returns in how many of the repeats independent draws of the posterior raise an alarm."""
    target, center = mean_of_numbers(), numbers().mean(axis=0)
    rng = np.random.default_rng(1)
    count = 0
    for seed in range(num_repeats):
        z = rng.standard_normal([num_results, CHAINS, DIMENSIONS])
        draws = (center + z / np.sqrt(N)).astype(np.float32)
        count += largest_distance(sgmcmc.certify(draws, target, seed=seed)) > _ALARM
    return count


def run(
    *,
    posteriors: tuple[str, ...] = tuple(POSTERIORS),
    num_results: int = 1000,
    num_repeats: int = 500,
) -> tuple[list[Reference], list[Biased], tuple[int, int]]:
    """Makes the three tables.

    Args:
      posteriors: of posteriordb.
      num_results: draws of each of the four chains.
      num_repeats: sets of exact draws.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = [_told(reference(name, num_results)) for name in posteriors]
        second = [_told(biased(name, num_results)) for name in CHAINS_OF]
        return first, second, (alarms(num_repeats, num_results), num_repeats)


def _told(row: Any) -> Any:
    print(row, flush=True)
    return row


def show(found: tuple[list[Reference], list[Biased], tuple[int, int]]) -> dict[str, Table]:
    """Prints the tables; raises SystemExit if a bias is missed or exact draws raise alarms."""
    references, chains, (count, repeats) = found
    believed = [r for r in references if r.pareto_k <= 0.7]
    total = sum(r.dimensions for r in believed)
    inside = [sum(getattr(r, name) for r in believed) for name in ("means", "sds")]
    first = Table(
        ("posterior", "D", "k", "efficiency", "means", "sds", "largest"),
        [
            (r.posterior, str(r.dimensions), f"{r.pareto_k:.2f}", f"{r.efficiency:.2f}",
             f"{r.means} of {r.dimensions}", f"{r.sds} of {r.dimensions}", f"{r.largest:.1f}")
            for r in references
        ],
        f"Of the {len(believed)} posteriors with k up to 0.7, {100 * inside[0] / total:.1f} % of "
        f"{total} intervals hold the mean and {100 * inside[1] / total:.1f} % the standard "
        "deviation.",
    )  # fmt: skip
    second = Table(
        ("chain", "exact", "told", "distance"),
        [
            (r.chain, f"{r.exact:.3f}", f"{r.told:.3f} +- {r.error:.3f}", f"{r.distance:.1f}")
            for r in chains
        ],
        f"Of {repeats} sets of independent draws, {count} raised an alarm.",
    )
    tables = {"posteriordb": first, "chains of known bias": second}
    for table in tables.values():
        print(table.markdown())
    missed = [r.chain for r in chains if (r.distance > _ALARM) != (r.exact > 1.0)]
    wrong = [r.chain for r in chains if abs(r.told - r.exact) > _ALARM * r.error]
    if missed or wrong or count > 0.01 * repeats:
        raise SystemExit(f"Not told: {missed}. Wrong size: {wrong}. False alarms: {count}.")
    return tables


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="accuracy.certificates")
