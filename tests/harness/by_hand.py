"""Steps of kernels with their draws, and estimates on the Gaussian-mean model in NumPy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import PRECISION, PRIOR_PRECISION, GaussianMean
from tfp_sgmcmc import random

MODEL = GaussianMean(num_examples=12)
START = np.array([[0.3, -0.5, 1.0], [2.0, 0.1, -0.7]])  # two chains
MOMENTUM = np.array([[0.2, 1.0, -0.4], [0.3, -1.5, 0.8]])
MASS = np.array([0.5, 1.0, 2.0])
FULL = np.array([[1.0, -0.3, 0.2], [-0.3, 0.6, 0.1], [0.2, 0.1, 0.8]])
SEED = tf.constant([5, 6])


class Draws(NamedTuple):
    """Indices of the minibatch, `[chains..., n]`, and z, `[chains..., D]`, in one step."""

    batch: np.ndarray
    z: np.ndarray


class Step(NamedTuple):
    """A step from theta to `moved`, both `[chains..., D]`, its draws, and its results."""

    theta: np.ndarray
    draws: Draws
    moved: np.ndarray
    results: Any


def draws(
    target: sgmcmc.MinibatchLogProb,
    state: Any,
    seed: Any,
    num_seeds: int = 2,
    noise: str = "normal",
) -> Draws:
    """Returns the draws of a kernel that splits its seed, for the minibatch, z and more."""
    batch, z = _draw(target, state, random.as_seed(seed), num_seeds, noise)
    return Draws(batch.numpy(), flat(z))


def _draw(
    target: Any, state: Any, seed: tf.Tensor, num_seeds: int, noise: str = "normal"
) -> tuple[tf.Tensor, Any]:
    batch_seed, noise_seed, *_ = random.split(seed, num_seeds)
    batch = target.draw(batch_seed, tf.range(target.batch_size), target.chain_shape(state))
    draw = {"normal": random.normal_like, "three_point": random.three_point_like}[noise]
    return batch, draw(state, noise_seed)


def take(
    kernel: Any, target: Any, state: Any, num_steps: int = 1, num_seeds: int = 2
) -> list[Step]:
    """Takes steps with the seeds SEED, SEED + 1 and so on."""
    results, steps = kernel.bootstrap_results(state), []
    noise = kernel.parameters.get("noise", "normal")
    for t in range(num_steps):
        theta, drawn = flat(state), draws(target, state, SEED + t, num_seeds, noise)
        state, results = kernel.one_step(state, results, SEED + t)
        steps.append(Step(theta, drawn, flat(state), results))
    return steps


def compiled(kernel: Any, target: Any, jit: bool, num_seeds: int = 2) -> Callable[..., Step]:
    """Returns a compiled step, a function of a state, a seed and, after the first, results.

    Normals and split seeds differ between modes, so the draws come from the same program.
    """

    @tf.function(jit_compile=jit, autograph=False)
    def traced(state: Any, seed: tf.Tensor, results: Any) -> Any:
        before = kernel.bootstrap_results(state) if results is None else results
        moved, after = kernel.one_step(state, before, seed)
        tf.nest.assert_same_structure(before, after)
        noise = kernel.parameters.get("noise", "normal")
        return moved, after, _draw(target, state, seed, num_seeds, noise)

    def step(state: Any, seed: tf.Tensor = SEED, results: Any = None) -> Step:
        moved, results, (batch, z) = traced(state, seed, results)
        return Step(flat(state), Draws(batch.numpy(), flat(z)), flat(moved), results)

    return step


def flat(state: Any) -> np.ndarray:
    """Concatenates all parts of a state into `[chains..., D]`."""
    return np.concatenate([np.asarray(x) for x in tf.nest.flatten(state)], axis=-1)


STRUCTURES = pytest.mark.parametrize(
    "structure",
    [
        *(pytest.param(x, marks=pytest.mark.thorough) for x in ([0, 0], {"a": 0, "b": 0})),
        *((0, 0), {"b": 0, "a": 0}),
    ],
    ids=str,
)


def two_parts(x: np.ndarray, structure: Any = None) -> Any:
    """Splits a state of D entries into parts of size 1 and D - 1; the inverse of `flat`."""
    parts = [tf.constant(x[..., :1]), tf.constant(x[..., 1:])]
    return tf.nest.pack_sequence_as([0, 0] if structure is None else structure, parts)


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


HAND = ByHand(MODEL)
