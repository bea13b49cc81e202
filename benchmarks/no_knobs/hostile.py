"""Posteriors that were made to break a run without settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.common.logistic import laplace_log_prior
from benchmarks.common.problems import correlated
from benchmarks.no_knobs.posteriors import breast_cancer, hierarchical, pima, softmax
from benchmarks.no_knobs.problems import (
    Moments,
    Problem,
    by_quadrature,
    draw_labels,
    features,
    logistic,
    normal_prior,
)

tfd, tfb = tfp.distributions, tfp.bijectors


def separable() -> Problem:
    """The likelihood alone has no maximum; the prior is wide."""
    x = features(np.random.default_rng(10), 200, 3)
    return logistic(x, x[:, 1] + x[:, 2] > 0, normal_prior(10.0))


def collinear() -> Problem:
    """Two columns that are equal, and a third that is their sum."""
    rng = np.random.default_rng(11)
    x = features(rng, 1000, 5)
    x = np.c_[x, x[:, 1], x[:, 1] + x[:, 2]]
    return logistic(x, draw_labels(rng, x @ rng.normal(0.0, 0.5, 8)))


def tiny(num_examples: int) -> Problem:
    """Fewer examples than parameters."""
    rng = np.random.default_rng(12)
    x = features(rng, num_examples, 9)
    return logistic(x, draw_labels(rng, x @ rng.standard_normal(10)))


def cauchy_prior() -> Problem:
    """Separated classes and a prior with heavy tails: so has the posterior."""
    x = features(np.random.default_rng(13), 60, 1)
    y = x[:, 1] > 0.1

    def log_prior(w: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_sum(tf.math.log1p((w / 2.5) ** 2), axis=-1)

    return logistic(x, y, log_prior, out_of_reach="infinite variance")


def scaled(factor: float) -> Problem:
    """Units of the features that make the weights large or small."""
    problem = pima()
    x = problem.data["x"] * factor
    return logistic(x, problem.data["y"], normal_prior(1 / factor))


def mixed_units() -> Problem:
    """Features in units from 1e-6 to 1e6, with a prior that does not know them."""
    problem = pima()
    x = problem.data["x"] * 10.0 ** np.linspace(-6, 6, 8)
    return logistic(x, problem.data["y"], normal_prior(1e3))


def years() -> Problem:
    """A trend over years beside a constant: nearly collinear, since nobody subtracts 1990."""
    rng = np.random.default_rng(23)
    year = rng.integers(1960, 2021, 1000).astype(np.float64)
    y = draw_labels(rng, 0.05 * (year - 1990))
    return logistic(np.c_[np.ones(1000), year], y, normal_prior(100.0))


def never() -> Problem:
    """A rate, by a bijector, of what was never seen in 20 trials: a long tail to one side."""

    def log_likelihood(rate: tf.Tensor, batch: Any) -> tf.Tensor:
        return tfd.Bernoulli(probs=rate[..., tf.newaxis]).log_prob(batch)

    def log_density(logit: np.ndarray) -> np.ndarray:
        return (logit - 22 * np.logaddexp(0, logit))[:, 0]

    exact = lambda: by_quadrature(log_density, [np.linspace(-40.0, 10.0, 20_001)])  # noqa: E731
    flat = lambda rate: 0.0 * rate  # noqa: E731
    start = np.zeros([])
    return Problem(flat, log_likelihood, np.zeros(20), start, exact, tfb.Sigmoid())


def many() -> Problem:
    x, y = correlated(10**5, 20, 0)
    return logistic(x, y)


def far_start() -> Problem:
    """A start at which all probabilities are 0 or 1 and the Hessian vanishes."""
    problem = breast_cancer()
    return problem._replace(start=np.full(problem.dimension, 50.0))


def imbalanced() -> Problem:
    """20 positive labels among 20,000."""
    rng = np.random.default_rng(14)
    x = features(rng, 20_000, 5)
    logits = x[:, 1] + x[:, 2]
    y = np.zeros(len(x))
    y[np.argsort(logits + rng.gumbel(size=len(x)))[-20:]] = 1
    return logistic(x, y, normal_prior(5.0))


def rare_features() -> Problem:
    """A column that is zero but in three examples: a few examples decide about its weight."""
    rng = np.random.default_rng(15)
    x = features(rng, 20_000, 4)
    rare = np.zeros([len(x), 4])
    for j in range(4):
        rare[rng.choice(len(x), 3, replace=False), j] = 5.0
    x = np.c_[x, rare]
    y = draw_labels(rng, x @ np.r_[-1.0, rng.normal(0.0, 0.5, 8)])
    return logistic(x, y, normal_prior(3.0))


def outliers() -> Problem:
    """Poisson counts with a few leverage points: heavy-tailed features, rates up to e^8."""
    rng = np.random.default_rng(16)
    x = np.c_[np.ones(2000), np.clip(rng.standard_t(2.0, [2000, 4]), -8, 8)]
    y = rng.poisson(np.exp(np.minimum(x @ np.r_[0.0, 0.5, -0.5, 0.3, 0.2], 8.0)))

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        log_rate = tf.linalg.matvec(batch["x"], w)
        return batch["y"] * log_rate - tf.exp(log_rate)

    return Problem(normal_prior(), log_likelihood, {"x": x, "y": y}, np.zeros(5))


def location(tails: float, num_examples: int) -> Problem:
    """The location of a Cauchy-like sample: several modes where there are few examples."""
    x = np.random.default_rng(17).standard_t(tails, num_examples)
    if num_examples == 4:
        x = np.array([-6.0, -5.0, 5.5, 6.0])

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        residual = batch - w[..., tf.newaxis]
        return -(tails + 1) / 2 * tf.math.log1p(residual**2 / tails)

    def log_density(theta: np.ndarray) -> np.ndarray:
        terms = np.log1p((x - theta) ** 2 / tails).sum(axis=1)
        return -(tails + 1) / 2 * terms - theta[:, 0] ** 2 / 200

    return Problem(
        lambda w: -(w**2) / 200,
        log_likelihood,
        x,
        np.zeros([]),
        lambda: by_quadrature(log_density, [np.linspace(-40.0, 40.0, 40_001)]),
    )


def skewed_scale() -> Problem:
    """The scale of eight observations, by a bijector: a skewed posterior of few examples."""
    y = 2.0 * np.random.default_rng(18).standard_normal(8)

    def log_likelihood(mean: tf.Tensor, scale: tf.Tensor, batch: Any) -> tf.Tensor:
        return tfd.Normal(mean[..., tf.newaxis], scale[..., tf.newaxis]).log_prob(batch)

    def log_prior(mean: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        return -(mean**2) / 200 - scale / 10

    def log_density(theta: np.ndarray) -> np.ndarray:
        mean, log_scale = theta.T
        scale = np.exp(log_scale)
        squares = ((y - mean[:, np.newaxis]) ** 2).sum(axis=1)
        return -squares / 2 / scale**2 - 7 * log_scale - mean**2 / 200 - scale / 10

    grids = [np.linspace(-15.0, 15.0, 1201), np.linspace(-2.0, 5.0, 701)]
    start = {"mean": np.zeros([]), "scale": np.zeros([])}
    bijector = {"mean": None, "scale": tfb.Exp()}
    exact = lambda: by_quadrature(log_density, grids)  # noqa: E731
    return Problem(log_prior, log_likelihood, y, start, exact, bijector)


def banana() -> Problem:
    """A curved ridge: the data inform a + b^2 alone."""
    rng = np.random.default_rng(19)
    y = 1.0 + rng.standard_normal(100)

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        return -((batch - (w[..., :1] + w[..., 1:] ** 2)) ** 2) / 2

    def log_density(theta: np.ndarray) -> np.ndarray:
        off = theta[:, 0] + theta[:, 1] ** 2 - y.mean()
        return -len(y) * off**2 / 2 - np.sum(theta**2, axis=1) / 2

    grids = [np.linspace(-10.0, 5.0, 1501), np.linspace(-5.0, 5.0, 1001)]
    start = np.array([0.0, 0.5])
    return Problem(
        normal_prior(), log_likelihood, y, start, lambda: by_quadrature(log_density, grids)
    )


def relu() -> Problem:
    """A likelihood that is piecewise linear in a parameter: absolute errors."""
    rng = np.random.default_rng(20)
    x = features(rng, 2000, 4)
    y = x @ rng.standard_normal(5) + rng.laplace(size=2000)

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        return -tf.abs(batch["y"] - tf.linalg.matvec(batch["x"], w))

    return Problem(normal_prior(10.0), log_likelihood, {"x": x, "y": y}, np.zeros(5))


def network() -> Problem:
    """A small network: symmetric, with many modes."""
    rng = np.random.default_rng(21)
    x = rng.standard_normal([500, 2])
    y = np.sin(2 * x[:, 0]) + 0.3 * rng.standard_normal(500)

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        first = tf.reshape(w[..., :16], [*w.shape[:-1], 2, 8])
        hidden = tf.tanh(tf.linalg.matmul(batch["x"], first) + w[..., tf.newaxis, 16:24])
        return -((batch["y"] - tf.linalg.matvec(hidden, w[..., 24:32])) ** 2) / 0.18

    start = 0.5 * rng.standard_normal(32)
    return Problem(
        normal_prior(), log_likelihood, {"x": x, "y": y}, start, out_of_reach="many modes"
    )


def improper() -> Problem:
    """A parameter that neither prior nor data inform along a direction."""
    rng = np.random.default_rng(22)
    x = features(rng, 500, 3)
    x = np.c_[x, x[:, 1]]
    flat = lambda w: 0.0 * tf.reduce_sum(w, axis=-1)  # noqa: E731
    return logistic(
        x, draw_labels(rng, x[:, 1]), flat, out_of_reach="an improper posterior",
        exact=lambda: Moments(np.full(5, np.nan), np.eye(5)),
    )  # fmt: skip


HOSTILE: dict[str, Callable[[], Problem]] = {
    "separable": separable,
    "collinear": collinear,
    "tiny, N = 5": lambda: tiny(5),
    "N = 1": lambda: tiny(1),
    "Cauchy prior": cauchy_prior,
    "units of 1e-6": lambda: scaled(1e6),
    "units of 1e6": lambda: scaled(1e-6),
    "mixed units": mixed_units,
    "years": years,
    "never": never,
    "N = 10^5": many,
    "prior scale 1e3": lambda: breast_cancer()._replace(log_prior=normal_prior(1e3)),
    "far start": far_start,
    "imbalanced": imbalanced,
    "rare features": rare_features,
    "outliers": outliers,
    "Cauchy location, N = 4": lambda: location(1.0, 4),
    "Cauchy location, N = 30": lambda: location(1.0, 30),
    "skewed scale": skewed_scale,
    "banana": banana,
    "absolute errors": relu,
    "hierarchical, 40 groups": lambda: hierarchical(40, 15),
    "hierarchical, centred": lambda: hierarchical(20, 100, centred=True),
    "network": network,
    "improper": improper,
    "softmax, Laplace prior": lambda: softmax()._replace(
        log_prior=lambda w: tf.reduce_sum(laplace_log_prior(w), axis=-1)
    ),
}
