"""V on flat vectors: products, solves, square roots and draws of its forms, and the solvers.

`NoiseCovariance` has the same operations with Sigma = c V, on states.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.checks import a_type, integer, number, one_of, optional
from tfp_sgmcmc.internal.nest import (
    MANY_PARTS,
    State,
    as_dtype,
    flatten_events,
    of_all_parts,
    unflatten_events,
    wide,
)

Product = Callable[[tf.Tensor], tf.Tensor]  # [chains..., D] -> [chains..., D]

METHODS = ("auto", "cg", "cholesky", "lagged_cholesky", "woodbury")


class Solver(NamedTuple):
    """A method, with its options, that solves (diag(a) + b Sigma) x = v.

    Attributes:
      method: `"cg"`: conjugate gradients, preconditioned by the diagonal of the matrix.
        `"cholesky"`: a factorisation at each solve (`full` and `block`). `"lagged_cholesky"`:
        conjugate gradients, preconditioned by an inverse that is computed every `refactor_every`
        steps (`full` and `block`); as exact as `"cg"`, in few iterations, for as much memory again.
        It is faster from some hundred entries on: a step of SGFS took 60 ms with `"cg"` and 22 with
        it at D = 1,000 on a CPU, and 25 and 1.6 ms at D = 2,647 (three chains) on an H200.
        `"woodbury"`: a factorisation of the size of the kept rows (`low_rank`). `"auto"`: `"cg"` if
        XLA compiles the step, because its factorisations are slow on CPUs and GPUs, or if there are
        more kept rows than entries in one; otherwise a factorisation.
      tolerance: relative norm of the residual at which conjugate gradients stop. None stands for
        1e-5 in `float32`, 1e-10 in `float64` and 1e-2 in half precision.
      max_iterations: number of iterations after which conjugate gradients stop in any case.
      refactor_every: number of steps between the factorisations of `"lagged_cholesky"`, which also
        factorises at steps 1, 2, 4, 8, ..., because averages change fast at first.
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
        """Solves for every chain. All chains iterate until the last one has converged.

        The solution is NaN where `rhs` or its square is not finite.
        """
        tolerance = self.tolerance or {tf.float64: 1e-10, tf.float32: 1e-5}.get(rhs.dtype, 1e-2)
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
        x = tf.while_loop(unfinished, body, start, parallel_iterations=1)[1]
        return tf.where(tf.math.is_finite(target), x, np.nan)


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


