"""Time series: an autoregression, whose rows are times, and ARMA and GARCH, each one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.posteriordb.posterior import Posterior, density
from datasets import posteriordb_data

tfb, tfd = tfp.bijectors, tfp.distributions
Parts = Mapping[str, tf.Tensor]


def autoregression() -> Posterior:
    d = posteriordb_data("arK")
    y, order = d["y"], int(d["K"])
    lags = np.column_stack([y[order - k : len(y) - k] for k in range(1, order + 1)])

    def log_prior(alpha: tf.Tensor, beta: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        return (
            density(tfd.Normal, alpha, 0.0, 10.0)
            + tf.reduce_sum(density(tfd.Normal, beta, 0.0, 10.0), axis=-1)
            + density(tfd.HalfCauchy, sigma, 0.0, 2.5)
        )

    def log_likelihood(
        alpha: tf.Tensor, beta: tf.Tensor, sigma: tf.Tensor, batch: Parts
    ) -> tf.Tensor:
        mean = alpha[..., tf.newaxis] + tf.linalg.matvec(batch["lags"], beta)
        return tfd.Normal(mean, sigma[..., tf.newaxis]).log_prob(batch["y"])

    shapes = {"alpha": [], "beta": [order], "sigma": []}
    data = {"lags": lags, "y": y[order:]}
    return Posterior(log_prior, log_likelihood, data, shapes, {"sigma": tfb.Exp()})


def recurrence(factor: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns u of u_1 = x_1, u_t = factor u_{t-1} + x_t, along the last axis of x, `[..., T]`."""
    factors = tf.broadcast_to(factor, tf.shape(x))
    followed = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])  # noqa: E731
    return tfp.math.scan_associative(followed, (factors, x), axis=-1)[1]


def arma() -> Posterior:
    def log_prior(mu: tf.Tensor, phi: tf.Tensor, theta: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        return (
            density(tfd.Normal, mu, 0.0, 10.0)
            + density(tfd.Normal, phi, 0.0, 2.0)
            + density(tfd.Normal, theta, 0.0, 2.0)
            + density(tfd.HalfCauchy, sigma, 0.0, 2.5)
        )

    def log_likelihood(
        mu: tf.Tensor, phi: tf.Tensor, theta: tf.Tensor, sigma: tf.Tensor, batch: tf.Tensor
    ) -> tf.Tensor:
        mu, phi, theta, sigma = (x[..., tf.newaxis, tf.newaxis] for x in (mu, phi, theta, sigma))
        y = batch + tf.zeros_like(mu)
        before = tf.concat([mu + tf.zeros_like(y[..., :1]), y[..., :-1]], axis=-1)
        errors = recurrence(-theta, y - mu - phi * before)
        return tf.reduce_sum(tfd.Normal(tf.zeros_like(sigma), sigma).log_prob(errors), axis=-1)

    series = posteriordb_data("arma")["y"][np.newaxis]
    shapes: dict[str, list[int]] = {"mu": [], "phi": [], "theta": [], "sigma": []}
    return Posterior(log_prior, log_likelihood, series, shapes, {"sigma": tfb.Exp()})


def garch() -> Posterior:
    """Returns GARCH(1, 1), whose beta1 is the part `share` of 1 - alpha1.

    alpha1 and beta1 are uniform where they add up to less than one, so that alpha1 and the share
    have the density 1 - alpha1.
    """
    d = posteriordb_data("garch")

    def log_prior(
        mu: tf.Tensor, alpha0: tf.Tensor, alpha1: tf.Tensor, share: tf.Tensor
    ) -> tf.Tensor:
        del mu, alpha0, share
        return tf.math.log1p(-alpha1)

    def derived(parts: Parts) -> Parts:
        return {"beta1": (1 - parts["alpha1"]) * parts["share"]}

    def log_likelihood(
        mu: tf.Tensor, alpha0: tf.Tensor, alpha1: tf.Tensor, share: tf.Tensor, batch: tf.Tensor
    ) -> tf.Tensor:
        beta1 = derived({"alpha1": alpha1, "share": share})["beta1"]
        mu, alpha0, alpha1, beta1 = (
            x[..., tf.newaxis, tf.newaxis] for x in (mu, alpha0, alpha1, beta1)
        )
        y = batch + tf.zeros_like(mu)
        rest = alpha0 + alpha1 * (y[..., :-1] - mu) ** 2
        first = tf.fill(tf.shape(y[..., :1]), tf.constant(float(d["sigma1"]) ** 2, y.dtype))
        variance = recurrence(beta1, tf.concat([first, rest], axis=-1))
        return tf.reduce_sum(tfd.Normal(mu, tf.sqrt(variance)).log_prob(y), axis=-1)

    shapes: dict[str, list[int]] = {"mu": [], "alpha0": [], "alpha1": [], "share": []}
    bijector = {"alpha0": tfb.Exp(), "alpha1": tfb.Sigmoid(), "share": tfb.Sigmoid()}
    return Posterior(log_prior, log_likelihood, d["y"][np.newaxis], shapes, bijector, derived)


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "arK-arK": autoregression,
    "arma-arma11": arma,
    "garch-garch11": garch,
}
