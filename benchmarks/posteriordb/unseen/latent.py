"""Latent structure: factors, mixtures, correlations, a Markov chain, Gaussian processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.posteriordb.posterior import Posterior, density, gathered
from benchmarks.posteriordb.processes import squared_exponential, with_diagonal
from benchmarks.posteriordb.unseen.outcomes import total

tfb, tfd = tfp.bijectors, tfp.distributions
Parts = Mapping[str, tf.Tensor]


def below_diagonal(matrix: tf.Tensor, diagonal: bool = False) -> tf.Tensor:
    """Returns the entries of `[..., D, D]` below the diagonal, or on it too, as a vector."""
    rows, columns = np.tril_indices(matrix.shape[-1], 0 if diagonal else -1)
    flat = tf.reshape(matrix, [*matrix.shape[:-2], matrix.shape[-1] ** 2])
    return tf.gather(flat, rows * matrix.shape[-1] + columns, axis=-1)


def factors(triangular: bool) -> Posterior:
    """Returns probabilistic principal components: two factors of five variables.

    Loadings that are not triangular can be rotated, so that only the covariance is known.
    """
    rng = np.random.default_rng(21)
    y = rng.standard_normal([150, 2]) @ rng.normal(0, 1.2, [2, 5]) + rng.normal(0, 0.6, [150, 5])
    rows, columns = np.nonzero(np.tril(np.ones([5, 2]))) if triangular else np.indices([5, 2])
    places = np.ravel(rows) * 2 + np.ravel(columns)
    diagonal = np.flatnonzero(np.ravel(rows) == np.ravel(columns))
    size = len(places)

    def covariance(w: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        if triangular:
            logs = tf.gather(w, diagonal, axis=-1)  # positive diagonal
            one_hot = tf.one_hot(diagonal, size, dtype=w.dtype)
            w = w + tf.linalg.matvec(one_hot, tf.exp(logs) - logs, transpose_a=True)
        spread = tf.one_hot(places, 10, dtype=w.dtype)
        matrix = tf.reshape(
            tf.linalg.matvec(spread, w, transpose_a=True),
            tf.concat([tf.shape(w)[:-1], [5, 2]], axis=0),
        )
        noise = sigma[..., None, None] ** 2 * tf.eye(5, dtype=w.dtype)
        return tf.matmul(matrix, matrix, transpose_b=True) + noise

    def log_prior(w: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        return total(tfd.Normal, w, 0.0, 1.0) + density(tfd.HalfNormal, sigma, 1.0)

    def log_likelihood(w: tf.Tensor, sigma: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        scale = tf.linalg.cholesky(covariance(w, sigma))[..., None, :, :]
        return tfd.MultivariateNormalTriL(tf.zeros([5], w.dtype), scale).log_prob(batch)

    def derived(parts: Parts) -> Parts:
        found = covariance(parts["w"], parts["sigma"])
        return {"covariance": below_diagonal(found, diagonal=True)}

    shapes: dict[str, list[int]] = {"w": [size], "sigma": []}
    hidden = () if triangular else ("w",)
    return Posterior(
        log_prior, log_likelihood, y, shapes, {"sigma": tfb.Exp()}, derived, hidden=hidden
    )


def correlations() -> Posterior:
    rng = np.random.default_rng(22)
    factor = np.linalg.cholesky(0.5 * np.eye(4) + 0.5)
    y = rng.standard_normal([200, 4]) @ factor.T * [1.0, 2.0, 0.5, 1.0]

    def log_prior(scale: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        lkj = tfd.CholeskyLKJ(4, concentration=tf.constant(2.0, factor.dtype))
        return total(tfd.HalfNormal, scale, 2.5) + lkj.log_prob(factor)

    def log_likelihood(scale: tf.Tensor, factor: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        tril = (scale[..., None] * factor)[..., None, :, :]
        return tfd.MultivariateNormalTriL(tf.zeros([4], scale.dtype), tril).log_prob(batch)

    def derived(parts: Parts) -> Parts:
        factor = tf.convert_to_tensor(parts["factor"])
        return {"correlation": below_diagonal(tf.matmul(factor, factor, transpose_b=True))}

    bijector = {"scale": tfb.Exp(), "factor": tfb.CorrelationCholesky()}
    return Posterior(log_prior, log_likelihood, y, {"scale": [4], "factor": [6]}, bijector, derived)


def mixture(num_components: int, ordered: bool) -> Posterior:
    """Returns a mixture of normals of one width; means that are not ordered can be permuted."""
    rng = np.random.default_rng(23)
    component = rng.integers(0, num_components, 400)
    y = rng.normal(3.0 * component - 2.0, 0.8)

    def log_prior(mu: tf.Tensor, sigma: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        dirichlet = tfd.Dirichlet(tf.fill([num_components], tf.constant(2.0, mu.dtype)))
        of_scale = density(tfd.HalfNormal, sigma, 2.0)
        return total(tfd.Normal, mu, 0.0, 5.0) + of_scale + dirichlet.log_prob(weight)

    def log_likelihood(
        mu: tf.Tensor, sigma: tf.Tensor, weight: tf.Tensor, batch: tf.Tensor
    ) -> tf.Tensor:
        parts = tfd.Normal(mu[..., None, :], sigma[..., None, None])
        values = parts.log_prob(batch[..., None]) + tf.math.log(weight)[..., None, :]
        return tf.reduce_logsumexp(values, axis=-1)

    shapes: dict[str, list[int]] = {"mu": [num_components], "sigma": []}
    shapes["weight"] = [num_components - 1]
    bijector = {"sigma": tfb.Exp(), "weight": tfb.IteratedSigmoidCentered()}
    bijector |= {"mu": tfb.Ascending()} if ordered else {}
    return Posterior(log_prior, log_likelihood, y, shapes, bijector)


def shares() -> Posterior:
    """Returns six shares with a Dirichlet prior, seen through a survey that misclassifies."""
    rng = np.random.default_rng(24)
    confusion = 0.7 * np.eye(6) + 0.3 * rng.dirichlet(np.ones(6), 6)
    y = rng.choice(6, 300, p=np.array([0.4, 0.3, 0.2, 0.06, 0.03, 0.01]) @ confusion)

    def log_prior(share: tf.Tensor) -> tf.Tensor:
        return tfd.Dirichlet(tf.ones([6], share.dtype)).log_prob(share)

    def log_likelihood(share: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        seen = tf.linalg.matvec(tf.constant(confusion.T, share.dtype), share)
        return tf.math.log(gathered(seen, batch))

    bijector = {"share": tfb.IteratedSigmoidCentered()}
    return Posterior(log_prior, log_likelihood, y, {"share": [5]}, bijector)


def markov_chain() -> Posterior:
    """Returns a hidden Markov chain of two states with ordered means; the series is one row."""
    rng, state = np.random.default_rng(25), 0
    states = []
    for _ in range(200):
        state = state if rng.random() < 0.9 else 1 - state
        states.append(state)
    y = rng.normal(np.where(states, 2.0, -1.0), 0.9)

    def log_prior(stay: tf.Tensor, mu: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        of_means = total(tfd.Normal, mu, 0.0, 3.0) + density(tfd.HalfNormal, sigma, 2.0)
        return total(tfd.Beta, stay, 8.0, 2.0) + of_means

    def log_likelihood(
        stay: tf.Tensor, mu: tf.Tensor, sigma: tf.Tensor, batch: tf.Tensor
    ) -> tf.Tensor:
        log_stay, log_leave = tf.math.log(stay), tf.math.log1p(-stay)
        parts = tfd.Normal(mu[..., None, None, :], sigma[..., None, None, None])
        rows = parts.log_prob(batch[..., None])  # [chains..., n, T, 2]
        stays, leaves = log_stay[..., None, None, :], log_leave[..., None, None, ::-1]
        # A step's matrix of log probabilities, from states in rows to states in columns.
        diagonal = stays + rows
        other = leaves + rows
        steps = tf.stack(
            [
                tf.stack([diagonal[..., 0], other[..., 1]], axis=-1),
                tf.stack([other[..., 0], diagonal[..., 1]], axis=-1),
            ],
            axis=-2,
        )[..., 1:, :, :]
        first = rows[..., :1, None, :] - np.log(2.0)
        first = tf.concat([first, tf.fill(tf.shape(first), tf.constant(-1e30, first.dtype))], -2)
        product = tfp.math.scan_associative(
            lambda a, b: tf.reduce_logsumexp(a[..., :, :, None] + b[..., None, :, :], axis=-2),
            tf.concat([first, steps], axis=-3),
            axis=-3,
        )
        return tf.reduce_logsumexp(product[..., -1, 0, :], axis=-1)

    shapes: dict[str, list[int]] = {"stay": [2], "mu": [2], "sigma": []}
    bijector = {"stay": tfb.Sigmoid(), "mu": tfb.Ascending(), "sigma": tfb.Exp()}
    return Posterior(log_prior, log_likelihood, y[np.newaxis], shapes, bijector)


POSITIVE = {"rho": tfb.Softplus(), "alpha": tfb.Softplus(), "sigma": tfb.Softplus()}


def process_regression() -> Posterior:
    rng = np.random.default_rng(26)
    x = np.sort(rng.uniform(-4, 4, 50))
    y = np.sin(x) + 0.2 * rng.standard_normal(50)

    def log_prior(rho: tf.Tensor, alpha: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        of_noise = density(tfd.HalfNormal, sigma, 1.0)
        of_width = density(tfd.InverseGamma, rho, 5.0, 5.0)
        return of_width + density(tfd.HalfNormal, alpha, 2.0) + of_noise

    def log_likelihood(
        rho: tf.Tensor, alpha: tf.Tensor, sigma: tf.Tensor, batch: Parts
    ) -> tf.Tensor:
        rho, alpha, sigma = (p[..., None] for p in (rho, alpha, sigma))
        covariance = squared_exponential(batch["x"], alpha, rho)
        scale = tf.linalg.cholesky(with_diagonal(covariance, sigma**2))
        return tfd.MultivariateNormalTriL(tf.zeros_like(batch["y"]), scale).log_prob(batch["y"])

    shapes: dict[str, list[int]] = {"rho": [], "alpha": [], "sigma": []}
    return Posterior(
        log_prior, log_likelihood, {"x": x[np.newaxis], "y": y[np.newaxis]}, shapes, POSITIVE
    )


def process_classification() -> Posterior:
    """Returns a Gaussian process behind a logistic likelihood, its values as standard normals."""
    rng = np.random.default_rng(27)
    x = np.sort(rng.uniform(-3, 3, 40))
    y = (rng.random(40) < 1 / (1 + np.exp(-3 * np.sin(1.5 * x)))).astype(np.float64)

    def log_prior(rho: tf.Tensor, alpha: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        of_width = density(tfd.InverseGamma, rho, 5.0, 5.0) + density(tfd.HalfNormal, alpha, 2.0)
        return total(tfd.Normal, z, 0.0, 1.0) + of_width

    def log_likelihood(rho: tf.Tensor, alpha: tf.Tensor, z: tf.Tensor, batch: Parts) -> tf.Tensor:
        covariance = squared_exponential(tf.constant(x, z.dtype), alpha, rho)
        covariance = with_diagonal(covariance, tf.constant(1e-4, z.dtype))
        f = tf.linalg.matvec(tf.linalg.cholesky(covariance), z)
        return tfd.Bernoulli(logits=gathered(f, batch["point"])).log_prob(batch["y"])

    data = {"y": y, "point": np.arange(40)}
    shapes: dict[str, list[int]] = {"rho": [], "alpha": [], "z": [40]}
    bijector = {"rho": tfb.Softplus(), "alpha": tfb.Softplus()}
    return Posterior(log_prior, log_likelihood, data, shapes, bijector)


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "factors": lambda: factors(triangular=True),
    "factors_rotated": lambda: factors(triangular=False),
    "correlations": correlations,
    "mixture_ordered": lambda: mixture(3, ordered=True),
    "mixture_symmetric": lambda: mixture(2, ordered=False),
    "shares": shares,
    "markov_chain": markov_chain,
    "process_regression": process_regression,
    "process_classification": process_classification,
}
