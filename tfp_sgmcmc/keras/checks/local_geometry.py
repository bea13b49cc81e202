"""Measures the curvature of a log posterior and the noise of its gradient at one state."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import flatten_events, num_entries, unflatten_events
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.targets.base import value_and_gradient
from tfp_sgmcmc.targets.laplace.curvature import largest_eigenvalue

_GROUPS = 192  # whose gradients estimate the covariance of the noise
_MOST_BYTES = 2**28  # of these gradients
_ROWS = 512  # examples of the Hessian
_PROBES = 8  # products that estimate the trace of the Hessian
_PRODUCTS = 20  # at most, for its largest eigenvalue
_DIRECTIONS = 20
_MANY = 10  # groups per weight, from which on the same groups find and measure directions


class LocalGeometry(NamedTuple):
    """Curvature and gradient noise near one state, in coordinates where M is the identity.

    Noise is the covariance V of single examples' scores. The gradient of a batch then has the
    covariance c V, with c = N (N - n)/n.

    Attributes:
      scale: the diagonal of M, an array for each variable.
      noise: V along the noisiest directions, `[k]`.
      noise_of_diagonal: the diagonal part of V along these directions, `[k]`.
      mean_noise: the mean of the diagonal of V.
      curvature: the curvature along these directions, `[k]`.
      largest_curvature: the largest eigenvalue of M H.
      mean_curvature: the mean of the diagonal of M H.
      prior_curvature: the median over weights of the prior's curvature, which is the curvature of
        directions that the data do not determine; 0 if unknown.
      has_hessian: whether curvatures come from second derivatives. If not, they are N V, the
        curvature of a model that fits its data.
      directions: the noisiest directions, `[k, D]`, orthonormal.
    """

    scale: list[np.ndarray]
    noise: np.ndarray
    noise_of_diagonal: np.ndarray
    mean_noise: float
    curvature: np.ndarray
    largest_curvature: float
    mean_curvature: float
    prior_curvature: float
    has_hessian: bool
    directions: np.ndarray


class CompiledGradients:
    """Computes gradients and curvatures of one chain's log posterior at any state, compiled once.

    Args:
      chain: chains of the model.
    """

    def __init__(self, chain: Chain):
        self._structure: Any = None

        def estimate(state: list[tf.Tensor], leaves: list[tf.Tensor], probe: Any = None) -> Any:
            batch = keras.tree.pack_sequence_as(self._structure, leaves)
            target, seed = chain.target_of_one(batch), tf.zeros([2], tf.int32)
            return target.estimate(state, seed, probe=probe, with_scores=False)

        @tf.function(autograph=False)
        def gradient(state: list[tf.Tensor], leaves: list[tf.Tensor]) -> tf.Tensor:
            return flatten_events(estimate(state, leaves).gradient, 0)

        @tf.function(autograph=False)
        def product(state: list[tf.Tensor], leaves: list[tf.Tensor], v: tf.Tensor) -> tf.Tensor:
            found = estimate(state, leaves, unflatten_events(v, state, 0))
            return flatten_events(found.hessian_product, 0)

        self._gradient, self._product = gradient, product

    def gradient(self, state: list[tf.Tensor], batch: Any) -> np.ndarray:
        """Returns the gradient of the log posterior estimated from a batch, `[D]`."""
        self._structure = batch
        return self._gradient(state, keras.tree.flatten(batch)).numpy()

    def curve(self, state: list[tf.Tensor], batch: Any, vector: np.ndarray) -> np.ndarray:
        """Returns H v, `[D]`, where -H is the Hessian of this log posterior."""
        self._structure = batch
        v = tf.constant(vector, state[0].dtype)
        product = -self._product(state, keras.tree.flatten(batch), v).numpy().astype(np.float64)
        if not np.isfinite(product).all():
            raise ValueError("The second derivatives must be finite. Received: NaN or infinity.")
        return product


def measure_geometry(
    chain: Chain,
    compiled: CompiledGradients,
    source: Source,
    batch_size: int,
    scale: list[np.ndarray],
) -> LocalGeometry:
    """Measures curvature and noise at the state of the first chain.

    The covariance of the noise is estimated from the gradients of groups of examples, which works
    for every layer. If there are few groups for the number of weights, one half of them finds the
    noisiest directions and the other half measures the noise along them. Otherwise the largest
    sample variance would overestimate the noise.

    Args:
      chain: chains of the model.
      compiled: gradients of these chains, or of others over the same log posterior.
      source: data that are visible before the fit.
      batch_size: the largest size of a group.
      scale: the diagonal of M.
    """
    state, root = chain.first_state(), np.concatenate([np.sqrt(s).ravel() for s in scale])
    centred = _centred_gradients(chain, compiled, source, state, batch_size) * root
    parts = [centred] * 2 if len(centred) >= _MANY * len(root) else np.array_split(centred, 2)
    shown, measured = (_normalised(rows) for rows in parts)
    directions = _leading(shown)
    everything = _normalised(centred)
    squares = np.sum(everything**2, axis=0)
    noise = np.sum((measured @ directions.T) ** 2, axis=0)
    try:
        curvature, mean, largest = _curvatures(compiled, source, state, directions, root)
        has_hessian = True
    except (LookupError, NotImplementedError, ValueError, tf.errors.OpError):
        has_hessian, curvature = False, chain.num_examples * noise
        mean, largest = chain.num_examples * float(np.mean(squares)), float(np.max(curvature))
    return LocalGeometry(
        scale=scale,
        noise=noise,
        noise_of_diagonal=directions**2 @ squares,
        mean_noise=float(np.mean(squares)),
        curvature=curvature,
        largest_curvature=largest,
        mean_curvature=mean,
        prior_curvature=_prior_curvature(chain, state, root),
        has_hessian=has_hessian,
        directions=directions,
    )


def _centred_gradients(
    chain: Chain,
    compiled: CompiledGradients,
    source: Source,
    state: list[tf.Tensor],
    batch_size: int,
) -> np.ndarray:
    """Returns centred gradients of groups, `[groups, D]`, scaled to have the covariance V."""
    size = num_entries(state)
    most = max(4, min(_GROUPS, _MOST_BYTES // (4 * size)))
    total = source.num_examples or chain.num_examples
    width = max(1, min(batch_size, total // most))
    if any(isinstance(x, keras.layers.BatchNormalization) for x in internals.layers(chain.model)):
        width = batch_size  # its examples interact
    batch = source.batch(most * width)
    rows = keras.tree.flatten(batch)[0].shape[0]
    if rows < 4 * width and width < batch_size:
        width = max(1, rows // most)
    count = rows // width
    if count < 4:
        advice = "Give fit arrays, or sgmcmc.keras.IndependentBatches."
        if width == batch_size and rows >= 4:
            advice = f"Give a batch_size of at most {rows // 4}."
        raise ValueError(
            "The data must have at least four groups of examples to measure the noise of the "
            f"gradient. Received: {rows} examples in groups of {width}. {advice}"
        )
    order = np.random.default_rng(0).permutation(rows)
    gradients = []
    for i in range(count):
        chosen = tf.constant(order[i * width : (i + 1) * width])
        group = internals.map_arrays(lambda a, chosen=chosen: tf.gather(a, chosen), batch)
        gradients.append(compiled.gradient(state, group))
    found = np.stack(gradients).astype(np.float32)
    return (found - found.mean(axis=0)) * np.float32(width**0.5 / chain.num_examples)


def _normalised(rows: np.ndarray) -> np.ndarray:
    """Returns rows R whose product R^T R is the sample covariance."""
    return (rows - rows.mean(axis=0)) / max(len(rows) - 1, 1) ** 0.5


def _leading(rows: np.ndarray) -> np.ndarray:
    """Returns the leading eigenvectors of R^T R, `[k, D]`, from the smaller of R^T R and R R^T."""
    if rows.shape[1] <= len(rows):
        return np.linalg.eigh(rows.T @ rows)[1][:, : -_DIRECTIONS - 1 : -1].T
    values, vectors = np.linalg.eigh((rows @ rows.T).astype(np.float64))
    kept = slice(-min(_DIRECTIONS, len(rows) - 1), None)
    directions = (vectors[:, kept] / np.sqrt(np.maximum(values[kept], 1e-30))).T @ rows
    return (directions / np.linalg.norm(directions, axis=1, keepdims=True))[::-1]


def _curvatures(
    compiled: CompiledGradients,
    source: Source,
    state: list[tf.Tensor],
    directions: np.ndarray,
    root: np.ndarray,
) -> tuple[np.ndarray, float, float]:
    """Returns the curvatures along directions, their mean over all weights, and the largest."""
    batch, signs = source.batch(_ROWS), np.random.default_rng(1)

    def curve(v: np.ndarray) -> np.ndarray:
        return compiled.curve(state, batch, v)

    def curvature(direction: np.ndarray) -> float:
        return float(root * direction @ curve(root * direction))

    of_directions = np.array([curvature(u) for u in directions])
    probes = [curvature(signs.choice([-1.0, 1.0], len(root))) for _ in range(_PROBES)]
    start = signs.standard_normal(len(root))
    largest = largest_eigenvalue(curve, lambda v: root**2 * v, start, _PRODUCTS)
    return of_directions, float(np.mean(probes)) / len(root), largest


def _prior_curvature(chain: Chain, state: list[tf.Tensor], root: np.ndarray) -> float:
    """Returns the median over weights of the curvature of a prior with independent weights."""
    ones = [tf.ones_like(x) for x in state]

    def log_prior(values: list[tf.Tensor]) -> tf.Tensor:
        return tf.cast(chain.log_prior_fn(values), state[0].dtype)

    try:
        found = value_and_gradient(log_prior, state, ones, connected=False)[2]
    except (LookupError, NotImplementedError):
        return 0.0
    typical = float(np.median(-flatten_events(found, 0).numpy() * root**2))
    return typical if np.isfinite(typical) and typical > 0 else 0.0
