"""The posteriors of the suite: logistic regressions whose moments a long HMC run gives."""

from __future__ import annotations

import functools

import numpy as np

import datasets
from benchmarks.reference import Reference, exact_posterior, logistic_laplace
from benchmarks.samplers import PRIOR_PRECISION, make_target

BATCH_SIZE = 500


@functools.cache
def data(problem: str) -> tuple[np.ndarray, np.ndarray]:
    """Features, a constant among them, and labels in {0, 1} of a problem by its name."""
    return {"synthetic": _synthetic, "mnist_7v9": _mnist_7v9}[problem]()


def _synthetic() -> tuple[np.ndarray, np.ndarray]:
    """N = 10,000 and D = 17; the largest curvatures are those of MNIST, the others are close.

    All samplers mix well here, so that a bias is seen in a second; on MNIST few do.
    """
    rng = np.random.default_rng(0)
    x = 1.2 * rng.standard_normal([10_000, 16]) / np.arange(1, 17) ** 0.25
    x = np.concatenate([np.ones([len(x), 1]), x], axis=1)
    theta = 0.5 * rng.standard_normal(x.shape[1])
    y = rng.random(len(x)) < 1 / (1 + np.exp(-x @ theta))
    return x.astype(np.float32), y.astype(np.int64)


def _mnist_7v9() -> tuple[np.ndarray, np.ndarray]:
    """N = 12,214, D = 129; asv leaves out what raises NotImplementedError."""
    try:
        x, y, _, _ = datasets.mnist_7v9(projection="pca", num_features=128)
    except (FileNotFoundError, ImportError) as error:
        raise NotImplementedError(f"MNIST is not at hand: {error}") from error
    return x, y


@functools.cache
def reference(problem: str) -> Reference:
    """The exact posterior, known far better than a benchmark's run."""
    x, y = data(problem)
    target = make_target(x, y, BATCH_SIZE)
    return exact_posterior(target, logistic_laplace(x, y, PRIOR_PRECISION), num_results=200)
