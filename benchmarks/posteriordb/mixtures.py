"""A mixture of two normals with ordered means."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.posteriordb.posterior import Posterior, density
from datasets import posteriordb_data

tfb, tfd = tfp.bijectors, tfp.distributions


def two_normals() -> Posterior:
    def log_prior(mu: tf.Tensor, sigma: tf.Tensor, theta: tf.Tensor) -> tf.Tensor:
        of_parts = density(tfd.Normal, mu, 0.0, 2.0) + density(tfd.Normal, sigma, 0.0, 2.0)
        return tf.reduce_sum(of_parts, axis=-1) + density(tfd.Beta, theta, 5.0, 5.0)

    def log_likelihood(
        mu: tf.Tensor, sigma: tf.Tensor, theta: tf.Tensor, batch: tf.Tensor
    ) -> tf.Tensor:
        parts = tfd.Normal(mu[..., tf.newaxis, :], sigma[..., tf.newaxis, :])
        weights = tf.stack([theta, 1 - theta], axis=-1)[..., tf.newaxis, :]
        values = parts.log_prob(batch[..., tf.newaxis]) + tf.math.log(weights)
        return tf.reduce_logsumexp(values, axis=-1)

    y = posteriordb_data("low_dim_gauss_mix")["y"]
    shapes = {"mu": [2], "sigma": [2], "theta": []}
    bijector = {"mu": tfb.Ascending(), "sigma": tfb.Exp(), "theta": tfb.Sigmoid()}
    return Posterior(log_prior, log_likelihood, y, shapes, bijector)


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "low_dim_gauss_mix-low_dim_gauss_mix": two_normals,
}
