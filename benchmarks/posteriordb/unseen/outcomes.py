"""Regressions whose outcomes are not normal: counts, categories, survival times, proportions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.posteriordb.posterior import Posterior, density

tfb, tfd = tfp.bijectors, tfp.distributions
Parts = Mapping[str, tf.Tensor]


def design(num_rows: int, num_columns: int, seed: int) -> tuple[np.ndarray, np.random.Generator]:
    """Returns a column of ones beside standard normals, and the generator that goes on."""
    rng = np.random.default_rng(seed)
    return np.c_[np.ones(num_rows), rng.standard_normal([num_rows, num_columns - 1])], rng


def total(distribution: type, x: tf.Tensor, *parameters: float) -> tf.Tensor:
    """Returns the log density of independent entries."""
    return tf.reduce_sum(density(distribution, x, *parameters), axis=-1)


def ordinal() -> Posterior:
    x, rng = design(500, 4, 1)
    x = x[:, 1:]
    latent = x @ [1.0, -0.5, 0.0] + rng.logistic(size=500)
    y = np.digitize(latent, [-2.0, -0.5, 1.0, 2.5])

    def log_prior(beta: tf.Tensor, cuts: tf.Tensor) -> tf.Tensor:
        return total(tfd.Normal, beta, 0.0, 2.5) + total(tfd.Normal, cuts, 0.0, 5.0)

    def log_likelihood(beta: tf.Tensor, cuts: tf.Tensor, batch: Parts) -> tf.Tensor:
        loc = tf.linalg.matvec(batch["x"], beta)
        return tfd.OrderedLogistic(cuts[..., tf.newaxis, :], loc).log_prob(batch["y"])

    shapes, bijector = {"beta": [3], "cuts": [4]}, {"cuts": tfb.Ascending()}
    return Posterior(log_prior, log_likelihood, {"x": x, "y": y}, shapes, bijector)


def zero_inflated_poisson() -> Posterior:
    x, rng = design(1000, 3, 2)
    y = rng.poisson(np.exp(x @ [0.5, 0.6, -0.3])) * (rng.random(1000) < 0.7)

    def log_prior(beta: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
        return total(tfd.Normal, beta, 0.0, 2.5) + density(tfd.Beta, p, 1.0, 1.0)

    def log_likelihood(beta: tf.Tensor, p: tf.Tensor, batch: Parts) -> tf.Tensor:
        p, y = p[..., tf.newaxis], batch["y"]
        counts = tfd.Poisson(log_rate=tf.linalg.matvec(batch["x"], beta)).log_prob(y)
        counts += tf.math.log1p(-p)
        return tf.where(y == 0, tfp.math.log_add_exp(tf.math.log(p), counts), counts)

    data = {"x": x, "y": y.astype(np.float64)}
    return Posterior(log_prior, log_likelihood, data, {"beta": [3], "p": []}, {"p": tfb.Sigmoid()})


def weibull() -> Posterior:
    x, rng = design(500, 3, 3)
    time = np.exp(x @ [1.0, 0.5, -0.4]) * rng.weibull(1.7, 500)
    end = rng.uniform(0.5, 8.0, 500)

    def log_prior(beta: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        return total(tfd.Normal, beta, 0.0, 2.5) + density(tfd.HalfNormal, shape, 2.0)

    def log_likelihood(beta: tf.Tensor, shape: tf.Tensor, batch: Parts) -> tf.Tensor:
        log_scale, k = tf.linalg.matvec(batch["x"], beta), shape[..., tf.newaxis]
        log_ratio = tf.math.log(batch["time"]) - log_scale
        log_hazard = tf.math.log(k) + (k - 1) * log_ratio - log_scale
        return batch["event"] * log_hazard - tf.exp(k * log_ratio)

    data = {"x": x, "time": np.minimum(time, end), "event": (time < end).astype(np.float64)}
    return Posterior(
        log_prior, log_likelihood, data, {"beta": [3], "shape": []}, {"shape": tfb.Exp()}
    )


def negative_binomial() -> Posterior:
    x, rng = design(20_000, 6, 4)
    mean = np.exp(x @ [1.0, 0.5, -0.3, 0.2, 0.0, 0.1])
    y = rng.poisson(mean * rng.gamma(1.5, 1 / 1.5, 20_000))

    def log_prior(beta: tf.Tensor, dispersion: tf.Tensor) -> tf.Tensor:
        return total(tfd.Normal, beta, 0.0, 2.5) + density(tfd.HalfNormal, dispersion, 2.0)

    def log_likelihood(beta: tf.Tensor, dispersion: tf.Tensor, batch: Parts) -> tf.Tensor:
        mean, spread = tf.exp(tf.linalg.matvec(batch["x"], beta)), dispersion[..., tf.newaxis]
        counts = tfd.NegativeBinomial.experimental_from_mean_dispersion(mean, spread)
        return counts.log_prob(batch["y"])

    data, shapes = {"x": x, "y": y.astype(np.float64)}, {"beta": [6], "dispersion": []}
    return Posterior(log_prior, log_likelihood, data, shapes, {"dispersion": tfb.Exp()})


def separated_logistic() -> Posterior:
    """Returns a logistic regression whose first feature separates the classes.

    Weights have tails like those of their Cauchy priors, without moments. So their inverse
    hyperbolic sines, about signed logarithms, are compared.
    """
    x, _ = design(60, 4, 5)
    y = (x[:, 1] > 0.2).astype(np.float64)

    def log_prior(beta: tf.Tensor) -> tf.Tensor:
        return total(tfd.Cauchy, beta, 0.0, 2.5)

    def log_likelihood(beta: tf.Tensor, batch: Parts) -> tf.Tensor:
        return tfd.Bernoulli(logits=tf.linalg.matvec(batch["x"], beta)).log_prob(batch["y"])

    def derived(parts: Parts) -> Parts:
        return {"asinh_beta": tf.asinh(parts["beta"])}

    data, hidden = {"x": x, "y": y}, ("beta",)
    return Posterior(
        log_prior, log_likelihood, data, {"beta": [4]}, {}, derived=derived, hidden=hidden
    )


def student_t() -> Posterior:
    """Returns a regression with errors of Student's t, whose degrees of freedom are unknown."""
    x, rng = design(300, 3, 6)
    y = x @ [1.0, 2.0, -1.0] + 0.7 * rng.standard_t(4, 300)

    def log_prior(beta: tf.Tensor, sigma: tf.Tensor, nu: tf.Tensor) -> tf.Tensor:
        of_scale = density(tfd.HalfNormal, sigma, 2.0) + density(tfd.Gamma, nu, 2.0, 0.1)
        return total(tfd.Normal, beta, 0.0, 10.0) + of_scale

    def log_likelihood(beta: tf.Tensor, sigma: tf.Tensor, nu: tf.Tensor, batch: Parts) -> tf.Tensor:
        loc, scale, df = tf.linalg.matvec(batch["x"], beta), sigma[..., None], nu[..., None]
        return tfd.StudentT(df, loc, scale).log_prob(batch["y"])

    shapes, bijector = {"beta": [3], "sigma": [], "nu": []}, {"sigma": tfb.Exp(), "nu": tfb.Exp()}
    return Posterior(log_prior, log_likelihood, {"x": x, "y": y}, shapes, bijector)