def inverse_or_diagonal(matrix: tf.Tensor) -> tf.Tensor:
    """Returns the inverse of positive definite matrices by a Cholesky factor.

    `tf.linalg.inv` takes a QR decomposition in XLA, which is far slower. For a matrix that is not
    positive definite in this precision, it returns the inverse of the diagonal.
    """
    at_least_single = wide(matrix)
    eye = tf.eye(tf.shape(matrix)[-1], dtype=at_least_single.dtype)
    factor = tf.linalg.cholesky(at_least_single)
    root = tf.linalg.triangular_solve(factor, eye + tf.zeros_like(at_least_single))
    found = tf.cast(tf.matmul(root, root, transpose_a=True), matrix.dtype)
    is_finite = tf.reduce_all(tf.math.is_finite(found), axis=[-2, -1], keepdims=True)
    diagonal = tf.linalg.diag(tf.math.reciprocal_no_nan(tf.linalg.diag_part(matrix)))
    return tf.where(is_finite, found, diagonal)


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
            factor = tf.linalg.cholesky(wide(self.shifted(shift, scale)))
            found = tf.linalg.cholesky_solve(factor, wide(x)[..., tf.newaxis])[..., 0]
            return tf.cast(found, x.dtype)
        inverse, diagonal = self._inverse, shift + scale * self.diag_part()
        return self._solver.conjugate_gradient(
            lambda p: shift * p + scale * self.multiply(p),
            x,
            lambda r: r / diagonal if inverse is None else tf.linalg.matvec(inverse, r),
        )

    def diag_part(self) -> tf.Tensor:
        return tf.linalg.diag_part(self._matrix)

    def draw(self, shift: tf.Tensor, scale: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        factor = tf.linalg.cholesky(wide(self.shifted(shift, scale)))
        return tf.linalg.matvec(tf.cast(factor, shift.dtype), random.normal_like(shift, seed))

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


class NoiseCovariance:
    """Sigma = c V at one step. Every vector has the structure and shapes of the state.

    Args:
      matrices: V on each group of parts.
      groups: for each matrix, the indices of its parts in the order of `tf.nest.flatten`.
      noise_scale: c.
      like: the state of the chains.
      chain_ndims: number of its leading chain dimensions.
    """

    def __init__(
        self,
        matrices: Sequence[Matrix],
        groups: Sequence[Sequence[int]],
        noise_scale: Any,
        like: State,
        chain_ndims: int,
    ):
        self._matrices, self._groups, self._like = matrices, groups, like
        self._parts, self._chain_ndims = tf.nest.flatten(like), chain_ndims
        self._noise_scale = self._number(noise_scale)

    def multiply(self, v: State) -> State:
        """Returns Sigma v."""
        return self._map(lambda m, x: self._noise_scale * m.multiply(x), v)

    def solve(self, shift: State, scale: Any, v: State) -> State:
        """Returns (diag(shift) + scale Sigma)^-1 v.

        `shift` > 0 is a number, or a nest that broadcasts with the state; `scale` >= 0 a number or
        `[chains...]`.
        """
        scale = self._number(scale) * self._noise_scale
        return self._map(lambda m, x, a: m.solve(a, scale, x), v, self._broadcast(shift))

    def diag_part(self) -> State:
        """Returns the diagonal of Sigma, in the structure of the state."""
        zeros = tf.nest.map_structure(tf.zeros_like, self._like)
        return self._map(lambda m, _: self._noise_scale * m.diag_part(), zeros)

    def plus(self, matrix: tf.Tensor) -> NoiseCovariance:
        """Returns Sigma + matrix, `[chains..., D, D]`; raises TypeError unless Sigma is dense."""
        (dense,) = self._matrices
        if not isinstance(dense, DenseMatrix):
            raise TypeError(f"Sigma must be a DenseMatrix. Received: {a_type(dense)}.")
        total = dense.plus(self._noise_scale, matrix)
        return NoiseCovariance([total], self._groups, 1.0, self._like, self._chain_ndims)

    def draw(self, shift: State, scale: Any, seed: tf.Tensor) -> State:
        """Draws from N(0, diag(shift) + scale Sigma) by a factor, with the arguments of `solve`."""
        scale, count = self._number(scale) * self._noise_scale, len(self._matrices)
        seeds = iter(random.split(seed, count) if count > 1 else [seed])
        return self._map(lambda m, a: m.draw(a, scale, next(seeds)), self._broadcast(shift))

    def inverses(self, shift: State, scale: Any) -> list[tf.Tensor]:
        """Returns (diag(shift) + scale Sigma)^-1, `[chains..., D, D]`, for each dense group."""
        scale, inverses = self._number(scale) * self._noise_scale, []
        for matrix, group in zip(self._matrices, self._groups, strict=True):
            flat = self._flat([self._broadcast(shift)[i] for i in group])
            if isinstance(matrix, DenseMatrix):
                inverses.append(inverse_or_diagonal(matrix.shifted(flat, scale)))
        return inverses

    def sqrt_multiply(self, shift: Any, scale: Any, bound: Any, z: State) -> State:
        """Returns S z with S S^T = shift I + scale Sigma.

        Arguments are numbers or `[chains...]`. With a negative `scale`, eigenvalues of S S^T that
        would be negative count as zero. `bound` is at least Sigma's largest eigenvalue; a diagonal
        Sigma ignores it.
        """
        shift, c = self._number(shift), self._noise_scale
        scale, bound = self._number(scale) * c, tf.math.divide_no_nan(self._number(bound), c)
        return self._map(lambda m, x: m.sqrt_multiply(shift, scale, bound, x), z)

    def sample(self, shift: Any, scale: Any, bound: Any, seed: tf.Tensor) -> State:
        """Draws from N(0, shift I + scale Sigma), with the arguments of `sqrt_multiply`."""
        return self.sqrt_multiply(shift, scale, bound, random.normal_like(self._like, seed))

    def power_iteration(self, v: State, num_iterations: int = 2) -> tuple[tf.Tensor, State]:
        """Estimates the largest eigenvalue of Sigma, `[chains...]`, from below, and its vector.

        The iteration begins at `v`. Few iterations are enough if the unit vector is carried from
        step to step. A diagonal Sigma gives the exact value, and `v` unchanged.
        """

        def norm(flat: list[tf.Tensor]) -> tf.Tensor:
            x = flat[0] if len(flat) == 1 else tf.concat(flat, axis=-1)
            largest = tf.reduce_max(tf.abs(x), axis=-1, keepdims=True)  # squares may overflow
            squares = tf.square(tf.math.divide_no_nan(x, largest))
            return largest * tf.sqrt(tf.reduce_sum(squares, axis=-1, keepdims=True))

        def product(m: Matrix, x: tf.Tensor) -> tf.Tensor:
            return self._noise_scale * m.multiply(x)

        flat = self._by_group(v)
        if all(isinstance(m, DiagonalMatrix) for m in self._matrices):
            diagonals = map(product, self._matrices, map(tf.ones_like, flat))
            largest = [tf.reduce_max(x, axis=-1) for x in diagonals]
            return of_all_parts(tf.maximum, largest), v
        size = norm(flat)
        unit = [tf.math.divide_no_nan(x, size) for x in flat]
        for _ in range(num_iterations):
            products = [*map(product, self._matrices, unit)]
            size = norm(products)
            unit = [  # the vector is kept while Sigma is still zero
                tf.where(size > 0, x / size, u) for x, u in zip(products, unit, strict=True)
            ]
        return size[..., 0], self._as_state(unit)

    def preconditioned(self, inverses: Sequence[tf.Tensor]) -> NoiseCovariance:
        """Returns the same Sigma with `inverses` that precondition conjugate gradients."""
        other, pairs = copy.copy(self), zip(self._matrices, inverses, strict=True)
        other._matrices = [m.preconditioned(x) for m, x in pairs if isinstance(m, DenseMatrix)]
        return other

    def _map(self, fn: Callable[..., tf.Tensor], *vectors: Any) -> State:
        """Applies `fn(matrix, *flat_vectors)` to each group and packs the results as the state."""
        flat = zip(self._matrices, *map(self._by_group, vectors), strict=True)
        return self._as_state([fn(*given) for given in flat])

    def _by_group(self, vector: Any) -> list[tf.Tensor]:
        """Returns the entries of each group's parts, `[chains..., D]`."""
        leaves = tf.nest.flatten(vector)
        return [self._flat([leaves[i] for i in group]) for group in self._groups]

    def _as_state(self, flat: Sequence[tf.Tensor]) -> State:
        """Packs the vectors of all groups as the state."""
        found: dict[int, tf.Tensor] = {}
        for x, group in zip(flat, self._groups, strict=True):
            parts = unflatten_events(x, [self._parts[i] for i in group], self._chain_ndims)
            found |= dict(zip(group, parts, strict=True))
        return tf.nest.pack_sequence_as(self._like, [found[i] for i in range(len(found))])

    def _broadcast(self, shift: State) -> list[tf.Tensor]:
        shifts = tf.nest.flatten(shift)
        shifts = shifts if tf.nest.is_nested(shift) else shifts * len(self._parts)
        pairs = zip(shifts, self._parts, strict=True)
        return [tf.broadcast_to(tf.convert_to_tensor(a, x.dtype), tf.shape(x)) for a, x in pairs]

    def _flat(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        flat = flatten_events(parts, self._chain_ndims)
        # Not materialized, each entry would be looked up among many parts wherever it is used.
        return flat if len(parts) < MANY_PARTS else xla.materialized(flat)

    def _number(self, x: Any) -> tf.Tensor:
        """Returns a number as a scalar tensor, and `[chains...]` as `[chains..., 1]`."""
        x = as_dtype(x, self._parts[0].dtype)
        return x[..., tf.newaxis] if x.shape.rank else x
