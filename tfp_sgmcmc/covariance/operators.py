"""Operations with the covariance of the gradient noise at one step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.covariance.matrices import DenseMatrix, DiagonalMatrix, Matrix
from tfp_sgmcmc.internal.nest import State, as_dtype, flatten_events, unflatten_events


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
            raise TypeError(f"Sigma must be a DenseMatrix. Received: a {type(dense).__name__}.")
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
                inverses.append(tf.linalg.inv(matrix.shifted(flat, scale)))
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
            unit = self._map(  # the vector is kept while Sigma is still zero
                lambda _, x, u, size=size: tf.where(size > 0, x / size, u), product, unit
            )
        return size[..., 0], unit

    def preconditioned(self, inverses: Sequence[tf.Tensor]) -> NoiseCovariance:
        """Returns the same Sigma with `inverses` that precondition conjugate gradients."""
        other, pairs = copy.copy(self), zip(self._matrices, inverses, strict=True)
        other._matrices = [m.preconditioned(x) for m, x in pairs if isinstance(m, DenseMatrix)]
        return other

    def _map(self, fn: Callable[..., tf.Tensor], *vectors: Any) -> State:
        """Applies `fn(matrix, *flat_vectors)` to each group and packs the results as the state."""
        leaves = [tf.nest.flatten(v) for v in vectors]
        result: list[Any] = [None] * len(self._parts)
        for matrix, group in zip(self._matrices, self._groups, strict=True):
            flat = fn(matrix, *(self._flat([v[i] for i in group]) for v in leaves))
            parts = unflatten_events(flat, [self._parts[i] for i in group], self._chain_ndims)
            for i, part in zip(group, parts, strict=True):
                result[i] = part
        return tf.nest.pack_sequence_as(self._like, result)

    def _broadcast(self, shift: State) -> list[tf.Tensor]:
        shifts = tf.nest.flatten(shift)
        shifts = shifts if tf.nest.is_nested(shift) else shifts * len(self._parts)
        pairs = zip(shifts, self._parts, strict=True)
        return [tf.broadcast_to(tf.convert_to_tensor(a, x.dtype), tf.shape(x)) for a, x in pairs]

    def _flat(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        return flatten_events(parts, self._chain_ndims)

    def _number(self, x: Any) -> tf.Tensor:
        """Returns a number as a scalar tensor, and `[chains...]` as `[chains..., 1]`."""
        x = as_dtype(x, self._parts[0].dtype)
        return x[..., tf.newaxis] if x.shape.rank else x
