"""Control variates on many examples, against Hamiltonian Monte Carlo on all of them.

Logistic regression on synthetic data, by default N = 1,000,000 and D = 50: features with unit
variances and correlations 0.5^|i-j|, prior N(0, I), minibatches of n = 500 without replacement.
HMC is TFP's, with adapted step size, on the same target. The table gives

  slope    of the regression of the sampler's posterior means on the exact ones,
  mean     the largest error of a posterior mean, in posterior standard deviations,
  sd       the mean ratio of the sampler's posterior standard deviations to the exact ones,
  ms       milliseconds a step of all chains (a trajectory of HMC),
  ESS      effective samples of all chains, for the median coordinate,
  passes   examples whose gradient was evaluated for one effective sample, divided by N (an estimate
           with control variates evaluates its minibatch twice),
  sec      seconds for one effective sample, and
  x        the passes and the seconds of HMC divided by those of the sampler.

Burn-in and adaptation are not counted. The work that is done once, which is to find the center and
the full gradient there, is printed first. The exact posterior is Laplace's approximation corrected
by importance weights.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.chains import compiled, effective_sizes, timed
from benchmarks.common.logistic import as_batch, score
from benchmarks.common.problems import correlated, make_target
from benchmarks.common.reference import logistic_laplace
from benchmarks.common.tables import Table

LEAPFROG_STEPS = 5  # 3, 5 and 8 were tried; 5 takes the fewest passes for an effective sample
COLUMNS = {
    "": "<25", "slope": "6.3f", "mean": "6.3f", "sd": "6.3f", "ms": "8.2f", "ESS": "7.0f",
    "passes": "8.4f", "sec": "8.4f", "x passes": "8.1f", "x sec": "8.1f",
}  # fmt: skip


class Exact(NamedTuple):
    """Means and standard deviations of the posterior, `[D]`, and how even the weights were."""

    mean: np.ndarray
    deviation: np.ndarray
    weight_efficiency: float


class Run(NamedTuple):
    """A timed run."""

    samples: np.ndarray  # draws, [T, chains, D]
    thinning: int  # steps from one draw to the next
    seconds: float  # seconds of all steps
    examples: int  # examples that a step evaluates


class Costs(NamedTuple):
    """Passes over the data and seconds for an effective sample of the median coordinate."""

    passes: float
    seconds: float


def corrected_laplace(
    x: np.ndarray, y: np.ndarray, num_pairs: int = 250, seed: int = 0, chunk: int = 10_000
) -> Exact:
    """Returns Laplace's moments plus the change that importance weights make to those of its draws.

    Draws come in pairs around the mode, and weighted moments are compared with unweighted moments
    of the same draws. So only the error of the correction is left, which is small when the weights
    are nearly equal.
    """
    mode, covariance = logistic_laplace(x, y)
    z = np.random.default_rng(seed).standard_normal((num_pairs, len(mode)))
    z = np.concatenate([z, -z])
    offsets = z @ np.linalg.cholesky(covariance).T
    theta = mode + offsets
    log_weights = -0.5 * np.sum(theta**2, axis=1) + 0.5 * np.sum(z**2, axis=1)
    for start in range(0, len(x), chunk):
        rows, labels = (a[start : start + chunk].astype(np.float64) for a in (x, y))
        logits = rows @ theta.T
        log_weights += labels @ logits - np.sum(np.logaddexp(0, logits), axis=0)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    shift = weights @ offsets
    change = weights @ (offsets - shift) ** 2 - np.mean(offsets**2, axis=0)
    return Exact(
        mode + shift, np.sqrt(np.diag(covariance) + change), 1 / np.sum(weights**2) / len(weights)
    )


def sample(
    kernel: Any, start: tf.Tensor, num_results: int, thinning: int, seed: int, examples: int
) -> Run:
    """Runs all chains twice, compiled. The first run is burn-in, and the second is timed."""
    run = compiled(kernel, num_results, thinning, num_burnin_steps=0)
    samples, _, seconds = timed(run, start, kernel.bootstrap_results(start), seed, 1, 1)
    sgmcmc.check_finite(samples)
    return Run(samples, thinning, seconds, examples)


def hamiltonian(target: sgmcmc.MinibatchLogProb, scale: float, num_results: int) -> Any:
    """Returns HMC; its step size is adapted in the first nine tenths of the burn-in."""
    kernel = tfp.mcmc.HamiltonianMonteCarlo(target, 0.7 * scale, LEAPFROG_STEPS)
    return tfp.mcmc.DualAveragingStepSizeAdaptation(kernel, num_results * 9 // 10)


def samplers(
    plain: sgmcmc.MinibatchLogProb, control: sgmcmc.ControlVariate, scale: float
) -> dict[str, tuple[Callable[[], Any], int, int]]:
    """Returns functions that make a kernel, thinning, and examples a step, by name.

    In units of `scale`, the posterior precision has eigenvalues from 1/3 to 3, and the covariance
    of the noise of plain minibatches is N/n times that. Steps are near the largest at which the
    biases of mean and standard deviation stay small. Plain SGLD has a larger step, as it would take
    ten times as long there. `scale` is a typical conditional standard deviation of a parameter.
    """
    n = plain.batch_size
    noise = plain.num_examples / n

    def underdamped(kind: Any, target: Any, h: float, friction: float) -> Callable[[], Any]:
        return lambda: kind(target, h * scale, friction=friction / scale)

    def overdamped(target: Any, epsilon: float) -> Callable[[], Any]:
        return lambda: sgmcmc.SGLD(target, epsilon * scale**2)

    return {
        "NOGIN + control variates": (underdamped(sgmcmc.NOGIN, control, 0.9, 0.7), 1, 2 * n),
        "SGHMC + control variates": (underdamped(sgmcmc.SGHMC, control, 0.4, 0.6), 1, 2 * n),
        "SGLD + control variates": (overdamped(control, 0.1), 5, 2 * n),
        "NOGIN": (underdamped(sgmcmc.NOGIN, plain, 20 / noise, 1.0), 50, n),
        "SGHMC": (underdamped(sgmcmc.SGHMC, plain, 8 / noise, 12.0), 50, n),
        "SGLD": (overdamped(plain, 2 / noise), 50, n),
    }


def costs(run: Run, num_examples: int) -> tuple[Costs, float]:
    """Returns the costs of an effective sample, and the number of these in all chains."""
    median = float(np.median(effective_sizes(run.samples, cross_chain_dims=1)))
    num_steps = len(run.samples) * run.thinning * run.samples.shape[1]
    return Costs(num_steps * run.examples / num_examples / median, run.seconds / median), median


def row(
    name: str, run: Run, exact: Exact, num_examples: int, baseline: Costs | None
) -> tuple[Any, ...]:
    """Returns a line of the table; the baseline is compared with itself."""
    flat = run.samples.reshape(-1, run.samples.shape[-1]).astype(np.float64)
    mean, deviation = flat.mean(axis=0), flat.std(axis=0, ddof=1)
    cost, effective = costs(run, num_examples)
    return (
        name,
        np.polyfit(exact.mean, mean, 1)[0],
        np.max(np.abs(mean - exact.mean) / exact.deviation),
        np.mean(deviation / exact.deviation),
        1e3 * run.seconds / len(run.samples) / run.thinning,
        effective,
        *cost,
        *(theirs / ours for theirs, ours in zip(baseline or cost, cost, strict=True)),
    )


def run(
    *,
    num_examples: int = 1_000_000,
    num_features: int = 50,
    batch_size: int = 500,
    num_chains: int = 4,
    num_results: int = 5000,
    num_plain_results: int = 800,
    num_hmc_results: int = 40,
    only: tuple[str, ...] = (),
    seed: int = 0,
) -> Iterator[tuple[Any, ...]]:
    """Measures one sampler after the other, HMC first.

    Args:
      num_results: draws of a chain with control variates.
      num_plain_results: draws of a chain without control variates.
      only: names, or beginnings of names, of samplers.
    """
    warnings.filterwarnings("ignore", message=".*is not calibrated")
    x, y = correlated(num_examples, num_features, seed)
    exact = corrected_laplace(x, y)
    efficiency = exact.weight_efficiency
    print(f"exact posterior: importance weights with an efficiency of {efficiency:.3f}")
    plain = make_target(x, y, batch_size, prior_precision=1.0)

    begin = time.perf_counter()
    center, report = sgmcmc.find_center(plain, tf.zeros([num_features]))
    found = time.perf_counter()
    control = sgmcmc.ControlVariate(plain, center)
    made = time.perf_counter()
    offset = np.max(np.abs(center - exact.mean) / exact.deviation)
    print(
        f"once: center by {report.num_passes} passes, {found - begin:.1f} s, from zero to within "
        f"{offset:.2f} standard deviations of the mean; full gradient there, {made - found:.1f} s"
    )

    scores = score(center, as_batch(x[:10_000], y[:10_000]))
    scale = float(1 / np.sqrt(1 + num_examples * np.mean(scores**2)))
    start = tf.tile(center[tf.newaxis], [num_chains, 1])
    kernel = hamiltonian(plain, scale, num_hmc_results)
    hmc = sample(kernel, start, num_hmc_results, 1, seed, LEAPFROG_STEPS * num_examples)
    yield row("HMC on all examples", hmc, exact, num_examples, None)
    baseline, _ = costs(hmc, num_examples)
    for name, (make, thinning, examples) in samplers(plain, control, scale).items():
        if not only or name.startswith(only):
            results = num_results if "control" in name else num_plain_results
            chains = sample(make(), start, results, thinning, seed, examples)
            yield row(name, chains, exact, num_examples, baseline)


def show(rows: Iterator[tuple[Any, ...]]) -> Table:
    return command_line.print_table(COLUMNS, rows)


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="accuracy.control_variates")
