"""Problems, and the pieces that several models share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions
BATCH_SIZE = 100  # of targets, which the automatic run may replace


class Moments(NamedTuple):
    """Means `[D]` and covariances `[D, D]` of all entries of the state, in its flat order."""

    mean: np.ndarray
    covariance: np.ndarray


class Problem(NamedTuple):
    """A posterior as a user brings it: functions, data and a start.

    Attributes:
      log_prior: parts -> log prior.
      log_likelihood: parts, batch -> log likelihood of each example.
      data: a nest of `float64` arrays, which are cast to the dtype of a target.
      start: one state, a nest of `float64` arrays, unconstrained.
      exact: computes the exact moments if that can be done; otherwise long HMC finds them.
      bijector: as in `MinibatchLogProb`; draws and moments are those of unconstrained parameters.
      out_of_reach: why nobody can promise right draws, so that the run must say so. Empty for
        posteriors that it must sample.
    """

    log_prior: Callable[..., Any]
    log_likelihood: Callable[..., Any]
    data: Any
    start: Any
    exact: Callable[[], Moments] | None = None
    bijector: Any = None
    out_of_reach: str = ""

    @property
    def num_examples(self) -> int:
        return len(tf.nest.flatten(self.data)[0])

    @property
    def dimension(self) -> int:
        return sum(np.size(x) for x in tf.nest.flatten(self.start))

    def state(self, dtype: str = "float32") -> Any:
        """Returns the start as tensors."""
        return tf.nest.map_structure(lambda x: tf.constant(x, dtype), self.start)

    def target(
        self, dtype: str = "float32", batch_size: int = BATCH_SIZE, **options: Any
    ) -> sgmcmc.MinibatchLogProb:
        return sgmcmc.MinibatchLogProb(
            self.log_prior,
            self.log_likelihood,
            tf.nest.map_structure(lambda x: np.asarray(x, dtype), self.data),
            min(batch_size, self.num_examples),
            bijector=self.bijector,
            **options,
        )


def normal_prior(scale: float = 1.0) -> Callable[..., Any]:
    """Returns the log density of independent N(0, scale^2) entries, without its constant."""
    return lambda w: -tf.reduce_sum((w / scale) ** 2, axis=-1) / 2


def bernoulli(w: tf.Tensor, batch: Any) -> tf.Tensor:
    logits = tf.linalg.matvec(batch["x"], w)
    return batch["y"] * logits - tf.math.softplus(logits)


def logistic(
    x: np.ndarray, y: np.ndarray, prior: Callable[..., Any] | None = None, **options: Any
) -> Problem:
    """Returns a logistic regression from the origin, by default with the prior N(0, I)."""
    data = {"x": x.astype(np.float64), "y": y.astype(np.float64)}
    start = options.pop("start", np.zeros(x.shape[1]))
    return Problem(prior or normal_prior(), bernoulli, data, start, **options)


def features(rng: np.random.Generator, num_examples: int, num_features: int) -> np.ndarray:
    """Returns a column of ones and independent N(0, 1) features, `[N, 1 + num_features]`."""
    return np.c_[np.ones(num_examples), rng.standard_normal([num_examples, num_features])]


def with_constant(x: np.ndarray) -> np.ndarray:
    """Returns standardised features behind a column of ones; constant columns are left out."""
    x = x[:, x.std(axis=0) > 0]
    return np.c_[np.ones(len(x)), (x - x.mean(axis=0)) / x.std(axis=0)]


def draw_labels(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return (rng.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(np.float64)


def by_quadrature(
    log_density: Callable[[np.ndarray], np.ndarray], grids: Sequence[np.ndarray]
) -> Moments:
    """Returns the moments of a density in few dimensions, points `[P, D]` -> log density `[P]`.

    The even grids, one for each dimension, must reach far into both tails and resolve the density.
    """
    mesh = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, len(grids))
    values = np.concatenate([log_density(part) for part in np.array_split(mesh, 256)])
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    mean = weights @ mesh
    return Moments(mean, (mesh - mean).T @ (weights[:, np.newaxis] * (mesh - mean)))