def poisson_with_exposure() -> Posterior:
    """Returns counts of accidents by kilometres, with the year as it is in the calendar."""
    rng = np.random.default_rng(7)
    year, exposure = rng.integers(1990, 2020, 400), rng.lognormal(11, 1, 400)
    y = rng.poisson(exposure * np.exp(-9.0 - 0.04 * (year - 2005)))

    def log_prior(alpha: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
        return density(tfd.Normal, alpha, 0.0, 200.0) + density(tfd.Normal, slope, 0.0, 1.0)

    def log_likelihood(alpha: tf.Tensor, slope: tf.Tensor, batch: Parts) -> tf.Tensor:
        log_rate = alpha[..., None] + slope[..., None] * batch["year"]
        return tfd.Poisson(log_rate=log_rate + tf.math.log(batch["km"])).log_prob(batch["y"])

    data = {"year": year.astype(np.float64), "km": exposure, "y": y.astype(np.float64)}
    return Posterior(log_prior, log_likelihood, data, {"alpha": [], "slope": []}, {})


def softmax() -> Posterior:
    """Returns a regression on four categories with a coefficient for each, one too many."""
    x, rng = design(400, 3, 8)
    weights = rng.standard_normal([3, 4])
    y = np.argmax(x @ weights + rng.gumbel(size=[400, 4]), axis=1)

    def log_prior(beta: tf.Tensor) -> tf.Tensor:
        return total(tfd.Normal, beta, 0.0, 2.0)

    def log_likelihood(beta: tf.Tensor, batch: Parts) -> tf.Tensor:
        by_class = tf.reshape(beta, tf.concat([tf.shape(beta)[:-1], [3, 4]], axis=0))
        return tfd.Categorical(logits=batch["x"] @ by_class).log_prob(batch["y"])

    return Posterior(log_prior, log_likelihood, {"x": x, "y": y}, {"beta": [12]}, {})


def beta_regression() -> Posterior:
    x, rng = design(300, 3, 9)
    mean = 1 / (1 + np.exp(-x @ [0.3, 0.8, -0.5]))
    y = np.clip(rng.beta(12 * mean, 12 * (1 - mean)), 1e-4, 1 - 1e-4)

    def log_prior(beta: tf.Tensor, precision: tf.Tensor) -> tf.Tensor:
        return total(tfd.Normal, beta, 0.0, 2.5) + density(tfd.Gamma, precision, 1.0, 0.05)

    def log_likelihood(beta: tf.Tensor, precision: tf.Tensor, batch: Parts) -> tf.Tensor:
        mean, phi = tf.sigmoid(tf.linalg.matvec(batch["x"], beta)), precision[..., None]
        return tfd.Beta(mean * phi, (1 - mean) * phi).log_prob(batch["y"])

    shapes, bijector = {"beta": [3], "precision": []}, {"precision": tfb.Softplus()}
    return Posterior(log_prior, log_likelihood, {"x": x, "y": y}, shapes, bijector)


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "ordinal": ordinal,
    "zero_inflated_poisson": zero_inflated_poisson,
    "weibull": weibull,
    "negative_binomial": negative_binomial,
    "separated_logistic": separated_logistic,
    "student_t": student_t,
    "poisson_exposure": poisson_with_exposure,
    "softmax": softmax,
    "beta_regression": beta_regression,
}
