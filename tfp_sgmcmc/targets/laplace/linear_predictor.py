"""Hessians of regressions by one product a row, where each row has one linear predictor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, flatten_events, unflatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.chunking import total_of_chunks
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.scores import mapped_scores

LEAST_WORK = 4e9  # N D^2, for which products with D vectors take seconds
_CHUNK = 2**22  # numbers that are held at once
_NUM_PROBES, _MOST_ERROR = 4, 1e-3  # of Hessians scaled to a unit diagonal


def rank_one_hessian(
    target: MinibatchLogProb, like: State
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    r"""Returns the function theta -> gradient `[D]` and Hessian `[D, D]` of the log likelihood.

    If the log likelihood of row i depends on the parameters through one number
    \( \phi_i \cdot \theta \), its Hessian has rank one. One product with a vector v gives it,

    \[
    t_i = H_i v = f_i'' (\phi_i \cdot v) \phi_i, \qquad
    H = \sum_i H_i = \sum_i \frac{t_i t_i^T}{t_i \cdot v},
    \]

    in about the time of one matrix product X^T X. For other likelihoods the result is wrong: see
    `agrees`.
    """
    dtype = tf.nest.flatten(like)[0].dtype
    dim, num_rows = flatten_events(like, 0).shape[0], target.num_examples
    size = min(num_rows, max(1, _CHUNK // dim))
    v = np.random.default_rng(0).standard_normal(dim)

    def rows(theta: State, start: tf.Tensor | int, size: int) -> tuple[tf.Tensor, tf.Tensor]:
        _, gradient, product = mapped_scores(
            lambda state, row: target.log_likelihood(state, row, 1, []),
            theta,
            target.rows(start + tf.range(size)),
            size,
            0,
            0,
            probe=unflatten_events(tf.constant(v, dtype), like, 0),
        )
        t = flatten_events(product, 1)
        along = tf.linalg.matvec(t, tf.constant(v, dtype))
        weights = tf.math.reciprocal_no_nan(along)[:, tf.newaxis]
        total = tf.matmul(weights * t, t, transpose_a=True)
        return tf.reduce_sum(flatten_events(gradient, 1), axis=0), total

    @traced
    def sums(flat: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        theta = unflatten_events(flat, like, 0)
        return total_of_chunks(lambda start, size: rows(theta, start, size), num_rows, size)

    def gradient_and_hessian(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gradient, hessian = sums(tf.constant(theta, dtype))
        return gradient.numpy().astype(np.float64), hessian.numpy().astype(np.float64)

    return gradient_and_hessian


def agrees(
    hessian: np.ndarray, products: Callable[[np.ndarray], np.ndarray], seed: int = 0
) -> bool:
    """Returns whether products with random vectors are those of `hessian`, `[D, D]`.

    Args:
      hessian: what is doubted.
      products: returns the Hessian times vectors, both `[K, D]`.
      seed: seed of the vectors.
    """
    scale = np.sqrt(np.abs(np.diag(hessian)))
    if not (np.isfinite(hessian).all() and (scale > 0).all()):
        return False
    probes = np.random.default_rng(seed).standard_normal([_NUM_PROBES, len(scale)]) / scale
    error = (products(probes) - probes @ hessian) / scale
    return bool((np.abs(error) <= _MOST_ERROR * (1 + np.abs(probes @ hessian / scale))).all())
