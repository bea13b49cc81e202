"""Part 1: the posterior of a logistic regression, by a stochastic-gradient sampler and by HMC."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from scipy.special import expit
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.demo import chains
from tfp_sgmcmc.demo.problems import Problem
from tfp_sgmcmc.demo.samplers import SAMPLERS, Pilot, Sampler

tfd = tfp.distributions

PRIOR_SCALE = 1.0  # standard deviation of every weight, including the constant
NUM_CHAINS = 8
NUM_STEPS = 100_000
THINNING = 20
MAX_FEATURES = 200  # data with more features are reduced to 50 principal components
# At this acceptance rate a trajectory is a quarter to a third of a period in whitened coordinates.
# Near half a period, draws would alternate between two sides, and variances would hardly mix.
LEAPFROG_STEPS = 3
TARGET_ACCEPTANCE = 0.9


class Comparison(NamedTuple):
    """Everything that part 1 measured."""

    rows: list[dict[str, Any]]  # rows of the table, as dicts from column to value
    reference: dict[str, float]  # diagnostics of the reference, by name
    pilot: Pilot  # the normal approximation
    sampled: chains.Chains  # chains of the sampler
    hmc: chains.Chains  # chains of the reference


def compare(problem: Problem, sampler_name: str, seed: int, shortening: int) -> Comparison:
    """Samples the posterior by the named sampler and by HMC, and compares the moments.

    Args:
      problem: the data and their question.
      sampler_name: one of `SAMPLERS`.
      seed: seed of the starts and of all chains.
      shortening: divides the numbers of steps.

    Raises:
      ValueError: the target fails its preflight check.
      NonFiniteChainError: a chain became NaN or infinite.
    """
    x, y = _design(problem.x_train), problem.is_yes[problem.y_train].astype(np.float32)
    num_examples, dims = x.shape
    pilot = _pilot(x, y, batch_size=int(np.clip(num_examples // 10, 50, 2000)))
    factor = np.linalg.cholesky(pilot.covariance)
    spread = np.random.default_rng(seed).standard_normal([NUM_CHAINS, dims]) @ factor.T
    state = tf.constant(pilot.mode + 2 * spread, tf.float32)  # wider than the posterior

    sampler = SAMPLERS[sampler_name]
    num_steps = NUM_STEPS // shortening
    if sampler.all_data:  # rounded up, so that burn-in takes whole thinning intervals
        unit = 50 * THINNING
        num_steps = int(np.ceil(num_steps * pilot.batch_size / num_examples / unit)) * unit
    sampled = _sample(sampler, x, y, pilot, state, num_steps, seed, sampler_name)
    # Fewer draws where they are expensive, but enough to adapt the step size. A short run has a
    # shorter reference, but not a poor one.
    num_draws = int(np.clip(6e9 / x.size, 500, max(10_000 // shortening, 2500))) // 50 * 50
    kernel = _hamiltonian(_target(x, y, pilot), factor, num_adaptation_steps=num_draws // 5)
    hmc = chains.run(kernel, state, num_draws, 1, num_draws // 5, seed + 1, "HMC")

    passes = num_steps * (1 if sampler.all_data else pilot.batch_size / num_examples)
    halves = _halves(hmc)
    rows = [
        _row(sampler.label, sampled.mean, sampled.covariance, hmc, **_costs(sampled, passes)),
        _row("normal approximation at the mode", pilot.mode, pilot.covariance, hmc),
        {"sampler": "HMC, all data, same M: the reference"}
        | _costs(hmc, num_draws * LEAPFROG_STEPS + 1),
    ]
    reference = {"r_hat": hmc.r_hat, "E1_between_halves": halves[0], "E2_between_halves": halves[1]}
    return Comparison(rows, reference, pilot, sampled, hmc)


def _target(
    x: np.ndarray, y: np.ndarray, pilot: Pilot, bijector: Any = None
) -> sgmcmc.MinibatchLogProb:
    return sgmcmc.MinibatchLogProb(
        tfd.Sample(tfd.Normal(0.0, PRIOR_SCALE), x.shape[1]).log_prob,
        _log_likelihood,
        data=(x, 2 * y - 1),
        batch_size=pilot.batch_size,
        shared_batch=True,
        bijector=bijector,
    )


def _sample(
    sampler: Sampler, x: Any, y: Any, pilot: Pilot, state: Any, num_steps: int, seed: Any, name: str
) -> chains.Chains:
    """Runs a sampler, with a tenth of the steps as burn-in."""
    bijector = None
    if sampler.is_whitened:
        bijector = _unwhiten(np.linalg.cholesky(pilot.covariance))
        pilot = pilot._replace(noise=_whitened_noise(x, y, pilot))
    kernel = sampler.kernel(_target(x, y, pilot, bijector), pilot, num_steps)
    start = state if bijector is None else bijector.inverse(state)
    run = chains.run(kernel, start, num_steps, THINNING, num_steps // 10, seed, name)
    if bijector is None:
        return run
    samples = bijector.forward(tf.constant(run.samples, tf.float32)).numpy()
    return run._replace(samples=samples.astype(np.float64))


def _unwhiten(factor: np.ndarray) -> tfp.bijectors.Bijector:
    """Returns the bijector from coordinates in which the normal approximation has covariance I."""
    return tfp.bijectors.ScaleMatvecTriL(factor.astype(np.float32))


def _log_likelihood(theta: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    x, sign = batch
    # All chains share a minibatch, so one matrix product suffices, which is faster than `matvec`.
    return tf.math.log_sigmoid(sign * tf.linalg.matmul(theta, x, transpose_b=True))


def _design(x: np.ndarray) -> np.ndarray:
    if x.shape[1] > MAX_FEATURES:
        x = PCA(n_components=50, whiten=True, random_state=0).fit_transform(x)
    return np.concatenate([np.ones([len(x), 1]), x], axis=1).astype(np.float32)


def _pilot(x: np.ndarray, y: np.ndarray, batch_size: int) -> Pilot:
    fit = LogisticRegression(
        C=PRIOR_SCALE**2, fit_intercept=False, solver="newton-cholesky", tol=1e-6
    ).fit(x, y)
    p, x = fit.predict_proba(x)[:, 1], x.astype(np.float64)
    hessian = (x * (p * (1 - p))[:, None]).T @ x + np.eye(x.shape[1]) / PRIOR_SCALE**2
    variance = np.var(x * (y - p)[:, None], axis=0, ddof=1)
    return Pilot(fit.coef_[0], hessian, variance, len(x), batch_size)


def _whitened_noise(x: np.ndarray, y: np.ndarray, pilot: Pilot) -> float:
    """Returns `Pilot.noise`, which takes passes over the data."""
    x, covariance = x.astype(np.float64), pilot.covariance
    draws = np.random.default_rng(0).multivariate_normal(pilot.mode, covariance, 20)
    factor, scale = np.linalg.cholesky(covariance), len(x) / pilot.batch_size - 1
    scores = ((x * (y - expit(x @ draw))[:, None]) @ factor for draw in draws)
    noises = [len(x) * scale * np.linalg.eigvalsh(np.cov(s, rowvar=False))[-1] for s in scores]
    return float(np.median(noises))


def _hamiltonian(
    target: sgmcmc.MinibatchLogProb, factor: np.ndarray, num_adaptation_steps: int
) -> tfp.mcmc.TransitionKernel:
    """Returns HMC in coordinates in which the normal approximation has covariance I."""
    kernel = tfp.mcmc.HamiltonianMonteCarlo(
        target, step_size=0.3, num_leapfrog_steps=LEAPFROG_STEPS
    )
    kernel = tfp.mcmc.TransformedTransitionKernel(kernel, _unwhiten(factor))
    return tfp.mcmc.DualAveragingStepSizeAdaptation(
        kernel, num_adaptation_steps, target_accept_prob=TARGET_ACCEPTANCE
    )


def _row(
    label: str, mean: Any, covariance: Any, hmc: chains.Chains, **costs: float
) -> dict[str, Any]:
    return {
        "sampler": label,
        "E1": sgmcmc.diagnostics.relative_mean_error(mean, hmc.mean),
        "E2": sgmcmc.diagnostics.relative_covariance_error(covariance, hmc.covariance),
        **costs,
    }


def _costs(run: chains.Chains, passes: float) -> dict[str, float]:
    size = run.effective_sample_size
    return {
        "seconds": run.seconds,
        "compile_seconds": run.compile_seconds,
        "effective_sample_size": size,
        "seconds_per_effective_sample": run.seconds / size,
        "passes": passes,
    }


def _halves(hmc: chains.Chains) -> tuple[float, float]:
    """Returns E1 and E2 of one half of the reference's chains against the other."""
    half = NUM_CHAINS // 2
    one, other = (hmc._replace(samples=s) for s in np.split(hmc.samples, [half], axis=1))
    return (
        sgmcmc.diagnostics.relative_mean_error(one.mean, other.mean),
        sgmcmc.diagnostics.relative_covariance_error(one.covariance, other.covariance),
    )
