"""Gaussian processes: a regression, one row with a dense covariance, and Poisson counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.posteriordb.posterior import Posterior, density, gathered
from datasets import posteriordb_data

tfb, tfd = tfp.bijectors, tfp.distributions
Parts = Mapping[str, tf.Tensor]
POSITIVE = {"rho": tfb.Exp(), "alpha": tfb.Exp(), "sigma": tfb.Exp()}


def squared_exponential(x: tf.Tensor, alpha: tf.Tensor, rho: tf.Tensor) -> tf.Tensor:
    """Returns covariances `[..., T, T]` at points x, `[..., T]`."""
    alpha, rho = (p[..., tf.newaxis, tf.newaxis] for p in (alpha, rho))
    distance = (x[..., tf.newaxis] - x[..., tf.newaxis, :]) / rho
    return alpha**2 * tf.exp(-(distance**2) / 2)


def with_diagonal(covariance: tf.Tensor, extra: tf.Tensor) -> tf.Tensor:
    return tf.linalg.set_diag(covariance, tf.linalg.diag_part(covariance) + extra[..., tf.newaxis])


def of_process(rho: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    return density(tfd.Gamma, rho, 25.0, 4.0) + density(tfd.Normal, alpha, 0.0, 2.0)


def regression() -> Posterior:
    """Returns the regression, in which Stan adds sigma, not its square, to the diagonal."""

    def log_prior(rho: tf.Tensor, alpha: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        return of_process(rho, alpha) + density(tfd.Normal, sigma, 0.0, 1.0)

    def log_likelihood(
        rho: tf.Tensor, alpha: tf.Tensor, sigma: tf.Tensor, batch: Parts
    ) -> tf.Tensor:
        rho, alpha, sigma = (p[..., tf.newaxis] for p in (rho, alpha, sigma))
        covariance = with_diagonal(squared_exponential(batch["x"], alpha, rho), sigma)
        scale = tf.linalg.cholesky(covariance)
        return tfd.MultivariateNormalTriL(tf.zeros_like(batch["y"]), scale).log_prob(batch["y"])

    d = posteriordb_data("gp_pois_regr")
    data = {"x": d["x"][np.newaxis].astype(np.float64), "y": d["y"][np.newaxis]}
    shapes: dict[str, list[int]] = {"rho": [], "alpha": [], "sigma": []}
    return Posterior(log_prior, log_likelihood, data, shapes, POSITIVE)


def poisson() -> Posterior:
    d = posteriordb_data("gp_pois_regr")

    def derived(parts: Parts) -> Parts:
        rho, alpha, latent = (parts[name] for name in ("rho", "alpha", "f_tilde"))
        x = tf.constant(d["x"], latent.dtype)
        jitter = tf.constant(1e-10, latent.dtype)
        covariance = with_diagonal(squared_exponential(x, alpha, rho), jitter)
        return {"f": tf.linalg.matvec(tf.linalg.cholesky(covariance), latent)}

    def log_prior(rho: tf.Tensor, alpha: tf.Tensor, f_tilde: tf.Tensor) -> tf.Tensor:
        of_latent = tf.reduce_sum(density(tfd.Normal, f_tilde, 0.0, 1.0), axis=-1)
        return of_process(rho, alpha) + of_latent

    def log_likelihood(
        rho: tf.Tensor, alpha: tf.Tensor, f_tilde: tf.Tensor, batch: Parts
    ) -> tf.Tensor:
        f = derived({"rho": rho, "alpha": alpha, "f_tilde": f_tilde})["f"]
        return tfd.Poisson(log_rate=gathered(f, batch["point"])).log_prob(batch["k"])

    data = {"k": d["k"].astype(np.float64), "point": np.arange(len(d["k"]))}
    shapes = {"rho": [], "alpha": [], "f_tilde": [len(d["k"])]}
    return Posterior(log_prior, log_likelihood, data, shapes, POSITIVE, derived)


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "gp_pois_regr-gp_regr": regression,
    "gp_pois_regr-gp_pois_regr": poisson,
}
