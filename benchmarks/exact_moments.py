r"""Exact posterior moments, by HMC on all data whose Monte Carlo error is mostly taken off.

With g the gradient of the log posterior, Stein's identity says \( E g = 0 \) and
\( E\, g (\theta - m)^T = -I \) for every m. So for every S,

\[
E\, \theta = E \left[ \theta + S g \right], \qquad
E\, \delta \delta^T = E \left[ \delta \delta^T
  + \tfrac12 (S g \delta^T + \delta g^T S) + S \right], \quad \delta = \theta - m,
\]

and for a Gaussian posterior of covariance S and mean m the right hand sides do not vary at all.

A. Mira, R. Solgi and D. Imparato. Zero variance Markov chain Monte Carlo for Bayesian estimators.
Statistics and Computing 23, 2013.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.methods import Posterior, whitened_hmc
from benchmarks.reference import Reference

Moments = tuple[np.ndarray, np.ndarray]
STEP_SIZE = 0.3  # in standard deviations; 5 of them make draws nearly independent
LEAPFROG_STEPS = 5


def exact_moments(
    p: Posterior, *, num_results: int, num_chains: int = 32, seed: int = 0
) -> Reference:
    """Moments by chains that start from Laplace's approximation; a fifth more is burn-in."""
    target = p.target(1)
    kernel = whitened_hmc(p, target, STEP_SIZE, LEAPFROG_STEPS)
    z = np.random.default_rng(seed).standard_normal([num_chains, len(p.mode)])
    start = p.mode + z @ np.linalg.cholesky(p.covariance).T

    @tf.function(jit_compile=True, autograph=False)
    def run(start: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            num_results,
            start,
            kernel=kernel,
            num_burnin_steps=num_results // 5,
            trace_fn=lambda _, results: results.inner_results.is_accepted,
            seed=tf.constant([seed, 1]),
        )

    samples, accepted = run(tf.constant(start, tf.float32))
    gradients = np.asarray(sgmcmc.gradients_at(target, samples))
    samples = samples.numpy()
    halves = [controlled_moments(p, samples[:, i::2], gradients[:, i::2]) for i in range(2)]
    return Reference(
        *controlled_moments(p, samples, gradients),
        r_hat=float(np.max(tfp.mcmc.potential_scale_reduction(samples, split_chains=True))),
        acceptance=float(np.mean(accepted)),
        mean_floor=sgmcmc.relative_mean_error(halves[0][0], halves[1][0]) / 2,
        covariance_floor=sgmcmc.relative_covariance_error(halves[0][1], halves[1][1]) / 2,
    )


def controlled_moments(p: Posterior, samples: Any, gradients: Any) -> Moments:
    """Mean `[D]` and covariance `[D, D]` of draws `[..., D]` with their gradients.

    m and S are Laplace's at first, then what they give. (The moments of the draws themselves would
    bring back the noise, of which S has as much as the product that it takes it from.)
    """
    samples, gradients = (
        np.asarray(x, np.float64).reshape(-1, len(p.mode)) for x in (samples, gradients)
    )
    mean, covariance = p.mode, p.covariance
    for _ in range(2):
        delta, pull = samples - mean, gradients @ covariance
        shift = np.mean(delta + pull, axis=0)
        cross = delta.T @ (delta + pull) / len(delta)
        mean = mean + shift
        covariance = (cross + cross.T) / 2 + covariance - np.outer(shift, shift)
    return mean, covariance
