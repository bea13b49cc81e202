"""Exact posterior moments from long HMC on all data, and errors of samples against them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.common.chains import compiled

NUM_CHAINS = 32
Moments = tuple[np.ndarray, np.ndarray]


class Reference(NamedTuple):
    """Moments of an exact posterior, and how well they are known."""

    mean: np.ndarray  # posterior mean, [D]
    covariance: np.ndarray  # posterior covariance, [D, D]
    r_hat: float  # the largest split R-hat of all parameters
    acceptance: float  # rate of acceptance
    # Estimate of the error E1 of `mean`: half the E1 between two halves of the chains.
    mean_floor: float
    covariance_floor: float  # estimate of the error E2 of `covariance`, made in the same way

    def errors(self, samples: Any) -> tuple[float, float]:
        """Returns E1 and E2 of samples `[num_results, num_chains, D]`."""
        return relative_errors(moments(samples), (self.mean, self.covariance))

    def biases(self, draws: Sequence[np.ndarray]) -> tuple[float, float]:
        """Returns the biases of the draws of all chains together, `[S, D]` each.

        The first is the root mean square over coordinates of (mean - exact mean) / exact standard
        deviation. The second is the mean of standard deviation / exact standard deviation.
        """
        mean, covariance = moments(np.concatenate(draws))
        deviation = np.sqrt(np.diag(self.covariance))
        off = (mean - self.mean) / deviation
        ratio = np.sqrt(np.diag(covariance)) / deviation
        return float(np.sqrt(np.mean(off**2))), float(np.mean(ratio))

    def __str__(self) -> str:
        return (
            f"exact posterior by HMC: R-hat {self.r_hat:.3f}, acceptance {self.acceptance:.2f}, "
            f"noise floor E1 {self.mean_floor:.4f}, E2 {self.covariance_floor:.4f}"
        )


def moments(samples: Any) -> Moments:
    """Returns mean and covariance over all axes but the last."""
    flat = np.asarray(samples, np.float64).reshape(-1, samples.shape[-1])
    return flat.mean(axis=0), np.cov(flat, rowvar=False)


def relative_errors(found: Moments, exact: Moments) -> tuple[float, float]:
    """Returns E1 of the mean and E2 of the covariance (Ahn et al. 2012, equation 14)."""
    return (
        sgmcmc.diagnostics.relative_mean_error(found[0], exact[0]),
        sgmcmc.diagnostics.relative_covariance_error(found[1], exact[1]),
    )


def summarized(
    found: Moments, halves: Sequence[Moments], samples: np.ndarray, acceptance: Any
) -> Reference:
    """Returns moments with their diagnostics; `samples` are `[num_results, num_chains, D]`."""
    floors = relative_errors(halves[0], halves[1])
    return Reference(
        *found,
        r_hat=float(np.max(tfp.mcmc.potential_scale_reduction(samples, split_chains=True))),
        acceptance=float(np.mean(acceptance)),
        mean_floor=floors[0] / 2,
        covariance_floor=floors[1] / 2,
    )


def logistic_laplace(x: np.ndarray, y: np.ndarray, prior_precision: float = 1.0) -> Moments:
    """Returns the Laplace approximation of a logistic regression, found by Newton's method.

    The labels are in {0, 1}, and the prior is N(0, I / prior_precision).

    Raises:
      ValueError: Newton's method has not converged.
    """
    x = x.astype(np.float64)
    theta = np.zeros(x.shape[1])
    for _ in range(25):
        p = 1 / (1 + np.exp(-x @ theta))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + prior_precision * np.eye(len(theta))
        step = np.linalg.solve(hessian, x.T @ (y - p) - prior_precision * theta)
        theta += step
    if not np.max(np.abs(step)) < 1e-8:
        raise ValueError(
            f"Newton's last step must be below 1e-8. Received: {np.max(np.abs(step)):.1e}."
        )
    return theta, np.linalg.inv(hessian)


def exact_posterior(
    target: sgmcmc.MinibatchLogProb,
    guess: Moments,
    *,
    num_results: int,
    step_size: float = 0.3,
    num_leapfrog_steps: int = 5,
    seed: int = 0,
) -> Reference:
    """Samples a target whose state is one vector by HMC in whitened coordinates.

    Chains start from the guess, for example Laplace's approximation. A pilot run takes a quarter of
    the draws and drops the first half of them. Its mean and covariance replace the guess before the
    run that counts. `step_size` is in units of standard deviations; draws are nearly independent
    when all leapfrog steps together make about 1.5.
    """

    def run(scale: Moments, start: Any, num_results: int, stream: int) -> tuple[np.ndarray, Any]:
        mean = tf.constant(scale[0], tf.float32)
        factor = tf.constant(np.linalg.cholesky(scale[1]), tf.float32)

        def unwhiten(z: tf.Tensor) -> tf.Tensor:
            return mean + tf.linalg.matmul(z, factor, transpose_b=True)

        kernel = tfp.mcmc.HamiltonianMonteCarlo(
            lambda z: target(unwhiten(z)), step_size, num_leapfrog_steps
        )
        hmc = compiled(kernel, num_results, trace_fn=lambda _, results: results.is_accepted)
        found = hmc(tf.constant(start, tf.float32), None, tf.constant([seed, stream]))
        z = found.all_states
        flat = unwhiten(tf.reshape(z, [-1, z.shape[-1]]))
        return tf.reshape(flat, z.shape).numpy(), found.trace

    start = tf.random.stateless_normal([NUM_CHAINS, len(guess[0])], [seed, 0])
    pilot, _ = run(guess, start, num_results // 4, 1)
    better = moments(pilot[len(pilot) // 2 :])
    start = np.linalg.solve(np.linalg.cholesky(better[1]), (pilot[-1] - better[0]).T).T
    samples, accepted = run(better, start, num_results, 2)
    halves = [moments(samples[:, i::2]) for i in range(2)]
    return summarized(moments(samples), halves, samples, accepted)
