"""Every sampler on one posterior: bias, and seconds for an effective sample.

Logistic regression on MNIST 7 v 9 in 128 principal components and a constant (N = 12214, D = 129),
prior N(0, 100 I), minibatches of n without replacement, one chain each. Against the exact posterior
(long HMC on all data) the table gives

  slope    of the regression of the sampler's posterior means on the exact ones,
  sd       the mean ratio of its posterior standard deviations to the exact ones,
  E1, E2   errors of mean and covariance (Ahn et al. 2012, equation 14),
  us       microseconds a step,
  steps    steps for an effective sample of the median coordinate, and
  passes   over the data for it,
  ms       milliseconds for it, and for one of the slowest coordinate.

SGLD is run at steps at which it mixes about as fast as the others, and at a small one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.environment import describe
from benchmarks.logistic import as_batch, log_likelihood, score
from benchmarks.reference import Reference, exact_posterior, logistic_laplace

PRIOR_PRECISION = 0.01


class Row(NamedTuple):
    """What was measured of one sampler."""

    name: str
    slope: float
    sd_ratio: float
    mean_error: float
    covariance_error: float
    us_per_step: float
    steps_per_effective: float
    passes_per_effective: float
    ms_per_effective: float
    slowest_ms_per_effective: float


def make_target(x: np.ndarray, y: np.ndarray, batch_size: int) -> sgmcmc.MinibatchLogProb:
    """The posterior; scores in closed form."""
    return sgmcmc.MinibatchLogProb(
        lambda theta: -PRIOR_PRECISION / 2 * tf.reduce_sum(theta**2, axis=-1),
        log_likelihood,
        as_batch(x, y),
        batch_size,
        score_fn=score,
    )


def samplers(target: sgmcmc.MinibatchLogProb) -> dict[str, Callable[[], Any]]:
    """Kernels by name; steps near the largest that each of them bears here at n = 500."""
    covariance, n = sgmcmc.covariance, target.batch_size
    # At every n as many scores are in V: 50,000, or 4,000 of them themselves, older than as many.
    average = covariance.RunningMean(decay=1 - n / 50_000)
    full, diag = covariance.Full(average), covariance.Diag(average)
    low_rank = covariance.LowRank(covariance.History(4000 // n, lag=4000 // n))
    return {
        "SGLD, eps 1e-3": lambda: sgmcmc.SGLD(target, 1e-3),
        "SGLD, eps 2e-5": lambda: sgmcmc.SGLD(target, 2e-5),
        "mSGLD": lambda: sgmcmc.ModifiedSGLD(target, 1e-4, full),
        "SGFS full, alpha 0": lambda: sgmcmc.SGFS(
            target, alpha=0.0, num_estimation_steps=10_000 // n
        ),
        "SGFS full": lambda: sgmcmc.SGFS(target, alpha=100.0),
        "SGFS low_rank": lambda: sgmcmc.SGFS(target, alpha=100.0, covariance=low_rank),
        "SGFS diag": lambda: sgmcmc.SGFS(target, alpha=100.0, covariance="diag"),
        "SGHMC": lambda: sgmcmc.SGHMC(target, 0.003, 50.0, full),
        "SGNHT": lambda: sgmcmc.SGNHT(target, 0.003, friction=1.0),
        "CCAdL full": lambda: sgmcmc.CCAdL(target, 0.005, 1.0, full),
        "CCAdL low_rank": lambda: sgmcmc.CCAdL(target, 0.003, 1.0, low_rank),
        "CCAdL diag": lambda: sgmcmc.CCAdL(target, 0.005, 1.0, diag),
        "underdamped Langevin": lambda: sgmcmc.UnderdampedLangevin(target, 0.003, friction=1.0),
        "NOGIN full": lambda: sgmcmc.NOGIN(
            target, 0.03, 1.0, full, num_estimation_steps=10_000 // n
        ),
        # A short history is a noisy Sigma, which small steps and friction forgive.
        "NOGIN low_rank": lambda: sgmcmc.NOGIN(target, 0.005, 3.0, low_rank),
        "NOGIN diag": lambda: sgmcmc.NOGIN(target, 0.03, 1.0, diag),
    }


def compiled(
    kernel: Any, num_results: int, thinning: int, trace_fn: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """(state, results, seed) -> what `sample_chain` returns with the results, by XLA."""

    @tf.function(jit_compile=True)
    def run(state: tf.Tensor, results: Any, seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            num_results,
            state,
            previous_kernel_results=results,
            kernel=kernel,
            num_burnin_steps=thinning - 1,
            num_steps_between_results=thinning - 1,
            trace_fn=trace_fn,
            return_final_kernel_results=True,
            seed=seed,
        )

    return run


def measure(
    name: str,
    kernel: Any,
    target: sgmcmc.MinibatchLogProb,
    reference: Reference,
    *,
    num_steps: int,
    thinning: int,
    seed: int,
) -> Row:
    """Runs one chain from the exact mean, in ten blocks; the first is burn-in, and compiles."""

    run = compiled(kernel, num_steps // thinning // 10, thinning)
    start = tf.constant(reference.mean, tf.float32)
    last = run(start, kernel.bootstrap_results(start), tf.constant([seed, 0]))
    blocks = []
    begin = time.perf_counter()
    for i in range(1, 10):
        last = run(last.all_states[-1], last.final_kernel_results, tf.constant([seed, i]))
        blocks.append(last.all_states.numpy())
    seconds = time.perf_counter() - begin
    samples = np.concatenate(blocks).astype(np.float64)
    sgmcmc.check_finite(samples)
    mean, covariance = samples.mean(axis=0), np.cov(samples, rowvar=False)
    deviations = np.sqrt(np.diag(covariance)), np.sqrt(np.diag(reference.covariance))
    effective = np.array([_effective_sample_size(column) for column in samples.T])
    num_counted = len(samples) * thinning
    median, least = np.median(effective), effective.min()
    return Row(
        name,
        float(np.polyfit(reference.mean, mean, 1)[0]),
        float(np.mean(deviations[0] / deviations[1])),
        sgmcmc.relative_mean_error(mean, reference.mean),
        sgmcmc.relative_covariance_error(covariance, reference.covariance),
        1e6 * seconds / num_counted,
        num_counted / median,
        num_counted / median * target.batch_size / target.num_examples,
        1e3 * seconds / median,
        1e3 * seconds / least,
    )


def _effective_sample_size(x: np.ndarray) -> float:
    return float(tfp.mcmc.effective_sample_size(x, filter_beyond_positive_pairs=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--num-steps", type=int, default=40_000)
    parser.add_argument("--thinning", type=int, default=5)
    parser.add_argument("--num-reference-results", type=int, default=600)
    parser.add_argument("--only", nargs="+", help="names, or beginnings of names, of samplers")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(describe())
    x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=128)
    target = make_target(x, y, arguments.batch_size)
    reference = exact_posterior(
        target,
        logistic_laplace(x, y, PRIOR_PRECISION),
        num_results=arguments.num_reference_results,
        seed=arguments.seed,
    )
    print(reference)
    print(
        f"{'':<22} {'slope':>6} {'sd':>6} {'E1':>6} {'E2':>6} {'us':>6} {'steps':>6} "
        f"{'passes':>6} {'ms':>6} {'slowest':>8}"
    )
    for name, make_kernel in samplers(target).items():
        if arguments.only and not any(name.startswith(prefix) for prefix in arguments.only):
            continue
        try:
            row = measure(
                name,
                make_kernel(),
                target,
                reference,
                num_steps=arguments.num_steps,
                thinning=arguments.thinning,
                seed=arguments.seed,
            )
        except sgmcmc.NonFiniteChainError:
            print(f"{name:<22} became infinite at this step size", flush=True)
            continue
        print(
            f"{row.name:<22} {row.slope:>6.3f} {row.sd_ratio:>6.3f} {row.mean_error:>6.3f} "
            f"{row.covariance_error:>6.2f} {row.us_per_step:>6.0f} "
            f"{row.steps_per_effective:>6.0f} {row.passes_per_effective:>6.2f} "
            f"{row.ms_per_effective:>6.1f} {row.slowest_ms_per_effective:>8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
