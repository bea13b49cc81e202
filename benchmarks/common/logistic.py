"""Bayesian logistic regression, the model of most benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def log_likelihood(theta: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns log p(y | x, theta) of each example for weights `[chains..., D]`, y in {0., 1.}."""
    logits = tf.linalg.matvec(batch["x"], theta)
    return batch["y"] * logits - tf.math.softplus(logits)


def score(theta: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the gradient of each example's log likelihood, `[chains..., n, D]`."""
    residual = batch["y"] - tf.sigmoid(tf.linalg.matvec(batch["x"], theta))
    return residual[..., tf.newaxis] * batch["x"]


def gaussian_log_prior(theta: tf.Tensor, precision: float = 1.0) -> tf.Tensor:
    """Returns log N(theta; 0, I / precision) without its constant."""
    return -precision / 2 * tf.reduce_sum(theta**2, axis=-1)


def laplace_log_prior(theta: tf.Tensor) -> tf.Tensor:
    """Returns log Laplace(theta; 0, 1) of independent entries, without its constant."""
    return -tf.reduce_sum(tf.abs(theta), axis=-1)


def as_batch(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Returns features and integer labels as the data of a target."""
    return {"x": x, "y": y.astype(x.dtype)}


def accuracy(logits: Any, y: np.ndarray) -> np.ndarray:
    """Returns the share of labels that `logits`, `[..., rows]`, predict."""
    return np.mean((np.asarray(logits) > 0) == (y > 0.5), axis=-1)
