"""Control variates on many examples, against Hamiltonian Monte Carlo on all of them.

Logistic regression on synthetic data, by default N = 1,000,000 and D = 50: features with unit
variances and correlations 0.5^|i-j|, prior N(0, I), minibatches of n = 500 without replacement.
HMC (TFP's, step size adapted) evaluates the same target. The table gives

  slope    of the regression of the sampler's posterior means on the exact ones,
  mean     the largest error of a posterior mean, in posterior standard deviations,
  sd       the mean ratio of its posterior standard deviations to the exact ones,
  ms       milliseconds a step of all chains (of HMC: a trajectory),
  ESS      effective samples of all chains, of the median coordinate,
  passes   examples whose gradient was evaluated for one of them, divided by N (an estimate with
           control variates evaluates its minibatch twice),
  sec      seconds for one of them,
  and HMC's passes and seconds divided by these.

Burn-in and adaptation are left out everywhere. What is done once is listed apart: finding the
center, and the full gradient there. The exact posterior is Laplace's approximation corrected by
importance weights.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.environment import describe
from benchmarks.logistic import gaussian_log_prior, log_likelihood, score
from benchmarks.reference import logistic_laplace

CORRELATION = 0.5
LEAPFROG_STEPS = 5  # of 3, 5 and 8 the best here, by passes for an effective sample


class Exact(NamedTuple):
    """Means and standard deviations of the posterior, `[D]`, and how even the weights were."""

    mean: np.ndarray
    deviation: np.ndarray
    weight_efficiency: float


class Run(NamedTuple):
    """Samples `[T, chains, D]`, steps behind each, seconds for all, examples evaluated a step."""

    samples: np.ndarray
    thinning: int
    seconds: float
    examples: int


class Costs(NamedTuple):
    """Of one effective sample of the median coordinate: passes over the data, and seconds."""

    passes: float
    seconds: float


def synthetic(num_examples: int, num_features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features `[N, D]` and labels `[N]`."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_examples, num_features), np.float32)
    for j in range(1, num_features):
        x[:, j] = CORRELATION * x[:, j - 1] + np.sqrt(1 - CORRELATION**2) * x[:, j]
    theta = rng.normal(0.0, 0.3, num_features).astype(np.float32)
    y = rng.random(num_examples) < 1 / (1 + np.exp(-x @ theta))
    return x, y.astype(np.float32)


def corrected_laplace(
    x: np.ndarray, y: np.ndarray, num_pairs: int = 250, seed: int = 0, chunk: int = 10_000
) -> Exact:
    """Laplace's moments, and what importance weights change in those of draws from it.

    Draws come in pairs around the mode and are compared with themselves, weighted and not: only
    the error of the correction is left, and that is small when the weights are nearly equal.
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
        mode + shift,
        np.sqrt(np.diag(covariance) + change),
        1 / np.sum(weights**2) / len(weights),
    )


def sample(
    kernel: Any, start: tf.Tensor, num_results: int, thinning: int, seed: int, examples: int
) -> Run:
    """Runs all chains twice, compiled: the first run is burn-in, the second is timed."""

    @tf.function(jit_compile=True)
    def run(state: tf.Tensor, results: Any, seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            num_results,
            state,
            previous_kernel_results=results,
            kernel=kernel,
            num_steps_between_results=thinning - 1,
            trace_fn=None,
            return_final_kernel_results=True,
            seed=seed,
        )

    first = run(start, kernel.bootstrap_results(start), tf.constant([seed, 0]))
    begin = time.perf_counter()
    second = run(first.all_states[-1], first.final_kernel_results, tf.constant([seed, 1]))
    samples = second.all_states.numpy()
    seconds = time.perf_counter() - begin
    sgmcmc.check_finite(samples)
    return Run(samples, thinning, seconds, examples)


