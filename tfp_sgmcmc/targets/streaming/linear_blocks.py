"""Derivatives of blocks of rows whose log likelihoods are functions of one linear predictor.

Products of matrices give all of them at once.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, num_entries, unflatten_events
from tfp_sgmcmc.targets.base import value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb

NUM_PAIRS = 4  # of draws, each with its mirror image

_NUM_DIRECTIONS = 16  # that represent all in norms of rows
_MOST_ROUNDING = 1e-5  # rounding of a number that hides less than 0.1 % of a sum's least curvature


class Draws(NamedTuple):
    r"""The center `[D]`, z `[K, D]`, the draws less the center `[K, D]`, and L `[D, D]`.

    `stacked` has as rows the center, the draws and directions \( v_j \) with
    \( \sum_j (v_j^T x)^2 \approx |L^T x|^2 \). Programs take it as an argument, because XLA
    multiplies matrices that a program puts together several times slower.

    The directions are the columns of L, or 16 random combinations of them, whose products with the
    rows cost less (Johnson and Lindenstrauss 1984). They give |L^T x| with an error of about 16 %,
    so that a pool that is drawn by them needs 3 % more rows.
    """

    center: tf.Tensor
    z: tf.Tensor
    offsets: tf.Tensor
    factor: tf.Tensor
    stacked: tf.Tensor

    @classmethod
    def of(
        cls, center: Any, z: np.ndarray, offsets: np.ndarray, factor: np.ndarray, dtype: tf.DType
    ) -> Self:
        directions = factor.T
        if not _must_be_whitened(factor, dtype):
            directions = _mixture(len(factor)) @ directions
        stacked = np.concatenate([center[np.newaxis], center + offsets, directions])
        return cls(*(tf.constant(x, dtype) for x in (center, z, offsets, factor, stacked)))

    @classmethod
    def all_at(cls, theta: np.ndarray, factor: np.ndarray, dtype: tf.DType) -> Self:
        """Returns draws that are the center, for which remainders vanish."""
        zeros = np.zeros([2 * NUM_PAIRS, len(theta)])
        return cls.of(theta, zeros, zeros, factor, dtype)

    @property
    def is_whitened(self) -> bool:
        """Whether the directions are the columns of L, and Hessians are whitened by it.

        They are where L mixes columns so much that sums in single precision would lose the flat
        directions of a Hessian, and where there are so few of them that this costs nothing.
        """
        return _has_all_directions(self.stacked)


def _has_all_directions(stacked: tf.Tensor) -> bool:
    """Returns `Draws.is_whitened`, by the shape of `Draws.stacked`."""
    return stacked.shape[0] == 1 + 2 * NUM_PAIRS + stacked.shape[1]


def _must_be_whitened(factor: np.ndarray, dtype: tf.DType) -> bool:
    """Returns whether rounding hides part of the least eigenvalue, where that costs anything."""
    if len(factor) <= _NUM_DIRECTIONS:
        return True
    if not (factor - np.diag(np.diagonal(factor))).any():
        return False  # no columns are mixed
    scale = np.linalg.norm(np.linalg.inv(factor), axis=0)  # roots of the precision's diagonal
    scaled = scale[:, np.newaxis] * factor
    largest = np.linalg.eigvalsh(scaled @ scaled.T)[-1]  # of the inverse of the scaled precision
    return bool(np.finfo(dtype.as_numpy_dtype).eps * largest > _MOST_ROUNDING)


@functools.lru_cache(maxsize=8)
def _mixture(dim: int) -> np.ndarray:
    """Returns G with orthogonal rows, `[16, dim]`, and the mean of |G x|^2 equal to |x|^2."""
    normal = np.random.default_rng(0).standard_normal([dim, _NUM_DIRECTIONS])
    return (dim / _NUM_DIRECTIONS) ** 0.5 * np.linalg.qr(normal)[0].T


class Expansions(NamedTuple):
    r"""Expansions of rows' log likelihoods in the predictor \( \eta \), at the center.

    Attributes:
      values: log likelihoods, `[n]`.
      slopes: their first derivatives by \( \eta \), `[n]`.
      bends: their second derivatives, `[n]`.
      remainders: first derivatives at draws less their expansion, `[K, n]`.
      jacobian: J, the derivatives of predictors by the state, `[n, D]`.
      projections: products of the rows of J with the directions of `Draws`, `[E, n]`; if it is
        whitened, \( L^T J^T \), `[D, n]`.
    """

    values: tf.Tensor
    slopes: tf.Tensor
    bends: tf.Tensor
    remainders: tf.Tensor
    jacobian: tf.Tensor
    projections: tf.Tensor


class LinearBlocks:
    """Evaluates blocks of rows of a `LinearModel` of one predictor.

    Args:
      model: has the `LinearModel`.
      like: a state without chain dimensions.
    """

    def __init__(self, model: MinibatchLogProb, like: State):
        self._model, self._like = model, like

    def sums_and_norms(
        self, stacked: tf.Tensor, rows: Any, weights: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Returns weighted sums of values, gradients and Hessians, and `Moments.norms`.

        The Hessian is L^T H L if the draws are whitened, else H.

        Args:
          stacked: `Draws.stacked`.
          rows: a block.
          weights: of the rows, `[n]`.
        """
        found = self._expansions(stacked, rows)
        gradient = tf.linalg.matvec(found.jacobian, weights * found.slopes, transpose_a=True)
        bends = weights * found.bends
        if _has_all_directions(stacked):
            bent = bends * found.projections
            hessian = tf.linalg.matmul(bent, found.projections, transpose_b=True)
        else:
            bent = bends[:, tf.newaxis] * found.jacobian
            hessian = tf.linalg.matmul(bent, found.jacobian, transpose_a=True)
        return tf.reduce_sum(weights * found.values), gradient, hessian, _lengths(found)

    def moments(self, at: Draws, rows: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns `Moments`."""
        found = self._expansions(at.stacked, rows)
        if at.is_whitened:
            whitened = tf.transpose(found.projections)
        else:
            whitened = tf.linalg.matmul(found.jacobian, at.factor)
        remainders = found.remainders
        means = tf.reduce_mean(remainders, axis=0)[:, tf.newaxis] * whitened
        tilts = tf.linalg.matmul(remainders, at.z, transpose_a=True) * whitened / at.z.shape[0]
        return _lengths(found), means, tilts

    def _expansions(self, stacked: tf.Tensor, rows: Any) -> Expansions:
        jacobian, origin = self._predictor(rows)
        product = tf.linalg.matmul(stacked, jacobian, transpose_b=True)
        count = 1 + 2 * NUM_PAIRS
        eta = origin + product[:count]
        linear = self._model.linear_model
        assert linear is not None

        def derivatives(eta: tf.Tensor, probe: Any = None) -> Any:
            return value_and_gradient(
                lambda e: linear.log_prob(e, rows), eta, probe, connected=False
            )

        values, slopes, bends = derivatives(eta[0], tf.ones_like(eta[0]))
        remainders = derivatives(eta[1:])[1] - slopes - bends * (eta[1:] - eta[0])
        return Expansions(values, slopes, bends, remainders, jacobian, product[count:])

    def _predictor(self, rows: Any) -> tuple[tf.Tensor, Any]:
        """Returns J, `[n, D]`, and the predictors at a state of zeros, of which they are affine."""
        linear = self._model.linear_model
        if linear is not None and self._model.bijector is None:
            return linear.features(rows), 0.0
        dim, dtype = num_entries(self._like), tf.nest.flatten(self._like)[0].dtype
        at_zero = unflatten_events(tf.zeros([dim], dtype), self._like, 0)
        at_units = unflatten_events(tf.eye(dim, dtype=dtype), self._like, 0)
        origin = self._model.linear_predictor(at_zero, rows)
        return tf.transpose(self._model.linear_predictor(at_units, rows) - origin), origin


def is_simple(model: MinibatchLogProb) -> bool:
    """Returns whether a model is a `LinearModel` of one predictor."""
    linear = model.linear_model
    return linear is not None and linear.num_outputs is None


def _lengths(found: Expansions) -> tf.Tensor:
    """Returns root mean squares over draws of whitened remainders, `[n]`."""
    squares = tf.reduce_sum(found.projections**2, axis=0)
    return tf.sqrt(tf.reduce_mean(found.remainders**2, axis=0) * squares)
