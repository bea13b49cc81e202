"""V on flat vectors: products, solves and draws of diagonal, dense and low-rank matrices."""

from __future__ import annotations

import abc

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance.solvers import Solver, chebyshev_sqrt


class Matrix(abc.ABC):
    """V on flat vectors `[chains..., D]`. Numbers a and b are scalars or `[chains..., 1]`."""

    @abc.abstractmethod
    def multiply(self, x: tf.Tensor) -> tf.Tensor:
        """Returns V x."""

    @abc.abstractmethod
    def solve(self, shift: tf.Tensor, scale: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """Returns (diag(shift) + scale V)^-1 x for a `shift` of shape `[chains..., D]`."""

    def sqrt_multiply(
        self, shift: tf.Tensor, scale: tf.Tensor, bound: tf.Tensor, z: tf.Tensor
    ) -> tf.Tensor:
        """Returns S z with S S^T = shift I + scale V, if V has its eigenvalues in [0, bound]."""
        return chebyshev_sqrt(self.multiply, shift, scale, bound, z)

    @abc.abstractmethod
    def diag_part(self) -> tf.Tensor:
        """Returns the diagonal of V, `[chains..., D]`."""

    @abc.abstractmethod
    def draw(self, shift: tf.Tensor, scale: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Draws from N(0, diag(shift) + scale V) for a `shift` of shape `[chains..., D]`."""


class DiagonalMatrix(Matrix):
    """V = diag(v), with v of shape `[chains..., D]`."""

    def __init__(self, diagonal: tf.Tensor):
        self._diagonal = diagonal

    def multiply(self, x: tf.Tensor) -> tf.Tensor:
        return self._diagonal * x

    def solve(self, shift: tf.Tensor, scale: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return x / (shift + scale * self._diagonal)

    def sqrt_multiply(
        self, shift: tf.Tensor, scale: tf.Tensor, bound: tf.Tensor, z: tf.Tensor
    ) -> tf.Tensor:
        del bound
        return tf.sqrt(tf.maximum(shift + scale * self._diagonal, 0)) * z

    def diag_part(self) -> tf.Tensor:
        return self._diagonal

    def draw(self, shift: tf.Tensor, scale: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(shift + scale * self._diagonal) * random.normal_like(shift, seed)


class DenseMatrix(Matrix):
    """V as a tensor of shape `[chains..., D, D]`.

    An `inverse` of an earlier diag(shift) + scale V preconditions conjugate gradients.
    """

    def __init__(self, matrix: tf.Tensor, solver: Solver, inverse: tf.Tensor | None = None):
        self._matrix, self._solver, self._inverse = matrix, solver, inverse

    def multiply(self, x: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matvec(self._matrix, x)

    def shifted(self, shift: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """Returns diag(shift) + scale V, `[chains..., D, D]`."""
        return tf.linalg.diag(shift) + self._scaled(scale)

    def solve(self, shift: tf.Tensor, scale: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        if self._solver.factorises():
            factor = tf.linalg.cholesky(self.shifted(shift, scale))
            return tf.linalg.cholesky_solve(factor, x[..., tf.newaxis])[..., 0]
        inverse, diagonal = self._inverse, shift + scale * self.diag_part()
        return self._solver.conjugate_gradient(
            lambda p: shift * p + scale * self.multiply(p),
            x,
            lambda r: r / diagonal if inverse is None else tf.linalg.matvec(inverse, r),
        )

    def diag_part(self) -> tf.Tensor:
        return tf.linalg.diag_part(self._matrix)

    def draw(self, shift: tf.Tensor, scale: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        factor = tf.linalg.cholesky(self.shifted(shift, scale))
        return tf.linalg.matvec(factor, random.normal_like(shift, seed))

    def plus(self, scale: tf.Tensor, matrix: tf.Tensor) -> DenseMatrix:
        """Returns scale V + matrix."""
        return DenseMatrix(self._scaled(scale) + matrix, self._solver, self._inverse)

    def preconditioned(self, inverse: tf.Tensor) -> DenseMatrix:
        """Returns the same matrix with another `inverse`."""
        return DenseMatrix(self._matrix, self._solver, inverse)

    def _scaled(self, scale: tf.Tensor) -> tf.Tensor:
        return (scale[..., tf.newaxis] if scale.shape.rank else scale) * self._matrix


class LowRankMatrix(Matrix):
    """V = R^T diag(w) R, with R of shape `[chains..., rows, D]` and w `[chains..., rows]`."""

    def __init__(self, rows: tf.Tensor, weights: tf.Tensor, solver: Solver):
        self._rows, self._weights, self._solver = rows, weights, solver

    def multiply(self, x: tf.Tensor) -> tf.Tensor:
        coordinates = self._weights * tf.linalg.matvec(self._rows, x)
        return tf.linalg.matvec(self._rows, coordinates, transpose_a=True)

    def solve(self, shift: tf.Tensor, scale: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        num_rows, size = self._rows.shape[-2:]
        if self._solver.factorises(worthwhile=num_rows <= size):
            width = tf.sqrt(self._weights * scale)[..., tf.newaxis, :]
            return tf.linalg.LinearOperatorLowRankUpdate(  # solves by Woodbury's identity
                tf.linalg.LinearOperatorDiag(shift, is_positive_definite=True),
                tf.linalg.matrix_transpose(self._rows) * width,
                is_self_adjoint=True,
                is_positive_definite=True,
            ).solvevec(x)
        diagonal = shift + scale * self.diag_part()
        return self._solver.conjugate_gradient(
            lambda p: shift * p + scale * self.multiply(p), x, lambda r: r / diagonal
        )

    def diag_part(self) -> tf.Tensor:
        return tf.reduce_sum(self._weights[..., tf.newaxis] * tf.square(self._rows), axis=-2)

    def draw(self, shift: tf.Tensor, scale: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        seeds = random.split(seed, 2)
        coordinates = tf.sqrt(scale * self._weights) * random.normal_like(self._weights, seeds[0])
        rest = tf.sqrt(shift) * random.normal_like(shift, seeds[1])
        return rest + tf.linalg.matvec(self._rows, coordinates, transpose_a=True)
