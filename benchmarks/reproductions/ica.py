"""Independent component analysis of MEG: SGLD with the natural gradient against an exact chain.

After Welling & Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011, section
5.3: the unmixing matrix W of N = 17730 recordings x has the likelihood

  p(x | W) = |det W| prod_i 1 / (4 cosh(w_i.x / 2)^2),   w_i the rows of W,

a Gaussian prior, and the preconditioner G -> G W^T W. SGLD takes minibatches of 100 and step sizes
a (b + t)^-0.55; the exact chain is `CorrectedLangevin` on all data, with the same M and a constant
step. Both start from FastICA's estimate. They are compared by the Amari distance of their samples,
which knows neither the order nor the scale of the sources, and by the instability of each source,

  I_i = 1/d sum_j var(W_ij) var(x_j),

var(W_ij) over the posterior and var(x_j) over the data. On its MEG data the paper finds "very
similar" indices.

What differs: the paper has ten of the 122 channels, here are five, centred and whitened (which
leaves W W^T alone as the prior's business), and the prior's scale, which it does not tell, is 1. It
runs one chain of 500,000 steps of 0.1/N t^-0.55 and one of 100,000 steps of 1/N. Rotations of two
sources that are both nearly Gaussian are hardly determined by the data: the posterior's precision
has eigenvalues from 0.014 N to 2.2 N here, and the chain with the paper's steps would not even
forget its start in the widest direction. Here steps are larger and chains several. That widens
SGLD's law in the narrow directions, by a share of epsilon 2.2 N^2 / 4 n, but hardly in the wide
ones that make up the index. The paper leaves out div M = (d + 1) W; here it is in. Samples of SGLD
are weighted by their step sizes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from scipy.stats import kurtosis
from sklearn.decomposition import PCA, FastICA

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.environment import describe

PRIOR_SCALE = 1.0  # standard deviation of every entry of W


class Posterior(NamedTuple):
    """What the samples say of W.

    Attributes:
      mean: `[d, d]`.
      deviation: standard deviation of the entries, `[d, d]`.
      mean_error: Monte Carlo error of `mean`, from the spread of the chains.
      instability: I, `[d]`.
      instability_error: its Monte Carlo error, likewise.
      amari: Amari distances of the samples from the corrected chain's mean, `[draws]`.
      passes: over the data, for each chain.
    """

    mean: np.ndarray
    deviation: np.ndarray
    mean_error: np.ndarray
    instability: np.ndarray
    instability_error: np.ndarray
    amari: np.ndarray
    passes: float


class Result(NamedTuple):
    """Both posteriors, the rate of acceptance, and the excess kurtosis of the sources at the start."""

    stochastic: Posterior
    corrected: Posterior
    acceptance: float
    kurtosis: np.ndarray


def log_likelihood(w: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """log p(x | W) of each row of `x`."""
    y = tf.abs(tf.linalg.matmul(w, x, transpose_b=True))  # [chains..., d, n]: XLA's faster layout
    log_cosh = tf.reduce_sum(y + 2 * tf.math.log1p(tf.exp(-y)), axis=-2)  # log 4 cosh(y / 2)^2
    return _log_abs_det(w)[..., tf.newaxis] - log_cosh


def log_prior(w: tf.Tensor) -> tf.Tensor:
    return -0.5 / PRIOR_SCALE**2 * tf.reduce_sum(w**2, axis=[-2, -1])


def _log_abs_det(w: tf.Tensor) -> tf.Tensor:
    """By Gram-Schmidt: XLA has no `slogdet`, and its QR decomposition takes 30 times as long."""
    total, basis = 0.0, []
    for row in tf.unstack(w, axis=-2):
        for direction in basis:
            row -= tf.reduce_sum(row * direction, axis=-1, keepdims=True) * direction
        length = tf.norm(row, axis=-1, keepdims=True)
        basis.append(row / length)
        total += tf.math.log(length[..., 0])
    return total


def amari_distance(w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """sum_i (sum_j |P_ij| / max_j |P_ij| - 1), and over columns likewise, with P = W V^-1."""
    p = np.abs(w @ np.linalg.inv(v))
    rows, columns = (np.sum(p / p.max(axis=k, keepdims=True), axis=(-2, -1)) for k in (-1, -2))
    return rows + columns - 2 * p.shape[-1]


def run(
    *,
    batch_size: int = 100,
    first_step_size: float = 0.05,
    last_step_size: float = 0.01,
    num_chains: int = 32,
    num_steps: int = 100_000,
    corrected_step_size: float = 0.6,
    num_corrected_chains: int = 16,
    num_corrected_steps: int = 3_000,
    thinning: int = 50,
    seed: int = 0,
) -> Result:
    """Samples with both; arguments as on the command line, step sizes in units of 1/N.

    A fifth of each chain is burn-in.
    """
    x = PCA(whiten=True).fit_transform(datasets.ica5(np.float64).x).astype(np.float32)
    ica = FastICA(whiten=False, fun="logcosh", random_state=seed, max_iter=1000).fit(x)
    start = ica.components_ * np.pi / np.sqrt(3)  # the deviation of the likelihood's sources
    target = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, x, batch_size, replacement=True)
    natural = sgmcmc.preconditioners.NaturalGradientICA()
    schedule = sgmcmc.schedules.PolynomialDecay.from_endpoints(
        first_step_size / len(x), last_step_size / len(x), num_steps
    )

    def sample(kernel: Any, chains: int, steps: int, thinning: int, trace: Any, stream: int) -> Any:
        @tf.function(jit_compile=True)
        def draw(initial: tf.Tensor, seed: tf.Tensor) -> Any:
            return tfp.mcmc.sample_chain(
                steps * 4 // 5 // thinning,
                initial,
                kernel=kernel,
                num_burnin_steps=steps // 5,
                num_steps_between_results=thinning - 1,
                trace_fn=lambda _, results: trace(results),
                seed=seed,
            )

        initial = tf.constant(np.tile(start, [chains, 1, 1]), tf.float32)
        return [r.numpy() for r in draw(initial, tf.constant([seed, stream]))]

    kernel = sgmcmc.SGLD(target, schedule, preconditioner=natural)
    samples, weights = sample(kernel, num_chains, num_steps, thinning, lambda r: r.step_size, 0)
    kernel = sgmcmc.CorrectedLangevin(target, corrected_step_size / len(x), natural)
    exact, accepted = sample(
        kernel, num_corrected_chains, num_corrected_steps, 1, lambda r: r.is_accepted, 1
    )
    center = exact.mean(axis=(0, 1), dtype=np.float64)
    variance = x.var(axis=0, dtype=np.float64)
    return Result(
        _posterior(samples, weights, variance, center, num_steps * batch_size / len(x)),
        _posterior(exact, np.ones(len(exact)), variance, center, num_corrected_steps),
        float(accepted.mean()),
        kurtosis(x @ start.T),
    )


def _posterior(
    samples: np.ndarray, weights: np.ndarray, variance: np.ndarray, center: np.ndarray, passes: float
) -> Posterior:
    samples = samples.astype(np.float64)
    means = np.average(samples, axis=0, weights=weights)  # of each chain
    mean = means.mean(axis=0)
    squares = np.average((samples - mean) ** 2, axis=0, weights=weights)
    instability = squares @ variance / len(variance)
    root = np.sqrt(len(means))
    return Posterior(
        mean,
        np.sqrt(squares.mean(axis=0)),
        means.std(axis=0, ddof=1) / root,
        instability.mean(axis=0),
        instability.std(axis=0, ddof=1) / root,
        amari_distance(samples, center).ravel(),
        passes,
    )
