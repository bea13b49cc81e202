"""The posteriors of the table: public data sets, and models that are no plain regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from sklearn.datasets import load_breast_cancer, load_digits

import datasets
from benchmarks.common.logistic import laplace_log_prior
from benchmarks.no_knobs.problems import (
    Moments,
    Problem,
    by_quadrature,
    draw_labels,
    features,
    logistic,
    normal_prior,
    with_constant,
)

tfd, tfb = tfp.distributions, tfp.bijectors


def mnist(projection: str, num_features: int, prior_scale: float) -> Problem:
    x, y, _, _ = datasets.mnist_7v9(projection=projection, num_features=num_features)
    return logistic(x, y, normal_prior(prior_scale))


def a9a(prior: Callable[..., Any]) -> Problem:
    x, y, _, _ = datasets.a9a()
    return logistic(np.c_[np.ones(len(x)), x], y, prior)


def german() -> Problem:
    x, y, _, _ = datasets.german(test_fraction=0)
    return logistic(x, y)


def pima() -> Problem:
    x, y, _, _ = datasets.pima(test_fraction=0)
    return logistic(x, y)


def breast_cancer() -> Problem:
    x, y = load_breast_cancer(return_X_y=True)
    return logistic(with_constant(x), y)


def digits() -> Problem:
    x, y = load_digits(return_X_y=True)
    keep = (y == 7) | (y == 9)
    return logistic(with_constant(x[keep]), y[keep] == 7)


def poisson() -> Problem:
    rng = np.random.default_rng(1)
    x = features(rng, 3864, 9) * np.r_[1.0, np.full(9, 0.5)]
    y = rng.poisson(np.exp(x @ rng.normal(0.0, 0.5, 10)))

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        log_rate = tf.linalg.matvec(batch["x"], w)
        return batch["y"] * log_rate - tf.exp(log_rate)

    return Problem(normal_prior(), log_likelihood, {"x": x, "y": y}, np.zeros(10))


def softmax() -> Problem:
    """D = 85: weights `[17, 5]`, of which the prior alone fixes the sum over classes."""
    rng = np.random.default_rng(2)
    x = features(rng, 1000, 16)
    scores = x @ rng.normal(0.0, 1.0, [17, 5]) + rng.gumbel(size=[1000, 5])
    labels = np.eye(5)[scores.argmax(axis=1)]

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        logits = tf.linalg.matmul(batch["x"], w)
        return tf.reduce_sum(batch["y"] * tf.nn.log_softmax(logits), axis=-1)

    return Problem(
        lambda w: -tf.reduce_sum(w**2, axis=[-2, -1]) / 2,
        log_likelihood,
        {"x": x, "y": labels},
        np.zeros([17, 5]),
    )


def linear() -> Problem:
    """A dict state; the scale of the noise is constrained by a bijector."""
    rng = np.random.default_rng(3)
    x = features(rng, 2000, 11)
    y = x @ rng.standard_normal(12) + 3.0 * rng.standard_normal(2000)

    def log_prior(w: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        return normal_prior(10.0)(w) + tfd.HalfNormal(tf.cast(10.0, noise.dtype)).log_prob(noise)

    def log_likelihood(w: tf.Tensor, noise: tf.Tensor, batch: Any) -> tf.Tensor:
        mean = tf.linalg.matvec(batch["x"], w)
        return tfd.Normal(mean, noise[..., tf.newaxis]).log_prob(batch["y"])

    start = {"w": np.zeros(12), "noise": np.zeros([])}
    bijector = {"w": None, "noise": tfb.Exp()}
    return Problem(log_prior, log_likelihood, {"x": x, "y": y}, start, bijector=bijector)


def hierarchical(num_groups: int, group_size: int, centred: bool = False) -> Problem:
    """Logistic regression with an intercept for each group, whose spread is unknown.

    The intercepts are mean + spread z, and z is sampled, or the intercepts themselves (`centred`).
    The density of the latter has its mode at a tiny spread, far from its mass.
    """
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(num_groups), group_size)
    x, intercepts = rng.standard_normal([len(group), 5]), rng.normal(-0.5, 0.8, num_groups)
    y = draw_labels(rng, x @ rng.normal(0.0, 0.7, 5) + intercepts[group])

    def log_prior(w: tf.Tensor, mean: tf.Tensor, log_spread: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        if centred:
            z = (z - mean[..., tf.newaxis]) * tf.exp(-log_spread)[..., tf.newaxis]
        squares = tf.reduce_sum(w**2, axis=-1) + tf.reduce_sum(z**2, axis=-1)
        log_prob = -(squares + mean**2 + log_spread**2) / 2
        return log_prob - num_groups * log_spread if centred else log_prob

    def log_likelihood(
        w: tf.Tensor, mean: tf.Tensor, log_spread: tf.Tensor, z: tf.Tensor, batch: Any
    ) -> tf.Tensor:
        if not centred:
            z = mean[..., tf.newaxis] + tf.exp(log_spread)[..., tf.newaxis] * z
        logits = tf.linalg.matvec(batch["x"], w) + tf.linalg.matvec(batch["group"], z)
        return batch["y"] * logits - tf.math.softplus(logits)

    data = {"x": x, "group": np.eye(num_groups)[group], "y": y}
    one = np.zeros([])
    start = {"w": np.zeros(5), "mean": one, "log_spread": one, "z": np.zeros(num_groups)}
    return Problem(log_prior, log_likelihood, data, start)


def student_t() -> Problem:
    """Robust regression with 4 degrees of freedom; the last entry is the log scale."""
    rng = np.random.default_rng(5)
    x = features(rng, 1500, 9)
    y = x @ rng.standard_normal(10) + 0.5 * rng.standard_t(4.0, 1500)

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        scale = tf.exp(w[..., -1:])
        residual = (batch["y"] - tf.linalg.matvec(batch["x"], w[..., :-1])) / scale
        return -tf.math.log(scale) - 2.5 * tf.math.log1p(residual**2 / 4)

    return Problem(normal_prior(), log_likelihood, {"x": x, "y": y}, np.zeros(11))


def mixture(x: np.ndarray, weight: float, start: list[float], out_of_reach: str = "") -> Problem:
    """The two centres of a mixture of unit Gaussians, whose weights are known."""
    weights = np.log([weight, 1 - weight])

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        terms = -((batch - w[..., tf.newaxis, :]) ** 2) / 2 + tf.constant(weights, w.dtype)
        return tf.reduce_logsumexp(terms, axis=-1)

    def log_density(theta: np.ndarray) -> np.ndarray:
        values = np.logaddexp(*(w - (x - theta[:, k]) ** 2 / 2 for k, w in enumerate(weights)))
        return values.sum(axis=0) - np.sum(theta**2, axis=1) / 200

    return Problem(
        normal_prior(10.0),
        log_likelihood,
        x,
        np.array(start),
        lambda: by_quadrature(log_density, 2 * [np.linspace(-4.0, 4.0, 401)]),
        out_of_reach=out_of_reach,
    )


def separate(weight: float, out_of_reach: str = "") -> Problem:
    """Far centres. With equal weights they can change places, and no chain does."""
    rng = np.random.default_rng(6)
    first = rng.random([1000, 1]) < weight
    x = rng.standard_normal([1000, 1]) + np.where(first, -2.0, 2.0)
    return mixture(x, weight, [-1.0, 1.0], out_of_reach)


def bridge() -> Problem:
    """Two modes of different mass and a bridge between them."""
    x, start = datasets.gaussian_mixture(dtype=np.float64)
    return mixture(x, 1 / 3, start.tolist(), out_of_reach="two modes and a bridge")


def funnel() -> Problem:
    """Neal's funnel, x_k ~ N(0, exp(v)) and v ~ N(0, 9), with data that inform v a little."""
    y = 30.0 * np.random.default_rng(7).standard_normal(100)

    def log_prior(w: tf.Tensor) -> tf.Tensor:
        v, x = w[..., 0], w[..., 1:]
        return -(v**2) / 18 - tf.exp(-v) * tf.reduce_sum(x**2, axis=-1) / 2 - 4.5 * v

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        return -((batch - w[..., :1]) ** 2) / 1800

    variance = 1 / (1 / 9 + len(y) / 900)
    mean = variance * y.sum() / 900
    of_x = np.exp(mean + variance / 2)  # E exp(v)
    exact = Moments(np.r_[mean, np.zeros(9)], np.diag(np.r_[variance, np.full(9, of_x)]))
    return Problem(
        log_prior, log_likelihood, y, np.zeros(10), lambda: exact, out_of_reach="a funnel"
    )


POSTERIORS: dict[str, Callable[[], Problem]] = {
    "MNIST 7 v 9, 51": lambda: mnist("random", 50, 1.0),
    "MNIST 7 v 9, 129": lambda: mnist("pca", 128, 10.0),
    "a9a": lambda: a9a(normal_prior()),
    "a9a, Laplace prior": lambda: a9a(laplace_log_prior),
    "german": german,
    "pima": pima,
    "breast cancer": breast_cancer,
    "digits": digits,
    "Poisson": poisson,
    "softmax": softmax,
    "linear": linear,
    "hierarchical": lambda: hierarchical(8, 100),
    "Student-t": student_t,
    "mixture": lambda: separate(0.3),
    "mixture, bridge": bridge,
    "mixture, symmetric": lambda: separate(0.5, out_of_reach="two modes"),
    "funnel": funnel,
}
