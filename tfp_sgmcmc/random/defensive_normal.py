"""A standard normal distribution with a share of Student's t, whose tails bound weights."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.random.normals import normal

DEGREES_OF_FREEDOM = 8  # of the share with heavy tails


def defensive_normal(
    shape: tuple[int, ...], dtype: tf.DType, seed: tf.Tensor, tail_share: tf.Tensor
) -> tf.Tensor:
    r"""Draws from \( (1 - \alpha) N(0, I) + \alpha\, t_8(0, I) \) along the last axis of `shape`.

    A draw of t is \( z \sqrt{8 / \chi^2_8} \) with eight more normals for \( \chi^2_8 \). One more
    decides which of the two it is.
    """
    *lead, dim = shape
    z = normal([*lead, dim + DEGREES_OF_FREEDOM + 1], dtype, seed)
    chi_squared = tf.reduce_sum(z[..., dim:-1] ** 2, axis=-1, keepdims=True)
    below = tf.math.ndtri(tail_share)
    scale = tf.where(z[..., -1:] < below, tf.sqrt(DEGREES_OF_FREEDOM / chi_squared), 1.0)
    return z[..., :dim] * scale


def draw_defensive_normal(
    shape: tuple[int, ...], tail_share: float, rng: np.random.Generator
) -> np.ndarray:
    """Draws as `defensive_normal` does, by NumPy and in double precision."""
    z, is_tail = rng.standard_normal(shape), rng.uniform(size=shape[:-1]) < tail_share
    chi_squared = rng.chisquare(DEGREES_OF_FREEDOM, shape[:-1])
    return z * np.where(is_tail, np.sqrt(DEGREES_OF_FREEDOM / chi_squared), 1.0)[..., np.newaxis]


def defensive_normal_log_prob(z: tf.Tensor, tail_share: tf.Tensor) -> tf.Tensor:
    r"""Returns the log density of `defensive_normal` at z, `[..., D]`.

    \[
    \log \left( (1 - \alpha)\, (2 \pi)^{-D/2} e^{-r/2} + \alpha\, \frac{\Gamma(4 + D/2)}{\Gamma(4)}
    (8 \pi)^{-D/2} (1 + r / 8)^{-4 - D/2} \right), \qquad r = |z|^2
    \]
    """
    return defensive_normal_log_prob_at(tf.reduce_sum(z**2, axis=-1), z.shape[-1], tail_share)


def defensive_normal_log_prob_at(square: tf.Tensor, dim: int, tail_share: tf.Tensor) -> tf.Tensor:
    """Returns the log density of `defensive_normal` in `dim` dimensions where |z|^2 is `square`."""
    nu = DEGREES_OF_FREEDOM
    of_normal = -0.5 * square - 0.5 * dim * math.log(2 * math.pi)
    of_tails = -0.5 * (nu + dim) * tf.math.log1p(square / nu) + (
        math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2) - 0.5 * dim * math.log(nu * math.pi)
    )
    pair = tf.math.log1p(-tail_share) + of_normal, tf.math.log(tail_share) + of_tails
    return tf.reduce_logsumexp(tf.stack(pair), axis=0)
