"""Matrices that do not change: diagonal and full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.preconditioners.base import GradientInfo, LocalMatrix, Preconditioner
from tfp_sgmcmc.state import (
    State,
    check_broadcasts,
    flatten_events,
    match_structure,
    squared_norm,
    sum_events,
    unflatten_events,
)

# Of (M_ii M_jj)^(1/2). `float32` inverses by tf.linalg.inv reach 4e-4 at condition number 10^5.
_ASYMMETRY = 1e-3


class Diagonal(Preconditioner):
    """M = diag(scale): a constant scalar or diagonal matrix.

    >>> import tfp_sgmcmc as sgmcmc
    >>> m, _ = sgmcmc.preconditioners.Diagonal([4., 9.]).evaluate(tf.zeros([2]), chain_ndims=0)
    >>> m.sqrt_multiply(tf.ones([2])).numpy()
    array([2., 3.], dtype=float32)

    Args:
      scale: positive number or array that broadcasts with every state part, or a nest of them in
        the structure of the state.

    Raises:
      ValueError: an entry that is not positive and finite.
    """

    def __init__(self, scale: Any):
        # A list is a nest only where the state is one: `_scales` decides at the first state.
        for leaf in tf.nest.flatten(scale):
            value = tf.get_static_value(leaf) if tf.is_tensor(leaf) else np.asarray(leaf)
            if value is None:  # known when the program runs
                continue
            if not np.issubdtype(value.dtype, np.number):
                raise TypeError(f"scale is {leaf!r}; positive numbers are expected.")
            if not np.all((value > 0) & np.isfinite(value)):
                raise ValueError(f"scale is {leaf}; positive finite entries are expected.")
        self.scale = scale

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        scales = self._scales(state)
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

    def _scales(self, state: State) -> State:
        scale = self.scale

        def convert(x: tf.Tensor, s: Any) -> tf.Tensor:
            s = tf.cast(s, x.dtype) if tf.is_tensor(s) else tf.convert_to_tensor(s, x.dtype)
            check_broadcasts("scale", s, x)
            return s

        if not (tf.nest.is_nested(state) and tf.nest.is_nested(scale)):
            return tf.nest.map_structure(lambda x: convert(x, scale), state)
        return tree.map_structure_up_to(
            state, convert, state, match_structure("scale", scale, state)
        )


class FullMatrix(Preconditioner):
    """M = a constant symmetric positive definite matrix over the whole state.

    Its Cholesky factor is taken once, here. Entries across the diagonal may differ by 0.001
    (M_ii M_jj)^(1/2), as those of a `float32` inverse do, and are averaged.

    Args:
      matrix: `[D, D]`; D is the number of entries of all state parts of one chain, in the order of
        `tf.nest.flatten` and row-major within a part.

    Raises:
      ValueError: not square, not symmetric, not positive definite, or (at the first step) of
        another size than the state.
    """

    def __init__(self, matrix: Any):
        matrix = np.asarray(matrix, np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"matrix has shape {matrix.shape}; a square [D, D] is expected.")
        if not np.all(np.isfinite(matrix)):
            raise ValueError("matrix has NaN or infinite entries.")
        scale = np.sqrt(np.abs(np.diag(matrix)))
        if np.any(np.abs(matrix - matrix.T) > _ASYMMETRY * np.outer(scale, scale)):
            raise ValueError("matrix is not symmetric.")
        matrix = (matrix + matrix.T) / 2
        try:
            factor = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError as error:
            raise ValueError(
                "matrix is not positive definite: its smallest eigenvalue is "
                f"{np.linalg.eigvalsh(matrix)[0]:.3g}."
            ) from error
        self.matrix, self._factor = matrix, factor
        self._whitener = np.linalg.inv(factor)
        self._log_det = 2 * np.sum(np.log(np.diag(factor)))

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        dtype = tf.nest.flatten(state)[0].dtype
        size = flatten_events(state, chain_ndims).shape[-1]
        if size != len(self.matrix):
            raise ValueError(
                f"matrix has shape {self.matrix.shape}, but a chain's state has {size} entries."
            )

        def times(matrix: np.ndarray) -> Callable[[State], State]:
            with tf.init_scope():  # a captured tensor, not a constant in every compiled program
                transposed = tf.constant(matrix.T, dtype)

            def product(v: State) -> State:
                flat = flatten_events(v, chain_ndims)
                rows = flat if chain_ndims else flat[tf.newaxis]
                return unflatten_events(tf.linalg.matmul(rows, transposed), v, chain_ndims)

            return product

        whiten = times(self._whitener)
        return LocalMatrix(
            multiply=times(self.matrix),
            sqrt_multiply=times(self._factor),
            inverse_quadratic=lambda v: squared_norm(whiten(v), chain_ndims),
            log_det=tf.constant(self._log_det, dtype),
        ), own


def as_preconditioner(value: Any) -> Preconditioner:
    """Returns a preconditioner as it is, None as the identity, and numbers as `Diagonal`."""
    if isinstance(value, Preconditioner):
        return value
    return Diagonal(1.0 if value is None else value)
