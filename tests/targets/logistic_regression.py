"""A small logistic regression, whose scores are not linear in theta."""

from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal([30, 2])
Y = GENERATOR.integers(0, 2, 30).astype(np.float64)
CENTER = np.array([0.4, -0.2])
THETA = np.array([0.9, 0.3])


def log_prior(theta: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(theta**2, axis=-1)


def log_likelihood(theta: tf.Tensor, batch: Any) -> tf.Tensor:
    logits = tf.linalg.matvec(batch["x"], theta)
    return batch["y"] * logits - tf.math.softplus(logits)


def score(theta: tf.Tensor, batch: Any) -> tf.Tensor:
    logits = tf.linalg.matvec(batch["x"], theta)
    return (batch["y"] - tf.sigmoid(logits))[..., tf.newaxis] * batch["x"]


def regression(
    batch_size: int = 4, num_examples: int = 30, dtype: tf.DType = tf.float64, **options: Any
) -> sgmcmc.MinibatchLogProb:
    data = {"x": X[:num_examples], "y": Y[:num_examples]}
    return sgmcmc.MinibatchLogProb(
        log_prior, log_likelihood, data, batch_size, dtype=dtype, **options
    )


def in_parts(batch_size: int) -> sgmcmc.MinibatchLogProb:
    """The same model for a state of two parts."""
    return sgmcmc.MinibatchLogProb(
        lambda a, b: log_prior(tf.stack([a, b], axis=-1)),
        lambda a, b, batch: log_likelihood(tf.stack([a, b], axis=-1), batch),
        {"x": X, "y": Y},
        batch_size,
    )


def at(theta: np.ndarray, *chains: int, dtype: tf.DType = tf.float64) -> tf.Tensor:
    return tf.constant(np.broadcast_to(theta, [*chains, *theta.shape]), dtype)


def probabilities_that_lower_the_variance(base: Any) -> np.ndarray:
    """Returns the pilot's q after a test that they lower the variance, and that 1 / q raises it."""
    center, _ = sgmcmc.find_center(base, tf.zeros([2], tf.float64))

    def variance(importance: Any) -> float:
        target = sgmcmc.ControlVariate(base, center, order=2, importance=importance)
        theta = at(center.numpy() + [0.3, -0.3], 4000)
        gradient = target.estimate(theta, tf.constant([3, 4]), with_scores=False).gradient
        return float(np.trace(np.cov(gradient.numpy().T)))

    pilot = sgmcmc.ControlVariate(base, center, order=2, importance="pilot").second_order
    q = pilot.probabilities
    uniform = variance(None)
    assert variance("pilot") < 0.3 * uniform < variance(1 / q)
    return q
