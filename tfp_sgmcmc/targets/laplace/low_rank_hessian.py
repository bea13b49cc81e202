"""The curvature of a log posterior as a diagonal matrix plus one of low rank."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.nest import State, flatten_events, num_entries, unflatten_events
from tfp_sgmcmc.targets.base import ExpansionError
from tfp_sgmcmc.targets.laplace.curvature import lanczos, posterior_product
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.scores import mapped_scores

_MOST_RANK = 256
_FEW_EXAMPLES = 1024  # whose Hessian has a rank of about their number, which is taken whole
_MOST_ENTRIES = 2**25  # in all vectors that the Lanczos iteration keeps
_MOST_EXAMPLES = 16_384
_NEGLIGIBLE = 0.01  # a share of the diagonal's curvature
_EXACT_DIAGONAL = 1024  # entries up to which diagonals come from products with unit vectors
_NUM_LOOKS = 20  # products that must agree for a diagonal matrix: a pair is missed in 2^19 cases
_NUM_SIGNS = 64  # random vectors that estimate the diagonal of a larger prior's Hessian


@dataclasses.dataclass(frozen=True)
class LowRankHessian:
    r"""The curvature \( -H \approx P^{1/2} (I + U \operatorname{diag}(s) U^T) P^{1/2} \).

    Attributes:
      diagonal: P, positive, `[D]`.
      vectors: U, with k orthonormal columns, `[D, k]`.
      values: s, above -1, `[k]`.
      products: \( H_l P^{-1/2} U \), with the Hessian \( H_l \) of the sum of all log likelihoods
        (without approximation), `[D, k]`; None if it was not requested.
      rest: about the largest eigenvalue that s does not contain.
    """

    diagonal: tf.Tensor
    vectors: tf.Tensor
    values: tf.Tensor
    products: tf.Tensor | None = None
    rest: float = 0.0

    def square(self, offset: tf.Tensor) -> tf.Tensor:
        r"""Returns \( d^T (-H) d \) for offsets d, `[chains..., 1]`."""
        scaled = self.diagonal**0.5 * offset
        along = self._along(scaled)
        return tf.reduce_sum(scaled**2, axis=-1, keepdims=True) + tf.reduce_sum(
            self.values * along**2, axis=-1, keepdims=True
        )

    def root(self, z: tf.Tensor, transposed: bool = False) -> tf.Tensor:
        r"""Returns \( L z \), or \( L^T z \), with \( L L^T = (-H)^{-1} \) for rows z.

        \[ L = P^{-1/2} (I + U ((1 + s)^{-1/2} - 1) U^T) \]
        """
        if transposed:
            return self._stretched(z * self.diagonal**-0.5, -0.5)
        return self._stretched(z, -0.5) * self.diagonal**-0.5

    def inverse_root(self, offset: tf.Tensor) -> tf.Tensor:
        r"""Returns \( L^{-1} d \) for rows d."""
        return self._stretched(self.diagonal**0.5 * offset, 0.5)

    def log_det_root(self) -> tf.Tensor:
        """Returns log det L."""
        logs = tf.math.log(self.diagonal), tf.math.log1p(self.values)
        return -0.5 * tf.add_n([tf.reduce_sum(x) for x in logs])

    def kept(self, offset: tf.Tensor) -> tf.Tensor:
        r"""Returns \( Q d \), with the projection \( Q = P^{-1/2} U U^T P^{1/2} \)."""
        along = self._along(self.diagonal**0.5 * offset)
        return tf.linalg.matvec(self.vectors, along) * self.diagonal**-0.5

    def bend(self, kept: tf.Tensor) -> tf.Tensor:
        r"""Returns \( H_l Q d \) for the kept parts Q d of offsets."""
        return tf.linalg.matvec(self.products, self._along(self.diagonal**0.5 * kept))

    @property
    def hessian(self) -> tf.linalg.LinearOperator:
        """H as an operator."""
        diagonal = tf.linalg.LinearOperatorDiag(-self.diagonal)
        if not self.values.shape[0]:
            return diagonal
        vectors = self.diagonal[:, tf.newaxis] ** 0.5 * self.vectors
        return tf.linalg.LinearOperatorLowRankUpdate(diagonal, vectors, -self.values)

    @property
    def dtype(self) -> tf.DType:
        return self.diagonal.dtype

    def bounded(self) -> LowRankHessian:
        r"""Returns the curvature with \( (1 + r) / 2 \) as the least 1 + s, where r is `rest`.

        In coordinates whitened by it, no direction has much more than twice the curvature of
        N(0, I), and directions that the data hardly determine are narrow.
        """
        least = (1 + self.rest) / 2
        if least <= 1:
            return self
        keep = 1 + self.values > least
        values = (1 + tf.boolean_mask(self.values, keep)) / least - 1
        return LowRankHessian(
            least * self.diagonal, tf.boolean_mask(self.vectors, keep, axis=1), values
        )

    def with_products(self, products: Any, center: State) -> LowRankHessian:
        """Returns this expansion with `products`, computed by the function `products`."""
        columns = (self.vectors / self.diagonal[:, tf.newaxis] ** 0.5).numpy()
        found = columns
        if columns.size:
            found = products(flatten_events(center, 0).numpy(), columns.T).likelihood.T
        return dataclasses.replace(self, products=tf.constant(found, self.dtype))

    def _along(self, scaled: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matvec(self.vectors, scaled, transpose_a=True)

    def _stretched(self, x: tf.Tensor, power: float) -> tf.Tensor:
        change = (1 + self.values) ** power - 1
        return x + tf.linalg.matvec(self.vectors, change * self._along(x))


def low_rank_at(
    target: MinibatchLogProb, center: State, products: Any, is_diagonal: bool
) -> tuple[LowRankHessian, np.ndarray]:
    r"""Returns the curvature at `center`, and the gradient of the log posterior there, `[D]`.

    P is the diagonal of the prior's curvature. Where this is not positive (the prior is flat, or a
    Laplace distribution) P is the diagonal of the likelihood's curvature. U and s are eigenpairs of
    \( P^{-1/2} (-H) P^{-1/2} - I \), from a Lanczos iteration with up to 256 products of the
    Hessian over all data, or over 16,384 random examples of larger data; up to N products if N is
    at most 1024. It stops when the remaining eigenvalues are below 0.01. A diagonal H needs no
    iteration, which would find only one of equal eigenvalues; P is its diagonal if more than k
    entries differ from the prior's. With `is_diagonal` P is the diagonal of all curvature, and k
    is 0. The likelihood's diagonal is exact up to 1024 entries. Beyond, it is the sum of the
    examples' squared scores, whose expectation is -H if the model is right.

    Args:
      products: the function of `hessian_products`.

    Raises:
      ValueError: a second derivative is not finite, the log likelihood has none but zeros, or -H is
        not positive definite.
    """
    flat = flatten_events(center, 0)
    theta, dim = flat.numpy(), flat.shape[0]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], [_NUM_SIGNS, dim])
    found = products(theta, signs[: 2 if is_diagonal else _NUM_LOOKS])
    check_curved(found.likelihood)
    check_finite(found.prior)
    diagonal = _exact_diagonal(-found.prior, signs)
    if not is_diagonal:
        whole = _exact_diagonal(-(found.likelihood + found.prior), signs)
        if whole is not None:
            check_definite(whole.min())
            most = _most_rank(dim, target.num_examples)
            return _of_diagonal(whole, diagonal, most, flat.dtype), found.gradient
    if diagonal is None and dim <= _EXACT_DIAGONAL:
        diagonal = np.diagonal(-products(theta, np.eye(dim)).prior)
    elif diagonal is None:
        diagonal = np.mean(signs * -products(theta, signs).prior, axis=0)
    missing = diagonal <= 0
    if is_diagonal or missing.any():
        likelihood = (
            np.diagonal(-products(theta, np.eye(dim)).likelihood)
            if dim <= _EXACT_DIAGONAL
            else _squared_scores(target, center)
        )
        added = diagonal + likelihood
        diagonal = added if is_diagonal else np.where(missing, likelihood, diagonal)
    check_definite(diagonal.min())
    vectors, values, rest = np.zeros([dim, 0]), np.zeros([0]), 0.0
    if not is_diagonal:
        vectors, values, rest = _eigenpairs(target, center, diagonal)
        check_definite(1 + values.min(initial=0.0))
    fields = (tf.constant(x, flat.dtype) for x in (diagonal, vectors, values))
    return LowRankHessian(*fields, rest=rest), found.gradient


def _eigenpairs(
    target: MinibatchLogProb, center: State, diagonal: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns eigenvectors and eigenvalues of P^(-1/2) (-H) P^(-1/2) - I, and the `rest`."""
    dtype, dim = tf.nest.flatten(center)[0].dtype, len(diagonal)
    multiply = posterior_product(target, center, random.as_seed(0), _MOST_EXAMPLES)
    scale = diagonal**-0.5

    def product(v: np.ndarray) -> np.ndarray:
        along = unflatten_events(scale * v, center, 0)
        found = flatten_events(multiply(center, along), 0).numpy().astype(np.float64)
        return -scale * found - v

    start = np.random.default_rng(1).standard_normal(dim)
    most, left = _most_rank(dim, target.num_examples), []
    for found in lanczos(product, start, most, lambda v: v):
        # A tridiagonal matrix with a and b in its last rows has a spectrum up to a + 2 b.
        left.append(found.matrix[-1, -1] + 2 * found.rest)
        rounding = 100 * np.finfo(dtype.as_numpy_dtype).eps * np.abs(found.matrix).max()
        if len(left) >= 3 and max(np.abs(left[-3:])) <= max(_NEGLIGIBLE, rounding):
            break  # three in a row, because a single small one may be chance
    values, turned = np.linalg.eigh(found.matrix)
    matters = np.abs(values) > _NEGLIGIBLE
    rest = max(left[-10:]) if len(left) == most < dim else 0.0
    return found.basis.T @ turned[:, matters], values[matters], float(max(rest, 0.0))