def hamiltonian(target: sgmcmc.MinibatchLogProb, scale: float, num_results: int) -> Any:
    """HMC; its step size is adapted in the first nine tenths of the burn-in."""
    kernel = tfp.mcmc.HamiltonianMonteCarlo(target, 0.7 * scale, LEAPFROG_STEPS)
    return tfp.mcmc.DualAveragingStepSizeAdaptation(kernel, num_results * 9 // 10)


def samplers(
    plain: sgmcmc.MinibatchLogProb, control: sgmcmc.ControlVariate, scale: float
) -> dict[str, tuple[Callable[[], Any], int, int]]:
    """Kernel, thinning and examples a step, by name.

    `scale` is a typical standard deviation of a parameter when all others are known. In its units
    the posterior precision has eigenvalues from 1/3 to 3, and the noise of plain minibatches has
    N/n times that for its covariance. Steps are near the largest at which the biases of mean and
    standard deviation stay small, but for plain SGLD: there they would take ten times as long.
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
    """Costs of an effective sample, and how many there are in all chains."""
    effective = tfp.mcmc.effective_sample_size(
        run.samples.astype(np.float64), filter_beyond_positive_pairs=True, cross_chain_dims=1
    )
    median = float(np.median(effective))
    num_steps = len(run.samples) * run.thinning * run.samples.shape[1]
    return Costs(num_steps * run.examples / num_examples / median, run.seconds / median), median


def row(name: str, run: Run, exact: Exact, num_examples: int, baseline: Costs | None) -> str:
    """A line of the table."""
    flat = run.samples.reshape(-1, run.samples.shape[-1]).astype(np.float64)
    mean, deviation = flat.mean(axis=0), flat.std(axis=0, ddof=1)
    cost, effective = costs(run, num_examples)
    baseline = baseline or cost
    milliseconds = 1e3 * run.seconds / len(run.samples) / run.thinning
    return (
        f"{name:<25} {np.polyfit(exact.mean, mean, 1)[0]:>6.3f} "
        f"{np.max(np.abs(mean - exact.mean) / exact.deviation):>6.3f} "
        f"{np.mean(deviation / exact.deviation):>6.3f} {milliseconds:>8.2f} {effective:>7.0f} "
        f"{cost.passes:>8.4f} {cost.seconds:>8.4f} {baseline.passes / cost.passes:>8.1f} "
        f"{baseline.seconds / cost.seconds:>8.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-examples", type=int, default=1_000_000)
    parser.add_argument("--num-features", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--num-chains", type=int, default=4)
    parser.add_argument("--num-results", type=int, default=5000, help="with control variates")
    parser.add_argument("--num-plain-results", type=int, default=800, help="without")
    parser.add_argument("--num-hmc-results", type=int, default=40)
    parser.add_argument("--only", nargs="+", help="names, or beginnings of names, of samplers")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*is not calibrated")
    total, chains, seed = arguments.num_examples, arguments.num_chains, arguments.seed
    print(describe())
    x, y = synthetic(total, arguments.num_features, seed)
    exact = corrected_laplace(x, y)
    print(
        f"exact posterior: importance weights with an efficiency of {exact.weight_efficiency:.3f}"
    )
    plain = sgmcmc.MinibatchLogProb(
        gaussian_log_prior, log_likelihood, {"x": x, "y": y}, arguments.batch_size, score_fn=score
    )

    begin = time.perf_counter()
    center, report = sgmcmc.find_center(plain, tf.zeros([arguments.num_features]))
    found = time.perf_counter()
    control = sgmcmc.ControlVariate(plain, center)
    made = time.perf_counter()
    offset = np.max(np.abs(center - exact.mean) / exact.deviation)
    print(
        f"once: center by {report.num_passes} passes, {found - begin:.1f} s, from zero to within "
        f"{offset:.2f} standard deviations of the mean; full gradient there, {made - found:.1f} s"
    )

    scores = score(center, {"x": x[:10_000], "y": y[:10_000]})
    scale = float(1 / np.sqrt(1 + total * np.mean(scores**2)))
    start = tf.tile(center[tf.newaxis], [chains, 1])
    print(
        f"{'':<25} {'slope':>6} {'mean':>6} {'sd':>6} {'ms':>8} {'ESS':>7} {'passes':>8} "
        f"{'sec':>8} {'HMC/':>8} {'HMC/':>8}"
    )
    kernel = hamiltonian(plain, scale, arguments.num_hmc_results)
    run = sample(kernel, start, arguments.num_hmc_results, 1, seed, LEAPFROG_STEPS * total)
    print(row("HMC on all examples", run, exact, total, None), flush=True)
    baseline, _ = costs(run, total)
    for name, (make, thinning, examples) in samplers(plain, control, scale).items():
        if arguments.only and not any(name.startswith(prefix) for prefix in arguments.only):
            continue
        results = arguments.num_results if "control" in name else arguments.num_plain_results
        run = sample(make(), start, results, thinning, seed, examples)
        print(row(name, run, exact, total, baseline), flush=True)


if __name__ == "__main__":
    main()
