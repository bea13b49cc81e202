"""Part 1: the posterior of a logistic regression, by a stochastic-gradient sampler and by HMC."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.demo import chains
from tfp_sgmcmc.demo.problems import Problem
from tfp_sgmcmc.demo.samplers import SAMPLERS, Pilot

tfd = tfp.distributions

PRIOR_SCALE = 1.0  # standard deviation of every weight, the constant's included
NUM_CHAINS = 8
NUM_STEPS = 100_000
THINNING = 20
MAX_FEATURES = 200  # above it: the first 50 principal components
# With the step size for this acceptance a trajectory is a quarter to a third of a period in the
# rounded coordinates. Near half a period draws would alternate, and variances hardly mix.
LEAPFROG_STEPS = 3
TARGET_ACCEPTANCE = 0.9


class Comparison(NamedTuple):
    """Everything that part 1 measured; the rows are ready to print.

    Attributes:
      rows: of the table, dicts from column to value.
      reference: what says how good the reference is, name to value.
      pilot: the normal approximation.
      sampled: chains of the sampler.
      hmc: chains of the reference.
    """

    rows: list[dict[str, Any]]
    reference: dict[str, float]
    pilot: Pilot
    sampled: chains.Chains
    hmc: chains.Chains


def compare(problem: Problem, sampler_name: str, seed: int, shortening: int) -> Comparison:
    """Samples the posterior by the named sampler and by HMC, and compares the moments.

    Args:
      problem: the data and their question.
      sampler_name: one of `SAMPLERS`.
      seed: of everything random here.
      shortening: divides the numbers of steps.

    Raises:
      ValueError: the target fails its preflight check.
      NonFiniteChainError: a chain broke down.
    """
    x, y = _design(problem.x_train), problem.is_yes[problem.y_train].astype(np.float32)
    num_examples, dims = x.shape
    pilot = _pilot(x, y, batch_size=int(np.clip(num_examples // 10, 50, 2000)))
    target = sgmcmc.MinibatchLogProb(
        tfd.Sample(tfd.Normal(0.0, PRIOR_SCALE), dims).log_prob,
        _log_likelihood,
        data=(x, 2 * y - 1),
        batch_size=pilot.batch_size,
        shared_batch=True,
    )
    factor = np.linalg.cholesky(pilot.covariance)
    spread = np.random.default_rng(seed).standard_normal([NUM_CHAINS, dims]) @ factor.T
    state = tf.constant(pilot.mode + 2 * spread, tf.float32)  # wider than the posterior
    sgmcmc.preflight(target, state)

    sampler = SAMPLERS[sampler_name]
    num_steps = NUM_STEPS // shortening
    if sampler.all_data:
        num_steps = _whole_chunks(num_steps * pilot.batch_size / num_examples)
    kernel = sampler.kernel(target, pilot, num_steps)
    sampled = chains.run(kernel, state, num_steps, THINNING, 5, seed, sampler_name)
    # Fewer draws where they cost more, but never so few that the step size finds no value; a
    # shorter run is not worth its name with a poor reference.
    num_draws = int(np.clip(6e9 / x.size, 500, max(10_000 // shortening, 2500)))
    num_draws = num_draws // chains.NUM_CHUNKS * chains.NUM_CHUNKS
    kernel = _hamiltonian(target, factor, num_adaptation_steps=num_draws // 5)
    hmc = chains.run(kernel, state, num_draws, 1, 10, seed + 1, "HMC")

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


def _log_likelihood(theta: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    x, sign = batch
    # All chains share a minibatch, so one product of two matrices: three times as fast as matvec.
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


def _hamiltonian(
    target: sgmcmc.MinibatchLogProb, factor: np.ndarray, num_adaptation_steps: int
) -> tfp.mcmc.TransitionKernel:
    """HMC in coordinates in which the normal approximation is round."""
    kernel = tfp.mcmc.HamiltonianMonteCarlo(
        target, step_size=0.3, num_leapfrog_steps=LEAPFROG_STEPS
    )
    kernel = tfp.mcmc.TransformedTransitionKernel(
        kernel, tfp.bijectors.ScaleMatvecTriL(factor.astype(np.float32))
    )
    return tfp.mcmc.DualAveragingStepSizeAdaptation(
        kernel, num_adaptation_steps, target_accept_prob=TARGET_ACCEPTANCE
    )


def _whole_chunks(num_steps: float) -> int:
    """`num_steps` rounded up to chunks of whole thinning intervals."""
    unit = chains.NUM_CHUNKS * THINNING
    return int(np.ceil(num_steps / unit)) * unit


def _row(
    label: str, mean: Any, covariance: Any, hmc: chains.Chains, **costs: float
) -> dict[str, Any]:
    return {
        "sampler": label,
        "E1": sgmcmc.relative_mean_error(mean, hmc.mean),
        "E2": sgmcmc.relative_covariance_error(covariance, hmc.covariance),
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
    """E1 and E2 of one half of the reference's chains against the other."""
    half = NUM_CHAINS // 2
    one, other = (hmc._replace(samples=s) for s in np.split(hmc.samples, [half], axis=1))
    return (
        sgmcmc.relative_mean_error(one.mean, other.mean),
        sgmcmc.relative_covariance_error(one.covariance, other.covariance),
    )
