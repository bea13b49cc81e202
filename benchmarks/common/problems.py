"""Logistic regressions by name: their data, their targets and their exact moments."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import datasets
import tfp_sgmcmc as sgmcmc
from benchmarks.common.logistic import as_batch, gaussian_log_prior, log_likelihood, score
from benchmarks.common.reference import Reference, exact_posterior, logistic_laplace

BATCH_SIZE = 500
PRIOR_PRECISION = 0.01
CORRELATION = 0.5  # of neighbours among the features of `correlated`


def make_target(
    x: np.ndarray,
    y: np.ndarray,
    batch_size: int,
    prior_precision: float = PRIOR_PRECISION,
    score_fn: Any = score,
    **options: Any,
) -> sgmcmc.MinibatchLogProb:
    """Returns the log posterior, which by default computes scores in closed form."""
    return sgmcmc.MinibatchLogProb(
        lambda theta: gaussian_log_prior(theta, prior_precision),
        log_likelihood,
        as_batch(x, y),
        batch_size,
        score_fn=score_fn,
        **options,
    )


@functools.cache
def data(problem: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns features, which include a constant, and labels in {0, 1} of a problem by its name."""
    return {"synthetic": _synthetic, "mnist_7v9": _mnist_7v9}[problem]()


@functools.cache
def reference(problem: str, num_results: int = 200, seed: int = 0) -> Reference:
    """Returns the exact posterior, by default far better known than the suite needs."""
    x, y = data(problem)
    target, guess = make_target(x, y, BATCH_SIZE), logistic_laplace(x, y, PRIOR_PRECISION)
    return exact_posterior(target, guess, num_results=num_results, seed=seed)


def _synthetic() -> tuple[np.ndarray, np.ndarray]:
    """Returns N = 10,000 examples of D = 17 features.

    The largest curvatures are those of MNIST, and the others are close to them. So all samplers mix
    well, and a bias shows within a second. On MNIST few samplers mix well.
    """
    rng = np.random.default_rng(0)
    x = 1.2 * rng.standard_normal([10_000, 16]) / np.arange(1, 17) ** 0.25
    x = np.concatenate([np.ones([len(x), 1]), x], axis=1)
    theta = 0.5 * rng.standard_normal(x.shape[1])
    y = rng.random(len(x)) < 1 / (1 + np.exp(-x @ theta))
    return x.astype(np.float32), y.astype(np.int64)


def _mnist_7v9() -> tuple[np.ndarray, np.ndarray]:
    """Returns N = 12,214, D = 129; asv skips a benchmark that raises NotImplementedError."""
    try:
        x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=128)
    except (FileNotFoundError, ImportError) as error:
        raise NotImplementedError(f"MNIST is not at hand: {error}") from error
    return x, y


def correlated(num_examples: int, num_features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns synthetic features `[N, D]` with correlations 0.5^|i-j|, and labels `[N]`."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_examples, num_features), np.float32)
    for j in range(1, num_features):
        x[:, j] = CORRELATION * x[:, j - 1] + np.sqrt(1 - CORRELATION**2) * x[:, j]
    theta = rng.normal(0.0, 0.3, num_features).astype(np.float32)
    y = rng.random(num_examples) < 1 / (1 + np.exp(-x @ theta))
    return x, y.astype(np.float32)


def projected_mnist_7v9(
    batch_size: int, num_reference_results: int, seed: int
) -> tuple[sgmcmc.MinibatchLogProb, Reference]:
    """Returns the target of MNIST 7 v 9 in 50 random projections, and its exact moments.

    The prior is N(0, I), and all chains share minibatches.
    """
    x, y, _, _ = datasets.mnist_7v9()
    target = sgmcmc.MinibatchLogProb(
        gaussian_log_prior, log_likelihood, as_batch(x, y), batch_size, shared_batch=True
    )
    mode = logistic_laplace(x, y)
    return target, exact_posterior(target, mode, num_results=num_reference_results, seed=seed)
