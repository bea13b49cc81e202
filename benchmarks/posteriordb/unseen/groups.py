"""Hierarchies: group effects, centred and not, crossed effects, rates, volatilities, items."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.posteriordb.posterior import Posterior, density, gathered
from benchmarks.posteriordb.series import recurrence
from benchmarks.posteriordb.unseen.outcomes import total

tfb, tfd = tfp.bijectors, tfp.distributions
Parts = Mapping[str, tf.Tensor]


def radon_counties() -> np.ndarray:
    """Returns the log uranium of 60 counties."""
    return np.random.default_rng(10).normal(0, 0.4, 60)


def radon(effects: str) -> Posterior:
    """Returns counties' intercepts with the part `effects`: `"theta"`, or `"z"` for N(0, 1)."""
    uranium, rng = radon_counties(), np.random.default_rng(11)
    sizes = np.minimum(1 + rng.geometric(0.12, 60), 60)
    county = np.repeat(np.arange(60), sizes)
    floor = (rng.random(len(county)) < 0.2).astype(np.float64)
    of_county = 1.4 + 0.7 * uranium + rng.normal(0, 0.15, 60)
    y = of_county[county] - 0.7 * floor + rng.normal(0, 0.75, len(county))

    def location(mu: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
        return mu[..., None] + slope[..., None] * tf.constant(uranium, mu.dtype)

    def log_prior(
        mu: tf.Tensor, slope: tf.Tensor, floor: tf.Tensor, tau: tf.Tensor, sigma: tf.Tensor,
        **parts: tf.Tensor,
    ) -> tf.Tensor:  # fmt: skip
        if effects == "theta":
            of_effects = tfd.Normal(location(mu, slope), tau[..., None]).log_prob(parts["theta"])
        else:
            of_effects = density(tfd.Normal, parts["z"], 0.0, 1.0)
        fixed = sum(density(tfd.Normal, x, 0.0, 5.0) for x in (mu, slope, floor))
        scales = density(tfd.HalfNormal, tau, 1.0) + density(tfd.HalfNormal, sigma, 2.0)
        return tf.reduce_sum(of_effects, axis=-1) + fixed + scales

    def derived(parts: Parts) -> Parts:
        at, tau = location(parts["mu"], parts["slope"]), parts["tau"][..., None]
        if effects == "theta":
            return {"z": (parts["theta"] - at) / tau}
        return {"theta": at + tau * parts["z"]}

    def log_likelihood(batch: Parts, **parts: tf.Tensor) -> tf.Tensor:
        theta = {**parts, **derived(parts)}["theta"]
        mean = gathered(theta, batch["county"]) + parts["floor"][..., None] * batch["floor"]
        return tfd.Normal(mean, parts["sigma"][..., None]).log_prob(batch["y"])

    shapes: dict[str, list[int]] = {effects: [60]}
    shapes |= {name: [] for name in ("mu", "slope", "floor", "tau", "sigma")}
    data = {"y": y, "county": county, "floor": floor}
    bijector = {"tau": tfb.Exp(), "sigma": tfb.Exp()}
    return Posterior(log_prior, log_likelihood, data, shapes, bijector, derived, "radon")


def crossed_effects() -> Posterior:
    """Returns answers, right or wrong, of 30 subjects to 20 items, with effects of both."""
    rng = np.random.default_rng(12)
    subject, item = np.repeat(np.arange(30), 20), np.tile(np.arange(20), 30)
    x = rng.standard_normal(600)
    logits = 0.5 + 0.8 * x + rng.normal(0, 1, 30)[subject] + rng.normal(0, 0.6, 20)[item]
    y = (rng.random(600) < 1 / (1 + np.exp(-logits))).astype(np.float64)

    def log_prior(beta: tf.Tensor, widths: tf.Tensor, u: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        of_effects = total(tfd.Normal, u, 0.0, 1.0) + total(tfd.Normal, v, 0.0, 1.0)
        of_widths = total(tfd.HalfNormal, widths, 1.5)
        return of_effects + of_widths + total(tfd.Normal, beta, 0.0, 2.5)

    def log_likelihood(
        beta: tf.Tensor, widths: tf.Tensor, u: tf.Tensor, v: tf.Tensor, batch: Parts
    ) -> tf.Tensor:
        logits = beta[..., :1] + beta[..., 1:] * batch["x"]
        logits += widths[..., :1] * gathered(u, batch["subject"])
        logits += widths[..., 1:] * gathered(v, batch["item"])
        return tfd.Bernoulli(logits=logits).log_prob(batch["y"])

    data = {"x": x, "y": y, "subject": subject, "item": item}
    shapes = {"beta": [2], "widths": [2], "u": [30], "v": [20]}
    return Posterior(log_prior, log_likelihood, data, shapes, {"widths": tfb.Exp()})


def varying_slopes(effects: str) -> Posterior:
    """Returns answers of 20 groups with correlated intercepts and slopes, `"effects"` or `"z"`."""
    rng = np.random.default_rng(16)
    group, x = np.repeat(np.arange(20), 25), rng.standard_normal(500)
    covariance = [[0.81, 0.18], [0.18, 0.25]]
    of_group = [0.5, -0.7] + rng.multivariate_normal([0.0, 0.0], covariance, 20)
    logits = of_group[group, 0] + of_group[group, 1] * x
    y = (rng.random(500) < 1 / (1 + np.exp(-logits))).astype(np.float64)

    def tril(tau: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return tau[..., None] * factor

    def log_prior(
        mu: tf.Tensor, tau: tf.Tensor, factor: tf.Tensor, **parts: tf.Tensor
    ) -> tf.Tensor:
        if effects == "effects":
            scale = tril(tau, factor)[..., None, :, :]
            normal = tfd.MultivariateNormalTriL(mu[..., None, :], scale)
            of_effects = normal.log_prob(parts["effects"])
        else:
            of_effects = total(tfd.Normal, parts["z"], 0.0, 1.0)
        lkj = tfd.CholeskyLKJ(2, concentration=tf.constant(2.0, mu.dtype)).log_prob(factor)
        of_scales = total(tfd.HalfNormal, tau, 1.0) + total(tfd.Normal, mu, 0.0, 2.5)
        return tf.reduce_sum(of_effects, axis=-1) + of_scales + lkj

    def derived(parts: Parts) -> Parts:
        factor = tf.convert_to_tensor(parts["factor"])
        if effects == "z":
            z, scale = parts["z"], tril(parts["tau"], factor)
            both = parts["mu"][..., None, :] + tf.matmul(z, scale, transpose_b=True)
        else:
            both = parts["effects"]
        return {"intercept": both[..., 0], "slope": both[..., 1], "correlation": factor[..., 1, 0]}

    def log_likelihood(batch: Parts, **parts: tf.Tensor) -> tf.Tensor:
        found = derived(parts)
        a, b = (gathered(found[name], batch["group"]) for name in ("intercept", "slope"))
        return tfd.Bernoulli(logits=a + b * batch["x"]).log_prob(batch["y"])

    shapes: dict[str, list[int]] = {"mu": [2], "tau": [2], "factor": [1], effects: [20, 2]}
    bijector = {"tau": tfb.Exp(), "factor": tfb.CorrelationCholesky()}
    data = {"y": y, "x": x, "group": group}
    options = derived, "varying_slopes"
    return Posterior(log_prior, log_likelihood, data, shapes, bijector, *options)


def rates() -> Posterior:
    """Returns tumour rates of 40 groups with beta priors of unknown mean and size."""
    rng = np.random.default_rng(13)
    n = rng.integers(10, 50, 40)
    y = rng.binomial(n, rng.beta(1.5, 8.5, 40))

    def log_prior(mean: tf.Tensor, log_size: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        size = tf.exp(log_size)
        a, b = (mean * size)[..., None], ((1 - mean) * size)[..., None]
        of_rates = tf.reduce_sum(tfd.Beta(a, b).log_prob(rate), axis=-1)
        return of_rates + density(tfd.Normal, log_size, 2.0, 1.0)

    def log_likelihood(
        mean: tf.Tensor, log_size: tf.Tensor, rate: tf.Tensor, batch: Parts
    ) -> tf.Tensor:
        p = gathered(rate, batch["group"])
        return tfd.Binomial(batch["n"], probs=p).log_prob(batch["y"])

    data = {"n": n.astype(np.float64), "y": y.astype(np.float64), "group": np.arange(40)}
    shapes: dict[str, list[int]] = {"mean": [], "log_size": [], "rate": [40]}
    bijector = {"mean": tfb.Sigmoid(), "rate": tfb.Sigmoid()}
    return Posterior(log_prior, log_likelihood, data, shapes, bijector)


def meta_analysis() -> Posterior:
    """Returns twelve trials whose true effects are parameters around a mean."""
    rng = np.random.default_rng(14)
    error = rng.uniform(0.2, 0.6, 12)
    y = rng.normal(0.3 + rng.normal(0, 0.4, 12), error)

    def log_prior(mu: tf.Tensor, tau: tf.Tensor, theta: tf.Tensor) -> tf.Tensor:
        of_effects = tfd.Normal(mu[..., None], tau[..., None]).log_prob(theta)
        of_mean = density(tfd.Normal, mu, 0.0, 1.0) + density(tfd.HalfNormal, tau, 0.5)
        return tf.reduce_sum(of_effects, axis=-1) + of_mean

    def log_likelihood(mu: tf.Tensor, tau: tf.Tensor, theta: tf.Tensor, batch: Parts) -> tf.Tensor:
        return tfd.Normal(gathered(theta, batch["trial"]), batch["error"]).log_prob(batch["y"])

    data = {"y": y, "error": error, "trial": np.arange(12)}
    shapes: dict[str, list[int]] = {"mu": [], "tau": [], "theta": [12]}
    return Posterior(log_prior, log_likelihood, data, shapes, {"tau": tfb.Softplus()})


def volatility() -> Posterior:
    """Returns a series of 100 returns whose log variances are an autoregression, non-centred."""
    rng, h = np.random.default_rng(15), [0.0]
    for _ in range(99):
        h.append(0.9 * h[-1] + 0.4 * rng.standard_normal())
    y = np.exp((np.array(h) - 1) / 2) * rng.standard_normal(100)

    def log_prior(mu: tf.Tensor, phi: tf.Tensor, width: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        of_phi = density(tfd.Beta, (phi + 1) / 2, 10.0, 1.5)
        of_scale = density(tfd.HalfNormal, width, 0.5) + density(tfd.Normal, mu, 0.0, 3.0)
        return total(tfd.Normal, z, 0.0, 1.0) + of_phi + of_scale

    def log_likelihood(
        mu: tf.Tensor, phi: tf.Tensor, width: tf.Tensor, z: tf.Tensor, batch: Parts
    ) -> tf.Tensor:
        first = tf.concat([1 / tf.sqrt(1 - phi**2)[..., None], tf.ones_like(z[..., 1:])], axis=-1)
        log_variance = mu[..., None] + width[..., None] * recurrence(phi[..., None], first * z)
        scale = tf.exp(gathered(log_variance, batch["time"]) / 2)
        return tfd.Normal(tf.zeros_like(scale), scale).log_prob(batch["y"])

    data = {"y": y, "time": np.arange(100)}
    shapes: dict[str, list[int]] = {"mu": [], "phi": [], "width": [], "z": [100]}
    bijector = {"phi": tfb.Tanh(), "width": tfb.Exp()}
    return Posterior(log_prior, log_likelihood, data, shapes, bijector)


def radon_draws(posterior: Posterior, num_draws: int = 40_000) -> dict[str, np.ndarray]:
    """Returns draws of radon: both scales on a grid, and all else normal given the scales."""
    d, rng = posterior.data, np.random.default_rng(0)
    group, rows = np.eye(60)[d["county"]], len(d["y"])
    uranium = radon_counties()
    design = np.c_[np.ones(rows), uranium[d["county"]], d["floor"], group]
    gram, along, square = design.T @ design, design.T @ d["y"], d["y"] @ d["y"]
    prior = np.r_[np.full(3, 1 / 25), np.ones(60)]
    taus, sigmas = (
        np.arange(n) * step + low for n, step, low in ((120, 0.005, 0.0025), (80, 0.003, 0.62))
    )

    def given(tau: float, sigma: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Returns mean and Cholesky factor of the precision, and the log density of the scales."""
        scale = np.r_[np.ones(3), np.full(60, tau)]
        factor = np.linalg.cholesky(np.outer(scale, scale) * gram / sigma**2 + np.diag(prior))
        half = np.linalg.solve(factor, scale * along / sigma**2)
        log_density = (half @ half - square / sigma**2) / 2 - rows * np.log(sigma)
        log_density -= np.log(np.diag(factor)).sum() + tau**2 / 2 + sigma**2 / 8
        return np.linalg.solve(factor.T, half), factor, log_density

    cells = [(tau, sigma) for tau in taus for sigma in sigmas]
    logs = np.array([given(*cell)[2] for cell in cells])
    chances = np.exp(logs - logs.max())
    counts = rng.multinomial(num_draws, chances / chances.sum())
    found = []
    for (tau, sigma), count in zip(cells, counts, strict=True):
        if count:
            mean, factor, _ = given(tau, sigma)
            w = mean + np.linalg.solve(factor.T, rng.standard_normal([63, count])).T
            jitter = rng.uniform(-0.5, 0.5, [count, 2]) * [0.005, 0.003]
            found.append(np.c_[w, jitter + [tau, sigma]])
    w = np.concatenate(found)
    parts = {"mu": w[:, 0], "slope": w[:, 1], "floor": w[:, 2], "z": w[:, 3:63]}
    parts |= {"tau": w[:, 63], "sigma": w[:, 64]}
    at = parts["mu"][:, None] + parts["slope"][:, None] * uranium
    return {**parts, "theta": at + parts["tau"][:, None] * parts["z"]}


def meta_analysis_draws(posterior: Posterior, num_draws: int = 40_000) -> dict[str, np.ndarray]:
    """Returns draws of the trials: tau on a grid, and all else normal given tau."""
    d, rng = posterior.data, np.random.default_rng(0)
    y, error = d["y"], d["error"]
    tau = (np.arange(4000) + 0.5) * 0.0008
    precision = 1 / (tau[:, None] ** 2 + error**2)
    of_mean = precision.sum(axis=1) + 1
    mean = (precision * y).sum(axis=1) / of_mean
    logs = (np.log(precision).sum(axis=1) - np.log(of_mean) + of_mean * mean**2) / 2
    logs -= (precision * y**2).sum(axis=1) / 2 + 2 * tau**2
    chances = np.exp(logs - logs.max())
    at = rng.choice(len(tau), num_draws, p=chances / chances.sum())
    mu = mean[at] + rng.standard_normal(num_draws) / np.sqrt(of_mean[at])
    tau = tau[at] + rng.uniform(-0.0004, 0.0004, num_draws)
    share = tau[:, None] ** 2 / (tau[:, None] ** 2 + error**2)
    noise = rng.standard_normal([num_draws, 12]) * np.sqrt(share) * error
    return {"mu": mu, "tau": tau, "theta": mu[:, None] + share * (y - mu[:, None]) + noise}


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "radon": lambda: radon("z"),
    "radon_centred": lambda: radon("theta"),
    "varying_slopes": lambda: varying_slopes("z"),
    "varying_slopes_centred": lambda: varying_slopes("effects"),
    "crossed_effects": crossed_effects,
    "rates": rates,
    "meta_analysis": meta_analysis,
    "volatility": volatility,
}
CLOSED_FORMS: dict[str, Callable[[Posterior], dict[str, np.ndarray]]] = {
    "radon": radon_draws,
    "meta_analysis": meta_analysis_draws,
}
