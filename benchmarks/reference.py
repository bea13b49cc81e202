"""Exact posterior moments, by long Hamiltonian Monte Carlo on all data."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc


class Reference(NamedTuple):
    """Moments of an exact posterior and how well they are known.

    Attributes:
      mean: `[D]`.
      covariance: `[D, D]`.
      r_hat: the largest split R-hat of any parameter.
      acceptance: rate of acceptance.
      mean_floor: E1 of `mean` itself, estimated: half the E1 between two halves of the chains.
      covariance_floor: E2 of `covariance`, likewise.
    """

    mean: np.ndarray
    covariance: np.ndarray
    r_hat: float
    acceptance: float
    mean_floor: float
    covariance_floor: float

    def errors(self, samples: Any) -> tuple[float, float]:
        """E1 and E2 of samples `[num_results, num_chains, D]`."""
        mean, covariance = moments(samples)
        return (
            sgmcmc.relative_mean_error(mean, self.mean),
            sgmcmc.relative_covariance_error(covariance, self.covariance),
        )

    def __str__(self) -> str:
        return (
            f"exact posterior by HMC: R-hat {self.r_hat:.3f}, acceptance {self.acceptance:.2f}, "
            f"noise floor E1 {self.mean_floor:.4f}, E2 {self.covariance_floor:.4f}"
        )


def moments(samples: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance over all but the last axis."""
    flat = np.asarray(samples, np.float64).reshape(-1, samples.shape[-1])
    return flat.mean(axis=0), np.cov(flat, rowvar=False)


def logistic_laplace(
    x: np.ndarray, y: np.ndarray, prior_precision: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Laplace approximation of logistic regression with prior N(0, I / precision), by Newton."""
    x = x.astype(np.float64)
    theta = np.zeros(x.shape[1])
    for _ in range(25):
        p = 1 / (1 + np.exp(-x @ theta))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + prior_precision * np.eye(len(theta))
        step = np.linalg.solve(hessian, x.T @ (y - p) - prior_precision * theta)
        theta += step
    if not np.max(np.abs(step)) < 1e-8:
        raise ValueError(f"Newton's last step is {np.max(np.abs(step)):.1e}: not at the mode.")
    return theta, np.linalg.inv(hessian)


def exact_posterior(
    target: sgmcmc.MinibatchLogProb,
    guess: tuple[np.ndarray, np.ndarray],
    *,
    num_results: int,
    num_chains: int = 32,
    step_size: float = 0.3,
    num_leapfrog_steps: int = 5,
    seed: int = 0,
) -> Reference:
    """Samples `target`, whose state is one vector, with HMC in whitened coordinates.

    Chains start from the guess; a pilot a quarter as long, whose first half is dropped, replaces
    the guessed mean and covariance before the run that counts.

    Args:
      target: called with the state, it gives the exact log posterior.
      guess: mean `[D]` and covariance `[D, D]`, for instance Laplace's approximation.
      num_results: draws of each chain.
      num_chains: number of chains.
      step_size: of the leapfrog, in units of standard deviations; about 1.5 in all steps together
        makes draws nearly independent.
      num_leapfrog_steps: gradients a draw.
      seed: seed of everything.
    """
    start = tf.random.stateless_normal([num_chains, len(guess[0])], [seed, 0])
    pilot, _ = _hmc(target, guess, start, num_results // 4, step_size, num_leapfrog_steps, seed, 1)
    better = moments(pilot[len(pilot) // 2 :])
    start = np.linalg.solve(np.linalg.cholesky(better[1]), (pilot[-1] - better[0]).T).T
    samples, acceptance = _hmc(
        target, better, tf.constant(start, tf.float32), num_results, step_size,
        num_leapfrog_steps, seed, 2,
    )  # fmt: skip
    halves = [moments(samples[:, i::2]) for i in range(2)]
    return Reference(
        *moments(samples),
        r_hat=float(np.max(tfp.mcmc.potential_scale_reduction(samples, split_chains=True))),
        acceptance=acceptance,
        mean_floor=sgmcmc.relative_mean_error(halves[0][0], halves[1][0]) / 2,
        covariance_floor=sgmcmc.relative_covariance_error(halves[0][1], halves[1][1]) / 2,
    )


def _hmc(
    target: sgmcmc.MinibatchLogProb,
    scale: tuple[np.ndarray, np.ndarray],
    start: tf.Tensor,
    num_results: int,
    step_size: float,
    num_leapfrog_steps: int,
    *seed: int,
) -> tuple[np.ndarray, float]:
    mean = tf.constant(scale[0], tf.float32)
    factor = tf.constant(np.linalg.cholesky(scale[1]), tf.float32)

    def unwhiten(z: tf.Tensor) -> tf.Tensor:
        return mean + tf.linalg.matmul(z, factor, transpose_b=True)

    @tf.function(jit_compile=True)
    def run(start: tf.Tensor, seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            num_results,
            start,
            kernel=tfp.mcmc.HamiltonianMonteCarlo(
                lambda z: target(unwhiten(z)), step_size, num_leapfrog_steps
            ),
            trace_fn=lambda _, results: results.is_accepted,
            seed=seed,
        )

    samples, accepted = run(start, tf.constant(seed))
    flat = unwhiten(tf.reshape(samples, [-1, samples.shape[-1]]))
    return tf.reshape(flat, samples.shape).numpy(), float(np.mean(accepted))