def _exact_diagonal(products: np.ndarray, signs: np.ndarray) -> np.ndarray | None:
    """Returns the diagonal of a matrix that is diagonal by its products with random signs."""
    by_signs = products * signs[: len(products)]
    found = by_signs.mean(axis=0)
    atol = 1e-6 * np.abs(found).max()
    return found if np.allclose(by_signs, found, rtol=1e-4, atol=atol) else None


def _of_diagonal(
    whole: np.ndarray, prior: np.ndarray | None, most: int, dtype: tf.DType
) -> LowRankHessian:
    """Returns the curvature of a diagonal Hessian, with unit vectors as U if they are few."""
    diagonal, dim = whole, len(whole)
    vectors, values = np.zeros([dim, 0]), np.zeros([0])
    if prior is not None and (prior > 0).all():
        excess = whole / prior - 1
        at = np.flatnonzero(np.abs(excess) > _NEGLIGIBLE)
        if len(at) <= most:
            diagonal, values, vectors = prior, excess[at], np.zeros([dim, len(at)])
            vectors[at, np.arange(len(at))] = 1
    return LowRankHessian(*(tf.constant(x, dtype) for x in (diagonal, vectors, values)))


def _most_rank(dim: int, num_examples: int) -> int:
    few = num_examples + 4 if num_examples <= _FEW_EXAMPLES else 0  # one, and three that are small
    return max(1, min(max(_MOST_RANK, few), _MOST_ENTRIES // dim))


def _squared_scores(target: MinibatchLogProb, center: State) -> np.ndarray:
    """Returns the sum of the examples' squared scores, `[D]`, from 16,384 of them at most."""
    total, dim = target.num_examples, num_entries(center)
    used = min(total, _MOST_EXAMPLES)
    drawn = random.permuted_indices(random.as_seed(0), tf.range(used), total)
    size = max(1, min(used, target.chunk_size, 2**24 // dim))

    @tf.function(autograph=False, reduce_retracing=True)
    def part(start: tf.Tensor) -> tf.Tensor:
        positions = start + tf.range(size)
        rows = target.rows(tf.gather(drawn, tf.minimum(positions, used - 1)))
        scores = mapped_scores(
            lambda s, group: target.log_likelihood(s, group, 1, ()), center, rows, size, 0, 0
        )[1]
        squares = flatten_events(scores, 1) ** 2
        return tf.reduce_sum(tf.where((positions < used)[:, tf.newaxis], squares, 0.0), axis=0)

    found = sum(part(tf.constant(i)).numpy().astype(np.float64) for i in range(0, used, size))
    return total / used * found


ORDER_1 = "ControlVariate takes such a center with order=1."


def check_finite(hessian: np.ndarray) -> None:
    """Raises ExpansionError unless all second derivatives at a center are finite."""
    if not np.isfinite(hessian).all():
        raise ExpansionError(
            "The second derivatives at the center must be finite. Received: NaN or infinite ones. "
            f"Use another center. {ORDER_1}"
        )


def check_curved(likelihood: np.ndarray) -> None:
    """Raises ExpansionError if second derivatives of a likelihood are not finite or all zero."""
    check_finite(likelihood)
    if not likelihood.any():
        raise ExpansionError(
            "log_likelihood_fn must have second derivatives. Received: zeros at the center, as "
            f"from a piecewise linear function. {ORDER_1}"
        )


def check_definite(smallest: float) -> None:
    """Raises ExpansionError unless the smallest eigenvalue of -H is positive."""
    if not smallest > 0:
        raise ExpansionError(
            "The Hessian of the log posterior at the center must be negative definite. Received: "
            f"an eigenvalue of {-smallest:.3g}. Use a mode as center (`find_center`). {ORDER_1}"
        )
