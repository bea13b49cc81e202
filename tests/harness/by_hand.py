"""Draws and estimates of one step on the Gaussian-mean model, in NumPy."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import PRECISION, PRIOR_PRECISION, GaussianMean
from tfp_sgmcmc import random


class Draws(NamedTuple):
    """Indices of the minibatch, `[chains..., n]`, and z, `[chains..., D]`, in one step."""

    batch: np.ndarray
    z: np.ndarray


def draws(target: sgmcmc.MinibatchLogProb, state: Any, seed: Any) -> Draws:
    """Returns the draws of a kernel that splits its seed in two, for the minibatch and for z."""
    batch_seed, noise_seed = random.split(random.as_seed(seed), 2)
    positions = tf.range(target.batch_size)
    batch = target.draw(batch_seed, positions, target.chain_shape(state))
    return Draws(batch.numpy(), flat(random.normal_like(state, noise_seed)))


def flat(state: Any) -> np.ndarray:
    """Concatenates all parts of a state into `[chains..., D]`."""
    return np.concatenate([np.asarray(x) for x in tf.nest.flatten(state)], axis=-1)


def two_parts(x: np.ndarray) -> list[tf.Tensor]:
    """Splits a state of D entries into parts of size 1 and D - 1; the inverse of `flat`."""
    return [tf.constant(x[..., :1]), tf.constant(x[..., 1:])]


KEPT = {  # entries of V that an estimator keeps, for a state of the parts of `two_parts`
    "full": np.ones([3, 3]),
    "low_rank": np.ones([3, 3]),
    "diag": np.eye(3),
    "block": np.array([[1, 0, 0], [0, 1, 1], [0, 1, 1]]),
}


def as_estimator(kept: str) -> Any:
    """By default `low_rank` skips the latest minibatches. Here it uses the last one, too."""
    history = sgmcmc.covariance.History(4)
    return sgmcmc.covariance.LowRank(history) if kept == "low_rank" else kept


class ByHand:
    """Computes estimates from given minibatches of a `GaussianMean`."""

    def __init__(self, model: GaussianMean):
        self._model = model

    def scores(self, theta: np.ndarray, batch: np.ndarray) -> np.ndarray:
        return (self._model.data[batch] - theta[..., np.newaxis, :]) @ PRECISION

    def gradient(self, theta: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Returns g = grad log prior + N/n sum of scores."""
        scale = self._model.num_examples / batch.shape[-1]
        return -theta @ PRIOR_PRECISION + scale * self.scores(theta, batch).sum(axis=-2)

    def log_prob(self, theta: np.ndarray, batch: np.ndarray) -> np.ndarray:
        residual = self._model.data[batch] - theta[..., np.newaxis, :]
        likelihood = -0.5 * np.sum(residual * (residual @ PRECISION), axis=(-1, -2))
        prior = -0.5 * np.sum(theta * (theta @ PRIOR_PRECISION), axis=-1)
        return prior + self._model.num_examples / batch.shape[-1] * likelihood

    def covariance(self, theta: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Returns V of the minibatch with divisor n - 1, `[chains..., D, D]`."""
        centred = self.scores(theta, batch)
        centred = centred - centred.mean(axis=-2, keepdims=True)
        return np.einsum("...ni,...nj->...ij", centred, centred) / (batch.shape[-1] - 1)
