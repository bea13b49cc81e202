"""The Lanczos iteration, which finds the outer eigenvalues of a matrix from products with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tfp_sgmcmc.targets.base import ExpansionError

Product = Callable[[np.ndarray], np.ndarray]  # of a matrix with a vector [D]


class Krylov(NamedTuple):
    """What k iterations have found.

    Attributes:
      matrix: the projection of the matrix on the basis, `[k, k]`.
      basis: orthonormal rows, `[k, D]`.
      rest: norm of what the last product has outside the basis.
    """

    matrix: np.ndarray
    basis: np.ndarray
    rest: float


def lanczos(product: Product, start: np.ndarray, most: int, metric: Product) -> Iterator[Krylov]:
    """Yields the Krylov space of M H after each of up to `most` iterations.

    H M is symmetric in the inner product <v, w> = v^T M w, in which the basis is orthonormal.

    Args:
      product: v -> H v, with H symmetric.
      start: the first vector, `[D]`.
      most: the largest number of products.
      metric: v -> M v, with M symmetric and positive definite.

    Raises:
      ValueError: a product is not finite, or the metric is not positive definite.
    """
    basis, weighed = np.zeros([2, min(most, len(start)), len(start)])
    matrix = np.zeros([len(basis), len(basis)])
    rest, weighed_rest, scale = start, metric(start), 0.0
    for k in range(len(basis)):
        squared_norm = rest @ weighed_rest
        if not np.isfinite(squared_norm) or (k == 0 and squared_norm < 0):
            raise ValueError(
                "metric must be positive definite. Received: a metric M with v^T M v = "
                f"{squared_norm:.3g} for a vector v."
            )
        norm = math.sqrt(max(squared_norm, 0.0))  # rounding may leave less than nothing
        if norm <= 1e-12 * scale:  # all eigenvectors that the start has a share in are found
            return
        basis[k], weighed[k] = rest / norm, weighed_rest / norm
        rest = product(weighed[k])
        if not np.all(np.isfinite(rest)):
            raise ExpansionError(
                "The second derivatives of the log posterior must be finite at the state. "
                "Received: NaN or infinite products with the Hessian."
            )
        matrix[: k + 1, k] = matrix[k, : k + 1] = weighed[: k + 1] @ rest
        for _ in range(2):  # twice is enough: once leaves rounding errors
            rest = rest - (weighed[: k + 1] @ rest) @ basis[: k + 1]
        weighed_rest = metric(rest)
        scale = max(scale, np.abs(matrix[k, : k + 1]).max())
        left = math.sqrt(max(rest @ weighed_rest, 0.0))
        yield Krylov(matrix[: k + 1, : k + 1], basis[: k + 1], left)
