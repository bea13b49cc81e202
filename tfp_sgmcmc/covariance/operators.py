"""Operations with the covariance of the gradient noise at one step."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance.solvers import Solver, chebyshev_sqrt
from tfp_sgmcmc.state import State, flatten_events


class Matrix(abc.ABC):
    """V on flat vectors `[chains..., D]`; numbers a and b are scalars or `[chains..., 1]`."""

    @abc.abstractmethod
    def multiply(self, x: tf.Tensor) -> tf.Tensor: ...

    @abc.abstractmethod
    def solve(self, shift: tf.Tensor, scale: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """(diag(shift) + scale V)^-1 x, `shift` of shape `[chains..., D]`."""

    def sqrt_multiply(
        self, shift: tf.Tensor, scale: tf.Tensor, bound: tf.Tensor, z: tf.Tensor
    ) -> tf.Tensor:
        """S z with S S^T = a I + b V, whose eigenvalues V has in [0, bound]."""
        return chebyshev_sqrt(self.multiply, shift, scale, bound, z)

    @abc.abstractmethod
    def diag_part(self) -> tf.Tensor:
        """The diagonal of V, `[chains..., D]`."""

    @abc.abstractmethod
    def draw(self, shift: tf.Tensor, scale: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """A draw from N(0, diag(shift) + scale V), `shift` of shape `[chains..., D]`."""


class DiagonalMatrix(Matrix):
    """V = diag(v), v of shape `[chains..., D]`."""

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
    """V of shape `[chains..., D, D]`.

    `inverse`, the inverse of some earlier diag(shift) + scale V, preconditions conjugate gradients.
    """

    def __init__(self, matrix: tf.Tensor, solver: Solver, inverse: tf.Tensor | None = None):
        self._matrix, self._solver, self._inverse = matrix, solver, inverse

    def preconditioned(self, inverse: tf.Tensor) -> DenseMatrix:
        return DenseMatrix(self._matrix, self._solver, inverse)

    def multiply(self, x: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matvec(self._matrix, x)

    def shifted(self, shift: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        if scale.shape.rank:
            scale = scale[..., tf.newaxis]
        return tf.linalg.diag(shift) + scale * self._matrix

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
        """scale V + matrix."""
        if scale.shape.rank:
            scale = scale[..., tf.newaxis]
        return DenseMatrix(scale * self._matrix + matrix, self._solver, self._inverse)


class LowRankMatrix(Matrix):
    """V = R^T diag(w) R, with R of shape `[chains..., rows, D]` and w of `[chains..., rows]`."""

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
    """Sigma = c V at one step; every vector has the structure and shapes of the state.

    Args:
      matrices: V on each group of parts.
      groups: for each matrix, the indices of the parts (in the order of `tf.nest.flatten`) whose
        entries it acts on.
      noise_scale: c.
      like: the state.
      chain_ndims: its number of leading chain dimensions.
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
        """Sigma v."""
        return self._map(lambda m, x: self._noise_scale * m.multiply(x), v)

    def solve(self, shift: State, scale: Any, v: State) -> State:
        """(diag(shift) + scale Sigma)^-1 v, for positive `shift` and `scale` of at least 0.

        `shift` is a number or a nest that broadcasts with the state, `scale` a number or
        `[chains...]`.
        """
        scale = self._number(scale) * self._noise_scale
        return self._map(lambda m, x, a: m.solve(a, scale, x), v, self._broadcast(shift))

    def diag_part(self) -> State:
        """The diagonal of Sigma, in the structure of the state."""
        zeros = tf.nest.map_structure(tf.zeros_like, self._like)
        return self._map(lambda m, _: self._noise_scale * m.diag_part(), zeros)

    def plus(self, matrix: tf.Tensor) -> NoiseCovariance:
        """Sigma + matrix, `[chains..., D, D]`; of a dense Sigma over all parts only."""
        (dense,) = self._matrices
        if not isinstance(dense, DenseMatrix):
            raise TypeError(f"Sigma is a {type(dense).__name__}; a DenseMatrix is expected.")
        total = dense.plus(self._noise_scale, matrix)
        return NoiseCovariance([total], self._groups, 1.0, self._like, self._chain_ndims)

    def draw(self, shift: State, scale: Any, seed: tf.Tensor) -> State:
        """A draw from N(0, diag(shift) + scale Sigma), by a factor; arguments as of `solve`."""
        scale, count = self._number(scale) * self._noise_scale, len(self._matrices)
        seeds = iter(random.split(seed, count) if count > 1 else [seed])
        return self._map(lambda m, a: m.draw(a, scale, next(seeds)), self._broadcast(shift))

    def inverses(self, shift: State, scale: Any) -> list[tf.Tensor]:
        """(diag(shift) + scale Sigma)^-1 of each group, `[chains..., D, D]`; of dense ones only."""
        scale, inverses = self._number(scale) * self._noise_scale, []
        for matrix, group in zip(self._matrices, self._groups, strict=True):
            flat = self._flat([self._broadcast(shift)[i] for i in group])
            if isinstance(matrix, DenseMatrix):
                inverses.append(tf.linalg.inv(matrix.shifted(flat, scale)))
        return inverses

    def sqrt_multiply(self, shift: Any, scale: Any, bound: Any, z: State) -> State:
        """S z with S S^T = shift I + scale Sigma; numbers, or `[chains...]`.

        `scale` may be negative; `bound` is at least the largest eigenvalue of Sigma (of no account
        to a diagonal Sigma). Eigenvalues that would be negative count as zero.
        """
        shift, c = self._number(shift), self._noise_scale
        scale, bound = self._number(scale) * c, tf.math.divide_no_nan(self._number(bound), c)
        return self._map(lambda m, x: m.sqrt_multiply(shift, scale, bound, x), z)

    def sample(self, shift: Any, scale: Any, bound: Any, seed: tf.Tensor) -> State:
        """A draw from N(0, shift I + scale Sigma); arguments as of `sqrt_multiply`."""
        return self.sqrt_multiply(shift, scale, bound, random.normal_like(self._like, seed))

    def power_iteration(self, v: State, num_iterations: int = 2) -> tuple[tf.Tensor, State]:
        """Largest eigenvalue of Sigma, `[chains...]`, from below, and its unit vector.

        Begins at `v`; carry the vector from step to step, and few iterations are enough. For a
        diagonal Sigma the value is exact, and `v` returned as it is.
        """

        def norm(v: State) -> tf.Tensor:
            flat = self._flat(tf.nest.flatten(v))
            return tf.sqrt(tf.reduce_sum(flat**2, axis=-1, keepdims=True))

        if all(isinstance(m, DiagonalMatrix) for m in self._matrices):
            diagonal = self.multiply(tf.nest.map_structure(tf.ones_like, v))
            return tf.reduce_max(self._flat(tf.nest.flatten(diagonal)), axis=-1), v
        size = norm(v)
        unit = self._map(lambda _, x: tf.math.divide_no_nan(x, size), v)
        for _ in range(num_iterations):
            product = self.multiply(unit)
            size = norm(product)
            unit = self._map(  # where Sigma is still zero, the vector is kept for later
                lambda _, x, u, size=size: tf.where(size > 0, x / size, u), product, unit
            )
        return size[..., 0], unit

    def preconditioned(self, inverses: Sequence[tf.Tensor]) -> NoiseCovariance:
        """The same, with `inverses` (of earlier systems) to precondition conjugate gradients."""
        other, pairs = copy.copy(self), zip(self._matrices, inverses, strict=True)
        other._matrices = [m.preconditioned(x) for m, x in pairs if isinstance(m, DenseMatrix)]
        return other

    def _map(self, fn: Callable[..., tf.Tensor], *vectors: Any) -> State:
        """Applies `fn(matrix, *flat_vectors)` to each group and puts the parts back together."""
        leaves = [tf.nest.flatten(v) for v in vectors]
        result: list[Any] = [None] * len(self._parts)
        for matrix, group in zip(self._matrices, self._groups, strict=True):
            flat = fn(matrix, *(self._flat([v[i] for i in group]) for v in leaves))
            sizes = [self._parts[i].shape[self._chain_ndims :].num_elements() for i in group]
            pieces = tf.split(flat, sizes, axis=-1) if len(group) > 1 else [flat]
            for i, piece in zip(group, pieces, strict=True):
                result[i] = tf.reshape(piece, tf.shape(self._parts[i]))
        return tf.nest.pack_sequence_as(self._like, result)

    def _broadcast(self, shift: State) -> list[tf.Tensor]:
        shifts = tf.nest.flatten(shift)
        shifts = shifts if tf.nest.is_nested(shift) else shifts * len(self._parts)
        pairs = zip(shifts, self._parts, strict=True)
        return [tf.broadcast_to(tf.convert_to_tensor(a, x.dtype), tf.shape(x)) for a, x in pairs]

    def _flat(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        return flatten_events(parts, self._chain_ndims)

    def _number(self, x: Any) -> tf.Tensor:
        """A number as it is, `[chains...]` as `[chains..., 1]`."""
        dtype = self._parts[0].dtype
        x = tf.cast(x, dtype) if tf.is_tensor(x) else tf.convert_to_tensor(x, dtype)
        return x[..., tf.newaxis] if x.shape.rank else x
