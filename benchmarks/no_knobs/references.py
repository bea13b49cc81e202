"""Moments of a posterior that are known well enough to judge others by, and Laplace's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.common.chains import compiled
from benchmarks.no_knobs.problems import Problem
from tfp_sgmcmc.internal.nest import call_with_state, flatten_events, unflatten_events

NUM_CHAINS = 32
PILOT_RESULTS, MOST_PILOTS, ROUGH_R_HAT = 100, 6, 1.1
NUM_RESULTS = 450  # of each chain; doubled until the moments are known well enough
MOST_DOUBLINGS = 2
TRAJECTORY = 1.5  # in whitened coordinates: just short of a quarter of a Gaussian's period
LEAPFROG_STEPS, MOST_LEAPFROG_STEPS = 5, 40
LEAST_ACCEPTANCE = 0.8  # the number of leapfrog steps is doubled while fewer are accepted
LEAST_EFFECTIVE, MOST_R_HAT, MOST_ERROR = 10_000, 1.01, 0.01
DOUBLE_BELOW = 2e6  # N D, up to which chains are of float64


class Laplace(NamedTuple):
    """A mode and a factor L of the covariance there, L L^T = (-H)^-1.

    Where the Hessian is not negative definite, its eigenvalues were made positive.
    """

    mean: np.ndarray
    factor: np.ndarray

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(np.sum(self.factor**2, axis=1))


class Reference(NamedTuple):
    """Means and covariances, how well they are known, and Laplace's means and deviations.

    Errors are standard errors of the mean, in standard deviations, and of the standard deviation,
    relative. Both come from the differences between chains.
    """

    mean: np.ndarray
    covariance: np.ndarray
    mean_error: np.ndarray
    deviation_error: np.ndarray
    r_hat: float
    effective: float  # of the median entry
    laplace_mean: np.ndarray
    laplace_deviation: np.ndarray

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance))

    @property
    def is_good(self) -> bool:
        """Whether the moments meet the bounds; they are used otherwise, too, with a warning."""
        return bool(
            self.r_hat < MOST_R_HAT
            and self.effective > LEAST_EFFECTIVE
            and max(self.errors) < MOST_ERROR
        )

    @property
    def errors(self) -> tuple[float, float]:
        """Root mean squares of the standard errors of means and standard deviations."""
        mean, deviation = np.mean([self.mean_error**2, self.deviation_error**2], axis=1) ** 0.5
        return float(mean), float(deviation)

    def __str__(self) -> str:
        mean, deviation = self.errors
        note = "" if self.is_good else ", WHICH IS NOT ENOUGH"
        return (
            f"reference: R-hat {self.r_hat:.4f}, {self.effective:.0f} effective samples, means "
            f"known to {mean:.4f} sd, sds to {100 * deviation:.2f} %{note}"
        )


def reference(problem: Problem, kept: Path | None = None) -> Reference:
    """Returns the moments, read from the file `kept`, or written if it is new."""
    if kept is not None and kept.exists():
        with np.load(kept) as file:
            return Reference(**{name: file[name] for name in file})
    found = exact(problem) if problem.exact is not None else long_run(problem)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **found._asdict())
    return found


def exact(problem: Problem) -> Reference:
    assert problem.exact is not None
    mean, covariance = problem.exact()
    zeros = np.zeros_like(mean)
    guess = laplace(problem)
    return Reference(mean, covariance, zeros, zeros, 1.0, np.inf, guess.mean, guess.deviation)


def flat_log_prob(problem: Problem, dtype: str) -> Any:
    """Returns the log posterior of flat unconstrained parameters, `[chains..., D]`."""
    # A single chunk has derivatives of every order.
    target = problem.target(dtype, chunk_size=problem.num_examples)
    state = problem.state(dtype)
    return lambda theta: call_with_state(target, unflatten_events(theta, state, 0))


def laplace(problem: Problem) -> Laplace:
    """Finds a mode by damped Newton steps in `float64`, and the Hessian there.

    Where the Hessian is not negative definite, it steps along its eigenvectors with the absolute
    values of its eigenvalues, bounded below.
    """
    log_prob = flat_log_prob(problem, "float64")

    @tf.function(autograph=False)
    def value(theta: tf.Tensor) -> tf.Tensor:
        return log_prob(theta)

    @tf.function(autograph=False)
    def derivatives(theta: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as outer:
            outer.watch(theta)
            with tf.GradientTape() as inner:
                inner.watch(theta)
                at = log_prob(theta)
            gradient = inner.gradient(at, theta)
        rows = outer.jacobian(gradient, theta, experimental_use_pfor=False)
        return at, gradient, tf.zeros([len(theta)] * 2, theta.dtype) if rows is None else rows

    theta = flatten_events(problem.state("float64"), 0)
    for _ in range(200):
        at, gradient, hessian = (np.asarray(x) for x in derivatives(theta))
        values, vectors = np.linalg.eigh(-(hessian + hessian.T) / 2)
        bounded = np.maximum(np.abs(values), 1e-10 * np.abs(values).max())
        step = vectors @ ((vectors.T @ gradient) / bounded)
        size = 1.0
        while size > 1e-10 and not float(value(theta + size * step)) >= at:
            size /= 2
        theta = theta + size * step
        if size < 1e-10 or gradient @ step < 1e-16:
            break
    factor = vectors / np.sqrt(np.maximum(bounded, 1e-8 * bounded.max()))
    return Laplace(np.asarray(theta), factor)


def long_run(problem: Problem) -> Reference:
    """Runs HMC on all data, in coordinates in which an earlier run has the covariance I.

    The first run starts around the mode and is whitened by Laplace's approximation. Short runs,
    which drop their first half, are repeated until the chains agree roughly. Then longer ones, each
    twice as long, drop their first tenth, until one meets the bounds.
    """
    small = problem.num_examples * problem.dimension < DOUBLE_BELOW
    dtype = "float64" if small else "float32"
    log_prob, guess = flat_log_prob(problem, dtype), laplace(problem)
    # Draws of a poor approximation can lie where the log posterior is flat and HMC does not return.
    z = 0.3 * np.random.default_rng(0).standard_normal([NUM_CHAINS, problem.dimension])
    mean, factor = guess.mean, guess.factor
    num_results, steps = PILOT_RESULTS, LEAPFROG_STEPS
    for trial in range(MOST_PILOTS + MOST_DOUBLINGS):
        samples, acceptance = _hmc(log_prob, mean, factor, z, num_results, steps, trial, dtype)
        burn_in = num_results // (2 if num_results == PILOT_RESULTS else 10)
        found = summarize(samples[burn_in:], guess)
        print(f"  {found}; acceptance {acceptance:.2f}", file=sys.stderr, flush=True)
        if acceptance < LEAST_ACCEPTANCE / 4:  # the curvature at the mode says nothing
            factor = factor / 8
            continue
        if num_results > PILOT_RESULTS and found.is_good:
            break
        if num_results > PILOT_RESULTS or found.r_hat < ROUGH_R_HAT or trial == MOST_PILOTS - 1:
            num_results = max(2 * num_results, NUM_RESULTS)
        if acceptance < LEAST_ACCEPTANCE and steps < MOST_LEAPFROG_STEPS:
            steps *= 2
        mean, factor = found.mean, np.linalg.cholesky(found.covariance)
        z = np.linalg.solve(factor, (samples[-1] - mean).T).T
    return found


def _hmc(
    log_prob: Any,
    mean: np.ndarray,
    factor: np.ndarray,
    z: np.ndarray,
    num_results: int,
    num_leapfrog_steps: int,
    seed: int,
    dtype: str,
) -> tuple[np.ndarray, float]:
    """Returns draws `[num_results, chains, D]` and the rate of acceptance."""
    scale = tf.constant(factor, dtype)

    def whitened(z: tf.Tensor) -> tf.Tensor:
        return log_prob(tf.constant(mean, dtype) + tf.linalg.matmul(z, scale, transpose_b=True))

    step_size = TRAJECTORY / num_leapfrog_steps
    kernel = tfp.mcmc.HamiltonianMonteCarlo(whitened, step_size, num_leapfrog_steps)
    run = compiled(kernel, num_results, trace_fn=lambda _, results: results.is_accepted)
    found = run(tf.constant(z, dtype), None, tf.constant([seed, 17]))
    draws = np.asarray(found.all_states, np.float64)
    return mean + draws @ factor.T, float(np.mean(found.trace))


def summarize(samples: np.ndarray, guess: Laplace) -> Reference:
    """Returns the moments of draws `[num_results, chains, D]`."""
    mean = samples.mean(axis=(0, 1))
    covariance = np.atleast_2d(np.cov(samples.reshape(-1, len(mean)), rowvar=False))
    deviation = np.sqrt(np.diag(covariance))
    standard = (samples - mean) / deviation
    num_chains = samples.shape[1]
    means, squares = standard.mean(axis=0), (standard**2).mean(axis=0)
    r_hat = tfp.mcmc.potential_scale_reduction(standard, split_chains=True)
    return Reference(
        mean,
        covariance,
        means.std(axis=0, ddof=1) / num_chains**0.5,
        squares.std(axis=0, ddof=1) / num_chains**0.5 / 2,
        float(np.max(r_hat)),
        1 / float(np.median(means.var(axis=0, ddof=1) / num_chains)),
        guess.mean,
        guess.deviation,
    )
