"""Logistic regressions with their Laplace approximations, from which methods choose their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from scipy.special import expit

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common import problems
from benchmarks.common.reference import logistic_laplace


class Posterior(NamedTuple):
    """A logistic regression with prior N(0, I / prior_precision), and its Laplace approximation."""

    x: np.ndarray
    y: np.ndarray
    prior_precision: float
    mode: np.ndarray
    covariance: np.ndarray

    def target(self, batch_size: int) -> sgmcmc.MinibatchLogProb:
        """Returns the target, with scores in closed form.

        The exact log posterior evaluates all data at once, which is faster than chunks.
        """
        return problems.make_target(
            self.x, self.y, batch_size, self.prior_precision, chunk_size=len(self.x)
        )

    def curvatures(self) -> np.ndarray:
        """Returns the eigenvalues of the precision in ascending order."""
        return 1 / np.linalg.eigvalsh(self.covariance)[::-1]

    def noise(self, scale: float, centered: bool) -> float:
        """Returns the largest eigenvalue of Sigma = scale V; `centered` is for control variates."""
        rng = np.random.default_rng(0)
        theta = rng.multivariate_normal(self.mode, self.covariance)
        rows = rng.choice(len(self.x), min(len(self.x), 20_000), replace=False)
        x = self.x[rows]
        there = expit(x @ self.mode) if centered else self.y[rows]
        scores = x * (there - expit(x @ theta))[:, np.newaxis]
        return scale * float(np.linalg.eigvalsh(np.cov(scores, rowvar=False))[-1])


def posterior(x: np.ndarray, y: np.ndarray, prior_precision: float = 1.0) -> Posterior:
    """Returns the posterior of the data, with its mode found by Newton's method."""
    return Posterior(x, y, prior_precision, *logistic_laplace(x, y, prior_precision))


def _a9a_with_intercept() -> Posterior:
    x, y = datasets.a9a(split="random")[:2]
    return posterior(np.concatenate([np.ones_like(x[:, :1]), x], axis=1), y)


# D is 129, 51, 123, 124 and 17, and 20 for the data sets that are named by their N.
POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "mnist_7v9": lambda: posterior(*problems.data("mnist_7v9"), problems.PRIOR_PRECISION),
    "mnist_7v9_random": lambda: posterior(*datasets.mnist_7v9()[:2]),
    "a9a": lambda: posterior(*datasets.a9a()[:2]),
    "a9a_intercept": _a9a_with_intercept,
    "synthetic": lambda: posterior(*problems.data("synthetic"), problems.PRIOR_PRECISION),
    "synthetic_1e4": lambda: posterior(*problems.correlated(10**4, 20, 0)),
    "synthetic_1e5": lambda: posterior(*problems.correlated(10**5, 20, 0)),
    "synthetic_1e6": lambda: posterior(*problems.correlated(10**6, 20, 0)),
}


def named(name: str) -> Posterior:
    """Returns a posterior by its name.

    Raises:
      ValueError: an unknown name.
    """
    if name not in POSTERIORS:
        raise ValueError(f"data must be one of {', '.join(POSTERIORS)}. Received: {name!r}.")
    return POSTERIORS[name]()


def whitened_hmc(p: Posterior, target: Any, h: Any, num_leapfrog_steps: int) -> Any:
    """Returns HMC in coordinates in which Laplace's approximation is standard normal."""
    factor = np.linalg.cholesky(p.covariance)
    whiten = tfp.bijectors.Chain(
        [
            tfp.bijectors.Shift(tf.constant(p.mode, tf.float32)),
            tfp.bijectors.ScaleMatvecTriL(tf.constant(factor, tf.float32)),
        ]
    )
    hmc = tfp.mcmc.HamiltonianMonteCarlo(target, h, num_leapfrog_steps)
    return tfp.mcmc.TransformedTransitionKernel(hmc, whiten)
