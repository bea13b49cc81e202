"""Odd shapes and units: shrinkage, funnel, banana, edge, heavy tails, dollars, powers of a year."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.posteriordb.posterior import Posterior, density
from benchmarks.posteriordb.regressions import regression
from benchmarks.posteriordb.unseen.outcomes import design, total

tfb, tfd = tfp.bijectors, tfp.distributions
Parts = Mapping[str, tf.Tensor]
Draws = dict[str, np.ndarray]
NUM_DRAWS = 200_000  # of closed forms


def horseshoe() -> Posterior:
    x, rng = design(100, 15, 31)
    y = x[:, 1:4] @ [2.0, -1.5, 1.0] + rng.standard_normal(100)

    def derived(parts: Parts) -> Parts:
        return {"beta": parts["z"] * parts["local"] * parts["whole"][..., None]}

    def log_prior(z: tf.Tensor, local: tf.Tensor, whole: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        of_scales = total(tfd.HalfCauchy, local, 0.0, 1.0) + density(
            tfd.HalfCauchy, whole, 0.0, 0.3
        )
        return total(tfd.Normal, z, 0.0, 1.0) + of_scales + density(tfd.HalfNormal, sigma, 2.0)

    def log_likelihood(batch: Parts, **parts: tf.Tensor) -> tf.Tensor:
        mean = tf.linalg.matvec(batch["x"], derived(parts)["beta"])
        return tfd.Normal(mean, parts["sigma"][..., None]).log_prob(batch["y"])

    shapes: dict[str, list[int]] = {"z": [15], "local": [15], "whole": [], "sigma": []}
    bijector = {name: tfb.Exp() for name in ("local", "whole", "sigma")}
    # Widths have tails without moments, and so has the posterior of those that are not known.
    hidden = "local", "whole", "z"
    return Posterior(
        log_prior, log_likelihood, {"x": x, "y": y}, shapes, bijector, derived, hidden=hidden
    )


def horseshoe_draws(posterior: Posterior) -> Draws:
    """Returns states of Gibbs samplers, every tenth step of 2000 chains.

    A half-Cauchy width of scale s is the root of an inverse gamma variable with shape 1/2, whose
    scale is the inverse of another one with scale 1/s^2 (Makalic and Schmidt 2016). The standard
    deviation of the errors has a Metropolis test.
    """
    x, y = posterior.data["x"], posterior.data["y"]
    (rows, columns), rng, chains = x.shape, np.random.default_rng(0), 2000
    gram, along = x.T @ x, x.T @ y
    local, hidden = np.ones([2, chains, columns])  # squared widths and what they depend on
    whole, above, variance = np.ones([3, chains])
    kept = []
    for step in range(500 + 10 * NUM_DRAWS // chains):
        precision = gram / variance[:, None, None]
        precision[:, range(columns), range(columns)] += 1 / (local * whole[:, None])
        root = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, along[:, None] / variance[:, None, None])[..., 0]
        z = rng.standard_normal([chains, columns, 1])
        beta = mean + np.linalg.solve(root.mT, z)[..., 0]
        gammas = rng.standard_gamma(1.0, [3, chains, columns])
        local = (1 / hidden + beta**2 / (2 * whole[:, None])) / gammas[0]
        hidden = (1 + 1 / local) / gammas[1]
        sizes = (beta**2 / local).sum(axis=1)
        whole = (1 / above + sizes / 2) / rng.standard_gamma((columns + 1) / 2, chains)
        above = (1 / 0.3**2 + 1 / whole) / gammas[2, :, 0]
        errors = ((y - beta @ x.T) ** 2).sum(axis=1)
        offered = errors / 2 / rng.standard_gamma((rows - 1) / 2, chains)
        is_taken = np.log(rng.uniform(size=chains)) < (variance - offered) / 8
        variance = np.where(is_taken, offered, variance)
        if step >= 500 and step % 10 == 0:
            kept.append((beta, np.sqrt(variance)))
    return dict(zip(("beta", "sigma"), map(np.concatenate, zip(*kept, strict=True)), strict=True))


def lasso() -> Posterior:
    x, rng = design(80, 20, 32)
    y = x[:, :3] @ [1.0, 2.0, -1.0] + rng.standard_normal(80)

    def log_prior(beta: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        return total(tfd.Laplace, beta, 0.0, 0.3) + density(tfd.HalfNormal, sigma, 2.0)

    def log_likelihood(beta: tf.Tensor, sigma: tf.Tensor, batch: Parts) -> tf.Tensor:
        mean = tf.linalg.matvec(batch["x"], beta)
        return tfd.Normal(mean, sigma[..., None]).log_prob(batch["y"])

    shapes: dict[str, list[int]] = {"beta": [20], "sigma": []}
    return Posterior(log_prior, log_likelihood, {"x": x, "y": y}, shapes, {"sigma": tfb.Exp()})


def polynomial() -> Posterior:
    """Returns a polynomial of degree eight in the hours of a day."""
    rng = np.random.default_rng(33)
    hour = rng.uniform(0, 24, 300)
    y = 15 + 5 * np.sin(hour / 4) + rng.standard_normal(300)
    return regression(y, *(hour**k for k in range(1, 9)))


def scaled_polynomial() -> Posterior:
    """Returns a polynomial of degree eight on [-1, 1]."""
    rng = np.random.default_rng(34)
    x = rng.uniform(-1, 1, 300)
    return regression(np.sin(4 * x) + 0.3 * rng.standard_normal(300), *(x**k for k in range(1, 9)))


def incomes() -> Posterior:
    rng = np.random.default_rng(35)
    return regression(rng.normal(62_000, 29_000, 100))


def prices() -> Posterior:
    """Returns house prices in dollars by square feet, the year of building and a share."""
    rng = np.random.default_rng(36)
    feet, year = rng.lognormal(7.5, 0.4, 250), rng.integers(1900, 2020, 250)
    share = rng.beta(1, 30, 250)
    mean = 180 * feet + 900 * (year - 1960) - 3e5 * share
    return regression(rng.normal(mean, 40_000), feet, year, share)


def closed_form(posterior: Posterior) -> Draws:
    """Returns draws of a linear regression with flat priors of coefficients and sigma."""
    x, y = posterior.data["x"], posterior.data["y"]
    rng, (num_rows, num_columns) = np.random.default_rng(0), x.shape
    size = np.abs(x).max(axis=0)  # as powers of an hour differ by ten orders of magnitude
    q, r = np.linalg.qr(x / size)
    along = q.T @ y
    left = np.sum((y - q @ along) ** 2)
    variance = left / 2 / rng.gamma((num_rows - num_columns - 1) / 2, size=NUM_DRAWS)
    z = rng.standard_normal([num_columns, NUM_DRAWS]) * np.sqrt(variance)
    beta = np.linalg.solve(r, along[:, None] + z).T / size
    return {"beta": beta, "sigma": np.sqrt(variance)}


def edge() -> Posterior:
    """Returns the end of a uniform distribution: the density is highest at the largest row."""
    y = np.random.default_rng(37).uniform(0, 5, 30)

    def log_prior(end: tf.Tensor) -> tf.Tensor:
        return density(tfd.Exponential, end, 0.001)

    def log_likelihood(end: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        end = end[..., None]
        outside = tf.constant(-np.inf, end.dtype)
        return tf.where(batch <= end, -tf.math.log(end) + tf.zeros_like(batch), outside)

    return Posterior(log_prior, log_likelihood, y, {"end": []}, {"end": tfb.Exp()})


def edge_draws(posterior: Posterior) -> Draws:
    grid = posterior.data.max() * np.exp(np.linspace(0, 2, 2_000_001))  # of log end
    density_of_log = np.exp(-29 * np.log(grid / grid[0]) - 0.001 * grid)
    cumulated = np.cumsum(density_of_log)
    chances = np.random.default_rng(0).uniform(size=NUM_DRAWS) * cumulated[-1]
    return {"end": grid[np.searchsorted(cumulated, chances)]}


def of_one_row(log_density: Callable[..., tf.Tensor], shapes: dict[str, list[int]]) -> Posterior:
    def log_prior(**parts: tf.Tensor) -> tf.Tensor:
        return tf.zeros_like(log_density(**parts))

    def log_likelihood(batch: tf.Tensor, **parts: tf.Tensor) -> tf.Tensor:
        return log_density(**parts)[..., None] + 0 * batch

    return Posterior(log_prior, log_likelihood, np.zeros(1), shapes, {})


def funnel() -> Posterior:
    def log_density(v: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        of_x = tfd.Normal(tf.zeros_like(x), tf.exp(v / 2)[..., None]).log_prob(x)
        return density(tfd.Normal, v, 0.0, 3.0) + tf.reduce_sum(of_x, axis=-1)

    return of_one_row(log_density, {"v": [], "x": [9]})._replace(hidden=("x",))


def banana() -> Posterior:
    def log_density(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        of_b = tfd.Normal(0.03 * (a**2 - 100), tf.ones_like(a)).log_prob(b)
        return density(tfd.Normal, a, 0.0, 10.0) + of_b

    return of_one_row(log_density, {"a": [], "b": []})


def banana_draws(_: Posterior) -> Draws:
    first, second = np.random.default_rng(0).standard_normal([2, NUM_DRAWS])
    return {"a": 10 * first, "b": 0.03 * (100 * first**2 - 100) + second}


def funnel_draws(_: Posterior) -> Draws:
    return {"v": 3 * np.random.default_rng(0).standard_normal(NUM_DRAWS)}


def two_places() -> Posterior:
    """Returns the place of a Cauchy distribution of which rows lie at two places."""
    y = np.array([-6.0, -5.5, -5.0, 5.0, 5.2, 6.0, 6.5])

    def log_prior(x: tf.Tensor) -> tf.Tensor:
        return density(tfd.Normal, x, 0.0, 10.0)

    def log_likelihood(x: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return tfd.Cauchy(x[..., None], tf.ones_like(x)[..., None]).log_prob(batch)

    return Posterior(log_prior, log_likelihood, y, {"x": []}, {})


def two_places_draws(posterior: Posterior) -> Draws:
    grid = np.linspace(-60, 60, 1_200_001)
    rows = np.log1p((posterior.data[:, None] - grid[::10]) ** 2).sum(axis=0)
    grid = grid[::10]
    cumulated = np.cumsum(np.exp(-rows - grid**2 / 200))
    chances = np.random.default_rng(0).uniform(size=NUM_DRAWS) * cumulated[-1]
    return {"x": grid[np.searchsorted(cumulated, chances)]}


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "horseshoe": horseshoe,
    "lasso": lasso,
    "polynomial": scaled_polynomial,
    "polynomial_hours": polynomial,
    "incomes": incomes,
    "prices": prices,
    "edge": edge,
    "funnel": funnel,
    "banana": banana,
    "two_places": two_places,
}
CLOSED_FORMS: dict[str, Callable[[Posterior], Draws]] = {
    **dict.fromkeys(("polynomial", "polynomial_hours", "incomes", "prices"), closed_form),
    "horseshoe": horseshoe_draws,
    "edge": edge_draws,
    "funnel": funnel_draws,
    "banana": banana_draws,
    "two_places": two_places_draws,
}
