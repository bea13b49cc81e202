"""The interface between preconditioners and samplers, and the constant matrices."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import array, numbers, require
from tfp_sgmcmc.internal.nest import (
    State,
    by_part,
    flatten_events,
    num_entries,
    squared_norm,
    sum_events,
    unflatten_events,
)

# The asymmetry allowed, relative to (M_ii M_jj)^(1/2). `float32` inverses from tf.linalg.inv reach
# 4e-4 at condition number 10^5.
_ASYMMETRY = 1e-3


class LocalMatrix(NamedTuple):
    """Operations with M at one state, on vectors in the structure of the state.

    Attributes:
      multiply: v -> M v.
      sqrt_multiply: z -> S z with S S^T = M.
      divergence: div M at the state, or None if it is zero.
      inverse_quadratic: v -> v^T M^-1 v, shape `[chains...]`, or None if it is unknown.
      log_det: log det M, shape `[chains...]` or broadcastable to it, or None if it is unknown.
    """

    multiply: Callable[[State], State]
    sqrt_multiply: Callable[[State], State]
    divergence: State | None = None
    inverse_quadratic: Callable[[State], tf.Tensor] | None = None
    log_det: Any = None


class GradientInfo(NamedTuple):
    """The gradient information of a step, from which adaptive preconditioners learn.

    Attributes:
      gradient: the gradient estimate of the log posterior (a sum over N examples).
      num_examples: N.
      probe: random signs, for preconditioners with `needs_curvature`.
      hessian_product: the estimate's Hessian times `probe`, for the same preconditioners.
    """

    gradient: State
    num_examples: int
    probe: State = None
    hessian_product: State = None


class Preconditioner(abc.ABC):
    """The base class of preconditioners.

    `chain_ndims` is the number of leading chain dimensions of the state. A preconditioner that
    learns keeps what it has learnt in `own`, which kernels carry from step to step.
    """

    #: Whether `evaluate` uses Hessian products.
    needs_curvature = False

    def init(self, state: State) -> Any:
        """Returns `own` before the first step."""
        del state
        return ()

    @abc.abstractmethod
    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        """Returns M at `state`, and the next `own`."""


class Diagonal(Preconditioner):
    """M = diag(scale): a constant scalar or diagonal matrix.

    Examples:
      >>> import tfp_sgmcmc as sgmcmc
      >>> m, _ = sgmcmc.preconditioners.Diagonal([4., 9.]).evaluate(tf.zeros([2]), chain_ndims=0)
      >>> m.sqrt_multiply(tf.ones([2])).numpy()
      array([2., 3.], dtype=float32)

    Args:
      scale: a positive number or array that broadcasts with every state part, or one for each part.

    Raises:
      TypeError: an entry is not a number.
      ValueError: an entry is not positive and finite.
    """

    def __init__(self, scale: Any):
        numbers("scale", scale, "a positive finite number")
        self.scale, self._name = scale, "scale"

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        scales = by_part(self._name, self.scale, state)
        log_scales = tf.nest.map_structure(
            lambda s, x: tf.math.log(s) + tf.zeros_like(x), scales, state
        )
        return LocalMatrix(
            multiply=lambda v: tf.nest.map_structure(tf.multiply, scales, v),
            sqrt_multiply=lambda v: tf.nest.map_structure(lambda s, x: tf.sqrt(s) * x, scales, v),
            inverse_quadratic=lambda v: sum_events(
                tf.nest.map_structure(lambda s, x: x**2 / s, scales, v), chain_ndims
            ),
            log_det=sum_events(log_scales, chain_ndims),
        ), own


class FullMatrix(Preconditioner):
    """M = a constant symmetric positive definite matrix over the whole state.

    Entries M_ij and M_ji, which are averaged, may differ by 0.001 (M_ii M_jj)^(1/2), as in a
    `float32` inverse. The constructor computes the Cholesky factor.

    Args:
      matrix: `[D, D]`, where D is the number of entries of all state parts of one chain, in the
        order of `tf.nest.flatten` and row-major within a part.

    Raises:
      TypeError: the matrix is not an array of numbers.
      ValueError: the matrix is not square, not symmetric or not positive definite. At the first
        step: its size differs from the size of the state.
    """

    def __init__(self, matrix: Any):
        matrix = array("matrix", matrix, least_ndim=0).astype(np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"matrix must be square, [D, D]. Received: shape {matrix.shape}.")
        scale = np.sqrt(np.abs(np.diag(matrix)))
        is_symmetric = np.all(np.abs(matrix - matrix.T) <= _ASYMMETRY * np.outer(scale, scale))
        require("matrix", "a matrix that is not", is_symmetric, "symmetric")
        matrix = (matrix + matrix.T) / 2
        try:
            factor = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError as error:
            raise ValueError(
                "matrix must be positive definite. Received: a matrix whose smallest eigenvalue is "
                f"{np.linalg.eigvalsh(matrix)[0]:.3g}."
            ) from error
        self.matrix, self._factor = matrix, factor
        self._whitener = np.linalg.inv(factor)
        self._log_det = 2 * np.sum(np.log(np.diag(factor)))

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        dtype = tf.nest.flatten(state)[0].dtype
        size = num_entries(state, chain_ndims)
        if size != len(self.matrix):
            raise ValueError(
                f"matrix must have shape [{size}, {size}], because a chain's state has {size} "
                f"entries. Received: shape {self.matrix.shape}."
            )

        def times(matrix: np.ndarray) -> Callable[[State], State]:
            with tf.init_scope():  # a captured tensor, not a constant in every compiled program
                transposed = tf.constant(matrix.T, dtype)

            def product(v: State) -> State:
                flat = flatten_events(v, chain_ndims)
                rows = flat if chain_ndims else flat[tf.newaxis]
                products = tf.linalg.matmul(rows, transposed)
                return unflatten_events(products if chain_ndims else products[0], v, chain_ndims)

            return product

        whiten = times(self._whitener)
        return LocalMatrix(
            multiply=times(self.matrix),
            sqrt_multiply=times(self._factor),
            inverse_quadratic=lambda v: squared_norm(whiten(v), chain_ndims),
            log_det=tf.constant(self._log_det, dtype),
        ), own


def as_preconditioner(value: Any) -> Preconditioner:
    """Returns a preconditioner unchanged, the identity for None, and `Diagonal` for numbers."""
    if isinstance(value, Preconditioner):
        return value
    value = 1.0 if value is None else value
    numbers("preconditioner", value, "a positive finite number")
    diagonal = Diagonal(value)
    diagonal._name = "preconditioner"  # in messages about its shape
    return diagonal
