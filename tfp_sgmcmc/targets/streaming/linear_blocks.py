"""Second-order expansions of linear models in blocks of rows, by one product of matrices."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, unflatten_events
from tfp_sgmcmc.targets.base import value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb

NUM_PAIRS = 4  # of draws, each with its mirror image


class Draws(NamedTuple):
    """The center `[D]`, z `[K, D]`, the draws less the center `[K, D]`, and L `[D, D]`.

    `stacked` has the center, the draws and the columns of L as its rows. Programs take it as an
    argument, because XLA multiplies matrices that a program puts together several times slower.
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
        stacked = np.concatenate([center[np.newaxis], center + offsets, factor.T])
        return cls(*(tf.constant(x, dtype) for x in (center, z, offsets, factor, stacked)))

    @classmethod
    def all_at(cls, theta: np.ndarray, dtype: tf.DType) -> Self:
        """Returns draws that are the center, for which remainders vanish."""
        dim = len(theta)
        zeros = np.zeros([2 * NUM_PAIRS, dim])
        return cls.of(theta, zeros, zeros, np.zeros([dim, dim]), dtype)


class Expansions(NamedTuple):
    r"""Expansions of rows' log likelihoods in the predictor \( \eta \), at the center.

    Attributes:
      values: log likelihoods, `[n]`.
      slopes: their first derivatives by \( \eta \), `[n]`.
      bends: their second derivatives, `[n]`.
      remainders: first derivatives at draws less their expansion, `[K, n]`.
      jacobian: J, the derivatives of predictors by the state, `[n, D]`.
      whitened: \( L^T J^T \), `[D, n]`.
    """

    values: tf.Tensor
    slopes: tf.Tensor
    bends: tf.Tensor
    remainders: tf.Tensor
    jacobian: tf.Tensor
    whitened: tf.Tensor


class LinearBlocks:
    """Evaluates blocks of rows of a `LinearModel` of one predictor.

    Args:
      model: has the `LinearModel`.
      like: a state without chain dimensions.
    """

    def __init__(self, model: MinibatchLogProb, like: State):
        self._model, self._like = model, like

    def sums_and_norms(self, at: Draws, rows: Any, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns weighted sums of values, gradients and Hessians, and `Moments.norms`."""
        found = self.expansions(at, rows)
        gradient = tf.linalg.matvec(found.jacobian, weights * found.slopes, transpose_a=True)
        bent = (weights * found.bends)[:, tf.newaxis] * found.jacobian
        hessian = tf.linalg.matmul(bent, found.jacobian, transpose_a=True)
        return tf.reduce_sum(weights * found.values), gradient, hessian, lengths(found)

    def moments(self, at: Draws, rows: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns `Moments`."""
        found = self.expansions(at, rows)
        directions, remainders = tf.transpose(found.whitened), found.remainders
        means = tf.reduce_mean(remainders, axis=0)[:, tf.newaxis] * directions
        tilts = tf.linalg.matmul(remainders, at.z, transpose_a=True) * directions / at.z.shape[0]
        return lengths(found), means, tilts

    def expansions(self, at: Draws, rows: Any) -> Expansions:
        jacobian, origin = self._predictor(rows)
        product = tf.linalg.matmul(at.stacked, jacobian, transpose_b=True)
        count = 1 + at.offsets.shape[0]
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
        dim = sum(x.shape.num_elements() for x in tf.nest.flatten(self._like))
        dtype = tf.nest.flatten(self._like)[0].dtype
        at_zero = unflatten_events(tf.zeros([dim], dtype), self._like, 0)
        at_units = unflatten_events(tf.eye(dim, dtype=dtype), self._like, 0)
        origin = self._model.linear_predictor(at_zero, rows)
        return tf.transpose(self._model.linear_predictor(at_units, rows) - origin), origin


def is_simple(model: MinibatchLogProb) -> bool:
    """Returns whether a model is a `LinearModel` of one predictor."""
    linear = model.linear_model
    return linear is not None and linear.num_outputs is None


def lengths(found: Expansions) -> tf.Tensor:
    """Returns root mean squares over draws of whitened remainders, `[n]`."""
    squares = tf.reduce_sum(found.whitened**2, axis=0)
    return tf.sqrt(tf.reduce_mean(found.remainders**2, axis=0) * squares)
