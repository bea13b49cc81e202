"""V on flat vectors: products, solves, square roots and draws of its forms, and the solvers."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.checks import integer, number, one_of, optional

Product = Callable[[tf.Tensor], tf.Tensor]  # [chains..., D] -> [chains..., D]

METHODS = ("auto", "cg", "cholesky", "lagged_cholesky", "woodbury")


class Solver(NamedTuple):
    """A method, with its options, that solves (diag(a) + b Sigma) x = v.

    Attributes:
      method: `"cg"`: conjugate gradients, preconditioned by the diagonal of the matrix.
        `"cholesky"`: a factorisation at each solve (`full` and `block`). `"lagged_cholesky"`:
        conjugate gradients, preconditioned by an inverse that is computed every `refactor_every`
        steps (`full` and `block`); as exact as `"cg"`, in few iterations. `"woodbury"`: a
        factorisation of the size of the kept rows (`low_rank`). `"auto"`: `"cg"` if XLA
        compiles the step, because its factorisations are slow on CPUs and GPUs, or if there are
        more kept rows than entries in one; otherwise a factorisation.
      tolerance: relative norm of the residual at which conjugate gradients stop. None stands for
        1e-5 in `float32` and 1e-10 in `float64`.
      max_iterations: number of iterations after which conjugate gradients stop in any case.
      refactor_every: number of steps between the factorisations of `"lagged_cholesky"`.
    """

    method: str = "auto"
    tolerance: float | None = None
    max_iterations: int = 500
    refactor_every: int = 100

    def factorises(self, worthwhile: bool = True) -> bool:
        """Returns whether each solve factorises. `"auto"` does so only if it is `worthwhile`."""
        if self.method != "auto":
            return self.method in ("cholesky", "woodbury")
        return worthwhile and not xla.in_xla_context()

    def conjugate_gradient(
        self, multiply: Product, rhs: tf.Tensor, precondition: Product
    ) -> tf.Tensor:
        """Solves for every chain. All chains iterate until the last one has converged."""
        tolerance = self.tolerance or (1e-10 if rhs.dtype == tf.float64 else 1e-5)
        target = tolerance**2 * _dot(rhs, rhs)

        def unfinished(i: tf.Tensor, x: tf.Tensor, r: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            return (i < self.max_iterations) & tf.reduce_any(_dot(r, r) > target)

        def body(
            i: tf.Tensor, x: tf.Tensor, r: tf.Tensor, p: tf.Tensor, rho: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            q = tf.ensure_shape(multiply(p), rhs.shape)  # may have an unknown number of chains
            # A chain that has converged to r = 0 waits for the others and must not compute 0 / 0,
            # as tf.linalg.experimental.conjugate_gradient would.
            step = tf.math.divide_no_nan(rho, _dot(p, q))
            x, r = x + step * p, r - step * q
            z = tf.ensure_shape(precondition(r), rhs.shape)
            rho, last = _dot(r, z), rho
            return i + 1, x, r, z + tf.math.divide_no_nan(rho, last) * p, rho

        z = tf.ensure_shape(precondition(rhs), rhs.shape)
        start = (tf.zeros([], tf.int32), tf.zeros_like(rhs), rhs, z, _dot(rhs, z))
        return tf.while_loop(unfinished, body, start, parallel_iterations=1)[1]


def as_solver(value: str | Solver) -> Solver:
    """Returns `value`, or the solver whose method it names.

    Raises ValueError for wrong options, and TypeError for options of a wrong type.
    """
    solver = value if isinstance(value, Solver) else Solver(value)
    one_of("solver" if solver is not value else "method of solver", solver.method, METHODS)
    optional(number, "tolerance", solver.tolerance, "in (0, 1)", lambda x: 0 < x < 1)
    integer("max_iterations", solver.max_iterations, 1)
    integer("refactor_every", solver.refactor_every, 1)
    return solver


def chebyshev_sqrt(
    multiply: Product,
    shift: tf.Tensor,
    scale: tf.Tensor,
    bound: tf.Tensor,
    vector: tf.Tensor,
    degree: int = 32,
) -> tf.Tensor:
    r"""Returns \( (a I + b \Sigma)^{1/2} v \) by a Chebyshev series in products with Sigma.

    The series interpolates max(a + b x, 0)^(1/2) at the Chebyshev points of [0, bound]. Its error
    falls as \( ((\sqrt k - 1)/(\sqrt k + 1))^{degree} \), where k is the ratio of the largest to
    the smallest value of a + b x on that interval.

    `multiply` is the product with Sigma, whose eigenvalues lie in [0, bound]. `shift`, a >= 0,
    `scale`, b of either sign, and `bound` are scalars or `[chains..., 1]`, `vector` is v,
    `[chains..., D]`, and `degree` the number of terms.
    """
    angles = np.pi * (np.arange(degree) + 0.5) / degree
    points = tf.constant((np.cos(angles) + 1) / 2, vector.dtype)
    to_series = 2 / degree * np.cos(np.outer(angles, np.arange(degree)))
    to_series[:, 0] /= 2
    values = tf.sqrt(tf.maximum(shift + scale * bound * points, 0))  # [chains..., degree]
    series = tf.tensordot(values, tf.constant(to_series, vector.dtype), axes=1)

    def mapped(x: tf.Tensor) -> tf.Tensor:  # Sigma with its eigenvalues moved to [-1, 1]
        return tf.math.divide_no_nan(2 * multiply(x), bound) - x

    def clenshaw(k: tf.Tensor, x: tf.Tensor, last: tf.Tensor) -> tuple[tf.Tensor, ...]:
        term = tf.gather(series, k, axis=-1)[..., tf.newaxis]
        # A product may have an unknown number of chains.
        return k - 1, tf.ensure_shape(term * vector + 2 * mapped(x) - last, vector.shape), x

    zero = tf.zeros_like(vector)
    _, x, last = tf.while_loop(
        lambda k, *_: k > 0, clenshaw, (tf.constant(degree - 1), zero, zero), parallel_iterations=1
    )
    return series[..., :1] * vector + mapped(x) - last


def _dot(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x * y, axis=-1, keepdims=True)


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
