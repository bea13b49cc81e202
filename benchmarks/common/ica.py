"""Independent component analysis: its likelihood, a start from FastICA, and artificial data."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from sklearn.decomposition import FastICA

PRIOR_SCALE = 1.0  # standard deviation of every entry of W
SOURCE_SCALE = np.pi / np.sqrt(3)  # standard deviation of the likelihood's sources


def log_likelihood(w: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns log p(x | W) of each row of `x`."""
    y = tf.abs(tf.linalg.matmul(w, x, transpose_b=True))  # [chains..., d, n]: XLA's faster layout
    log_cosh = tf.reduce_sum(y + 2 * tf.math.log1p(tf.exp(-y)), axis=-2)  # log 4 cosh(y / 2)^2
    return _log_abs_det(w)[..., tf.newaxis] - log_cosh


def log_prior(w: tf.Tensor) -> tf.Tensor:
    return -0.5 / PRIOR_SCALE**2 * tf.reduce_sum(w**2, axis=[-2, -1])


def _log_abs_det(w: tf.Tensor) -> tf.Tensor:
    """Returns log |det W| by Gram-Schmidt: XLA lacks `slogdet`, and its QR is 30 times slower."""
    total, basis = 0.0, []
    for row in tf.unstack(w, axis=-2):
        for direction in basis:
            row -= tf.reduce_sum(row * direction, axis=-1, keepdims=True) * direction
        length = tf.norm(row, axis=-1, keepdims=True)
        basis.append(row / length)
        total += tf.math.log(length[..., 0])
    return total


def fast_ica(x: np.ndarray, seed: int) -> np.ndarray:
    """Returns FastICA's estimate of W from whitened data, scaled to the likelihood's sources."""
    ica = FastICA(whiten=False, fun="logcosh", random_state=seed, max_iter=1000)
    return ica.fit(x).components_ * SOURCE_SCALE


def artificial(num_examples: int, num_heavy: int, num_normal: int, seed: int) -> np.ndarray:
    """Returns independent sources `[N, d]` with standard deviation 1.

    The first `num_heavy` have Laplace distributions (excess kurtosis 3), the others are normal.
    """
    generator = np.random.default_rng(seed)
    heavy = generator.laplace(scale=np.sqrt(0.5), size=[num_examples, num_heavy])
    return np.hstack([heavy, generator.standard_normal([num_examples, num_normal])])
