"""Bayesian logistic regression, the model of most benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def log_likelihood(theta: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """log p(y | x, theta) of each example; `batch` has features `x` and labels `y` in {0., 1.}."""
    logits = tf.linalg.matvec(batch["x"], theta)
    return batch["y"] * logits - tf.math.softplus(logits)


def score(theta: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Gradient of each example's log likelihood, `[chains..., n, D]`."""
    residual = batch["y"] - tf.sigmoid(tf.linalg.matvec(batch["x"], theta))
    return residual[..., tf.newaxis] * batch["x"]


def gaussian_log_prior(theta: tf.Tensor) -> tf.Tensor:
    """log N(theta; 0, I) without its constant."""
    return -0.5 * tf.reduce_sum(theta**2, axis=-1)


def laplace_log_prior(theta: tf.Tensor) -> tf.Tensor:
    """log Laplace(theta; 0, 1), independent entries, without its constant."""
    return -tf.reduce_sum(tf.abs(theta), axis=-1)


def as_batch(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Features and integer labels as the data of a target."""
    return {"x": x, "y": y.astype(x.dtype)}


def accuracy(logits: Any, y: np.ndarray) -> np.ndarray:
    """Part of the labels that are predicted; `logits` has shape `[..., rows]`."""
    return np.mean((np.asarray(logits) > 0) == (y > 0.5), axis=-1)
