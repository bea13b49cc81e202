"""Independent component analysis: likelihood, start by FastICA, artificial data, diagnostics."""

from __future__ import annotations

from typing import Any, Literal

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


def amari_distance(w: Any, v: Any) -> np.ndarray:
    r"""Returns the Amari distances `[...]` of unmixing matrices W and V, `[..., d, d]`.

    \[
    \sum_i \left( \frac{\sum_j |P_{ij}|}{\max_j |P_{ij}|} - 1 \right)
      + \sum_j \left( \frac{\sum_i |P_{ij}|}{\max_i |P_{ij}|} - 1 \right), \qquad P = W V^{-1}
    \]

    It is zero if the sources differ only in order and scale, and at most 2 d (d - 1). (S. Amari,
    A. Cichocki and H. Yang. A new algorithm for blind signal separation. NIPS, 1996.)
    """
    p = np.abs(np.asarray(w, np.float64) @ np.linalg.inv(np.asarray(v, np.float64)))
    rows, columns = (np.sum(p / p.max(axis=k, keepdims=True), axis=(-2, -1)) for k in (-1, -2))
    return rows + columns - 2 * p.shape[-1]


def instability_index(
    samples: Any,
    data: Any,
    weights: Any = None,
    mean: Any = None,
    reduction: Literal["sum", "mean"] = "sum",
) -> np.ndarray:
    r"""Returns the instability of each source, `[chains..., d]`.

    \[ I_i = \sum_{j=1}^d \operatorname{var}(W_{ij}) \operatorname{var}(x_j) \]

    as in Welling & Teh (2011), section 5.3, or 1/d of that with `reduction="mean"`.

    Args:
      samples: samples of W, `[results, chains..., d, d]`.
      data: x, `[N, d]`.
      weights: weights of the results, `[results]`; None weights all equally.
      mean: the mean of W about which variances are taken, `[d, d]`; None uses each chain's mean.
      reduction: "sum" or "mean" over the d channels.
    """
    samples = np.asarray(samples, np.float64)
    center = np.average(samples, axis=0, weights=weights) if mean is None else mean
    variances = np.average((samples - center) ** 2, axis=0, weights=weights)
    index = variances @ np.var(data, axis=0, dtype=np.float64)
    return index if reduction == "sum" else index / samples.shape[-1]
