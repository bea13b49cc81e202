"""Exact draws and broken ones, with the log posteriors that they are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

NUM_RESULTS, NUM_CHAINS = 1000, 4
FAR_MODE = 6.0  # between the modes of the mixture, in standard deviations of one


def standard(theta: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(theta**2, axis=-1)


def student(theta: tf.Tensor) -> tf.Tensor:
    """Returns the log density of independent Student-t variables with 3 degrees of freedom."""
    return -2 * tf.reduce_sum(tf.math.log1p(theta**2 / 3), axis=-1)


def mixture(theta: tf.Tensor) -> tf.Tensor:
    """Returns the log density of two normal modes, equally likely."""
    modes = [standard(theta), standard(theta - FAR_MODE)]
    return tf.reduce_logsumexp(modes, axis=0)


def correlated(theta: tf.Tensor, rho: float = 0.9) -> tf.Tensor:
    precision = tf.constant(np.linalg.inv(covariance(theta.shape[-1], rho)), theta.dtype)
    return -0.5 * tf.reduce_sum(theta * tf.linalg.matvec(precision, theta), axis=-1)


def covariance(size: int, rho: float = 0.9) -> np.ndarray:
    return rho * np.ones([size, size]) + (1 - rho) * np.eye(size)


def normal(seed: int, size: int = 5, rho: float = 0.0, num: int = NUM_RESULTS) -> np.ndarray:
    """Returns draws of N(0, I), in time an autoregression, `[results, chains, size]`."""
    noise = np.random.default_rng(seed).standard_normal([num, NUM_CHAINS, size])
    for t in range(1, num):
        noise[t] = rho * noise[t - 1] + np.sqrt(1 - rho**2) * noise[t]
    return noise


def sound(seed: int) -> dict[str, tuple[np.ndarray, Any]]:
    """Returns five sets of exact draws by name, with their log posteriors."""
    factor = np.linalg.cholesky(covariance(5))
    heavy = np.random.default_rng(seed).standard_t(3, [NUM_RESULTS, NUM_CHAINS, 5])
    return {
        "exact, Gaussian": (normal(seed), standard),
        "exact, correlated": (normal(seed) @ factor.T, correlated),
        "exact, AR(0.8)": (normal(seed, rho=0.8, num=3 * NUM_RESULTS), standard),
        "exact, AR(-0.8)": (normal(seed, rho=-0.8), standard),
        "exact, heavy tails": (heavy, student),
    }


def broken(seed: int) -> dict[str, tuple[np.ndarray, Any]]:
    """Returns draws with one fault each by name, with the log posteriors that they should have."""
    stuck = normal(seed)
    stuck[:, 1] = stuck[0, 1]
    spread, vectors = np.linalg.eigh(covariance(2))
    one_direction = (normal(seed, 2) * np.sqrt(spread) * [1, 1.3]) @ vectors.T
    wide, off, both = normal(seed, 50), normal(seed, 50), normal(seed, 50)
    wide[..., 17] *= 2
    off[..., 17] += 1
    both *= np.where(np.arange(50) < 25, 1.2, 0.75)
    modes = normal(seed) + FAR_MODE * (np.arange(NUM_CHAINS) % 2)[:, np.newaxis]
    bad_chain = normal(seed)
    bad_chain[:, 2] *= np.exp(np.linspace(0, 9, NUM_RESULTS))[:, np.newaxis]
    return {
        "one stuck chain": (stuck, standard),
        "too few draws": (normal(seed)[:60], standard),
        "chains in two modes": (modes, mixture),
        "1.3x too wide in 1 of 2 directions": (one_direction, correlated),
        "1 of 50 directions 2x too wide": (wide, standard),
        "1 of 50 means off by 1 sd": (off, standard),
        "1.2x and 0.75x that compensate": (both, standard),
        "one of four chains breaks away": (bad_chain, standard),
    }


def near(seed: int) -> dict[str, tuple[np.ndarray, Any]]:
    """Returns draws that are a little too wide or too narrow, by name."""
    return {
        "exact, 1.1x too wide": (1.1 * normal(seed), standard),
        "exact, 0.93x": (0.93 * normal(seed), standard),
    }


def unseen(seed: int) -> dict[str, tuple[np.ndarray, Any]]:
    return {"all chains in one of two modes": (normal(seed), mixture)}
