"""The linear map of a kernel's step without noise, from the code of the kernel itself."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from tests.harness.phase_space import Quadratic
from tfp_sgmcmc import random


class QuadraticWithScores(Quadratic):
    """log p = -theta^T A theta / 2 with exact gradients, and scores of covariance V.

    The rows of scores are the columns of the Cholesky factor of V and their negatives.
    """

    def __init__(self, hessian: np.ndarray, covariance: np.ndarray, noise_scale: float = 1.0):
        super().__init__(hessian, np.zeros(len(hessian)))
        root = np.linalg.cholesky(covariance).T
        rows = np.concatenate([root, -root]) * np.sqrt((2 * len(root) - 1) / 2)
        self._rows, self.num_scores, self.noise_scale = tf.constant(rows), len(rows), noise_scale

    def estimate(self, state: Any, seed: Any, target_state: Any = (), *_: Any, **__: Any) -> Any:
        estimate = super().estimate(state, seed, target_state)
        shape = [*state.shape[:-1], *self._rows.shape]
        return estimate._replace(
            scores=tf.broadcast_to(self._rows, shape), noise_scale=self.noise_scale
        )


def step_matrix(
    make: Callable[..., Any], target: Any, entries: int, num_before: int = 0
) -> tuple[np.ndarray, Any, Any]:
    """Returns the matrix of one step in theta (and momentum), from steps at basis vectors.

    Args:
      make: function of the target that returns the kernel.
      target: a target with linear gradients, in float64.
      entries: D, the number of entries of theta.
      num_before: number of steps before, from which only the results are kept.

    Returns:
      The matrix, `[D, D]` or `[2 D, 2 D]`, the kernel, and its results before the step.
    """
    kernel = make(target)
    has_momentum = "initial_momentum" in kernel.parameters
    size = (1 + has_momentum) * entries
    basis = np.concatenate([np.zeros([1, size]), 1e-6 * np.eye(size)])
    theta = tf.constant(basis[:, :entries])
    if has_momentum:
        kernel = kernel.copy(initial_momentum=basis[:, entries:])

    def reached(state: Any, results: Any) -> np.ndarray:
        parts = [state, results.momentum] if has_momentum else [state]
        return np.concatenate(parts, axis=-1)

    with mock.patch.object(random, "normal_like", lambda x, _: tf.zeros_like(x)):
        results = kernel.bootstrap_results(theta)
        for _ in range(num_before):
            _, after = kernel.one_step(theta, results, seed=0)
            kept = {"momentum": results.momentum} if has_momentum else {}
            results = after._replace(**kept)
        moved, after = kernel.one_step(theta, results, seed=0)
    columns = reached(moved, after)
    return (columns[1:] - columns[0]).T / 1e-6, kernel, results


def spectral_radius(matrix: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvals(matrix)).max())
