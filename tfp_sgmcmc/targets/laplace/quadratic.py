"""The second-order expansion of a log posterior at a center.

Where each row has one linear predictor, as in a regression, one product a row gives the Hessian.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import one_of
from tfp_sgmcmc.internal.nest import State, flatten_events, num_entries, unflatten_events
from tfp_sgmcmc.internal.xla import by_blocks, traced
from tfp_sgmcmc.targets.base import ExpansionError, kept_program, value_and_gradient
from tfp_sgmcmc.targets.laplace.low_rank_hessian import (
    ORDER_1,
    LowRankHessian,
    check_curved,
    check_definite,
    check_finite,
    low_rank_at,
)
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.scores import mapped_scores, total_of_chunks

LEAST_WORK = 1e8  # N D^2, for which products with D vectors take longer than another trace
_CHUNK = 2**22  # numbers that are held at once
_NEAR_ROUNDING = 30.0  # times the rounding of a number, of the least eigenvalue
_CLEARLY = 10.0
_NUM_PROBES, _MOST_ERROR = 4, 1e-3  # of Hessians scaled to a unit diagonal

GUARD = 1.5
HessianForm = Literal["auto", "full", "low_rank", "diag"]
MOST_DIMENSIONS = 4096
# Products with vectors then raise what the user's functions are to blame for.
_NOT_VECTORIZED = LookupError, NotImplementedError, ValueError, tf.errors.OpError
_BLOCK = 64  # columns of a Hessian that are evaluated at once


def rank_one_hessian(
    target: MinibatchLogProb, like: State
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    r"""Returns the function theta -> gradient `[D]` and Hessian `[D, D]` of the log likelihood.

    If the log likelihood of row i depends on the parameters through one number
    \( \phi_i \cdot \theta \), its Hessian has rank one. One product with a vector v gives it,

    \[
    t_i = H_i v = f_i'' (\phi_i \cdot v) \phi_i, \qquad
    H = \sum_i H_i = \sum_i \frac{t_i t_i^T}{t_i \cdot v},
    \]

    in about the time of one matrix product X^T X. For other likelihoods the result is wrong: see
    `agrees`.
    """
    dtype = tf.nest.flatten(like)[0].dtype
    dim, num_rows = num_entries(like), target.num_examples
    size = min(num_rows, max(1, _CHUNK // dim))
    v = np.random.default_rng(0).standard_normal(dim)

    def rows(theta: State, start: tf.Tensor | int, size: int) -> tuple[tf.Tensor, tf.Tensor]:
        _, gradient, product = mapped_scores(
            lambda state, row: target.log_likelihood(state, row, 1, []),
            theta,
            target.rows(start + tf.range(size)),
            size,
            0,
            0,
            probe=unflatten_events(v, like, 0),
        )
        t = flatten_events(product, 1)
        along = tf.linalg.matvec(t, tf.constant(v, dtype))
        weights = tf.math.reciprocal_no_nan(along)[:, tf.newaxis]
        total = tf.matmul(weights * t, t, transpose_a=True)
        return tf.reduce_sum(flatten_events(gradient, 1), axis=0), total

    @traced
    def sums(flat: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        theta = unflatten_events(flat, like, 0)
        return total_of_chunks(lambda start, size: rows(theta, start, size), num_rows, size)

    def gradient_and_hessian(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gradient, hessian = sums(tf.constant(theta, dtype))
        return gradient.numpy().astype(np.float64), hessian.numpy().astype(np.float64)

    return gradient_and_hessian


def agrees(hessian: np.ndarray, products: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Returns whether products with random vectors are those of `hessian`, `[D, D]`.

    Args:
      hessian: what is doubted.
      products: returns the Hessian times vectors, both `[K, D]`.
    """
    scale = np.sqrt(np.abs(np.diag(hessian)))
    if not (np.isfinite(hessian).all() and (scale > 0).all()):
        return False
    probes = np.random.default_rng(0).standard_normal([_NUM_PROBES, len(scale)]) / scale
    error = (products(probes) - probes @ hessian) / scale
    return bool((np.abs(error) <= _MOST_ERROR * (1 + np.abs(probes @ hessian / scale))).all())


class HessianProducts(NamedTuple):
    """Hessians of the likelihood and of the prior at theta times K vectors, both `[K, D]`.

    The third field is the gradient of the log posterior, `[D]`.
    """

    likelihood: np.ndarray
    prior: np.ndarray
    gradient: np.ndarray


@dataclasses.dataclass(frozen=True)
class Quadratic:
    r"""The Hessians at a center, in flat coordinates of D entries.

    Attributes:
      likelihood: \( H_l \), the Hessian of the sum of all log likelihoods, `[D, D]`.
      hessian: H, the Hessian of the log posterior, `[D, D]`.
      in_double: both in `float64`, where single precision would lose a flat direction of them.
    """

    likelihood: tf.Tensor
    hessian: tf.Tensor
    in_double: Hessians | None = None

    @functools.cached_property
    def factor(self) -> np.ndarray:
        r"""The Cholesky factor of \( (-H)^{-1} \), `[D, D]`, in `float64`."""
        hessian = self.hessian.numpy() if self.in_double is None else self.in_double.posterior
        return root_of_inverse(-hessian.astype(np.float64))

    def whitened_likelihood(self) -> np.ndarray:
        r"""Returns \( L^T H_l L \) with the Cholesky factor L, `[D, D]`, in `float64`."""
        given = self.in_double
        likelihood = self.likelihood.numpy() if given is None else given.likelihood
        return self.factor.T @ likelihood @ self.factor

    def square(self, offset: tf.Tensor) -> tf.Tensor:
        r"""Returns \( d^T (-H) d \) for offsets d, `[chains..., 1]`."""
        product = tf.linalg.matvec(self.hessian, offset)
        return -tf.reduce_sum(offset * product, axis=-1, keepdims=True)

    def root(self, z: tf.Tensor, transposed: bool = False) -> tf.Tensor:
        r"""Returns \( L z \), or \( L^T z \), with \( L L^T = (-H)^{-1} \) for rows z."""
        return tf.linalg.matvec(tf.constant(self.factor, z.dtype), z, transpose_a=transposed)

    def kept(self, offset: tf.Tensor) -> tf.Tensor:
        """Returns the part of offsets that expansions keep, which is all of it."""
        return offset

    def bend(self, kept: tf.Tensor) -> tf.Tensor:
        r"""Returns \( H_l d \) for the kept parts d of offsets."""
        return tf.linalg.matvec(self.likelihood, kept)

    @property
    def dtype(self) -> tf.DType:
        return self.hessian.dtype


def to_unit_diagonal(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Returns \( S^{-1} A S^{-1} \) and the diagonal of \( S = \mathrm{diag}(|A_{jj}|^{1/2}) \).

    Eigenvalues of the scaled matrix do not depend on the units of the parameters.
    """
    scale = np.sqrt(np.abs(np.diag(matrix)))
    scale[scale == 0] = 1.0
    return matrix / np.outer(scale, scale), scale


def least_eigenvalue(matrix: np.ndarray) -> float:
    """Returns the least eigenvalue of a symmetric matrix that is scaled to a unit diagonal."""
    return float(np.linalg.eigvalsh(to_unit_diagonal(matrix)[0])[0])


def root_of_inverse(precision: np.ndarray) -> np.ndarray:
    """Returns the Cholesky factor of the inverse of a matrix, whatever the units of its entries.

    It is that of the reversed matrix, inverted. A factor of the inverse of a nearly singular matrix
    would have errors as large as the deviations of its other directions. Eigenvalues of the scaled
    matrix that rounding hides count as that rounding.
    """
    scaled, scale = to_unit_diagonal(precision)
    try:
        root = np.linalg.inv(np.linalg.cholesky(scaled[::-1, ::-1])[::-1, ::-1]).T
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(scaled)
        least = len(values) * np.finfo(values.dtype).eps * values[-1]
        root = lower_factor(vectors / np.sqrt(np.maximum(values, least)))
    return root / scale[:, np.newaxis]


def lower_factor(root: np.ndarray) -> np.ndarray:
    """Returns the Cholesky factor of R R^T for a root R, `[D, K]`, without that product."""
    upper: Any = np.linalg.qr(root.T, mode="r")
    return upper.T * np.sign(np.diag(upper))


def precision_of(factor: np.ndarray) -> np.ndarray:
    """Returns the inverse of L L^T, of which `root_of_inverse` is L again.

    The inverse of the product itself would have the errors that `root_of_inverse` avoids.
    """
    back = inverse_of_factor(factor)
    return back.T @ back


def inverse_of_factor(factor: np.ndarray) -> np.ndarray:
    """Returns the inverse of a Cholesky factor, whatever the units of its rows."""
    scale = np.diag(factor)
    return np.linalg.inv(factor / scale[:, np.newaxis]) / scale


def inverse(matrix: np.ndarray) -> np.ndarray:
    """Returns the inverse of a symmetric matrix, whatever the units of its entries."""
    scaled, scale = to_unit_diagonal(matrix)
    return np.linalg.inv(scaled) / np.outer(scale, scale)


def weight(quadratic: Quadratic | LowRankHessian, offset: tf.Tensor) -> tf.Tensor:
    r"""Returns \( w = \min(1, 1.5 D / (d^T (-H) d)) \) for offsets d, `[chains..., 1]`."""
    most = tf.constant(GUARD * offset.shape[-1], offset.dtype)
    return most / tf.maximum(quadratic.square(offset), most)


def _warn_if_far(gradient: np.ndarray, quadratic: Quadratic | LowRankHessian) -> None:
    """Warns if Newton's step from a center is longer than the radius of posterior draws."""
    step = quadratic.root(tf.constant(gradient[np.newaxis], quadratic.dtype), transposed=True)
    distance, radius = float(tf.norm(step)), gradient.size**0.5
    if distance > 3 + radius:
        warnings.warn(
            f"center must be near a mode of the posterior, within {3 + radius:.3g} posterior "
            f"standard deviations. Received: a center {distance:.3g} standard deviations from the "
            "mode of its quadratic expansion. Use `find_center`.",
            stacklevel=4,
        )


class HessianFunction:
    """Hessians of a target at theta, `[D]`, times vectors, or whole.

    Args:
      target: the target.
      like: a state without chain dimensions, with the structure and dtype of theta.
    """

    def __init__(self, target: MinibatchLogProb, like: State):
        self._target, self._like = target, like
        self._dtype = tf.nest.flatten(like)[0].dtype
        self._dim = num_entries(like)
        work = target.num_examples * self._dim**2
        # Other targets have rows elsewhere, or sums of their own.
        self._has_predictor = type(target) is MinibatchLogProb and work >= LEAST_WORK
        self._was_checked = False

    def __call__(self, theta: np.ndarray, vectors: np.ndarray) -> HessianProducts:
        """Returns products with vectors, `[K, D]`."""
        return self._in_blocks(theta, vectors, with_likelihood=True)

    def matrices(self, theta: np.ndarray, is_step: bool = False) -> Hessians:
        """Returns both Hessians, made symmetric, and the gradient.

        `is_step` tells that theta is one of many on the way to a mode. Whether log likelihoods
        depend on linear predictors is then only checked at the first.

        Where rounding hides a flat direction, they are evaluated again in coordinates that are
        whitened by what was found. There a product with the direction has no terms that cancel,
        if log likelihoods depend on linear predictors.
        """
        likelihood = self._of_predictor(theta, is_step)
        found = self._in_blocks(theta, np.eye(self._dim), with_likelihood=likelihood is None)
        if likelihood is not None:
            slope, hessian = likelihood
            found = HessianProducts(hessian, found.prior, found.gradient + slope)
        first = seen = _symmetric(found)
        eps = np.finfo(self._dtype.as_numpy_dtype).eps
        if not _is_near_rounding(-first.posterior, eps):
            return first
        for power in (1.0, 1.5, 2.0):  # what was hidden is seen better each time
            root = root_above(-seen.posterior, eps**power)
            found = self._in_blocks(theta, root.T, with_likelihood=True)
            whitened = [products @ root for products in found[:2]]
            if not np.isfinite(whitened).all():
                break
            back = np.linalg.inv(root)
            likelihood, prior = (back.T @ h @ back for h in whitened)
            seen = _symmetric(HessianProducts(likelihood, prior, found.gradient))
            precision = -whitened[0] - whitened[1]
            asymmetry = np.linalg.norm(precision - precision.T, 2)
            if np.linalg.eigvalsh((precision + precision.T) / 2)[0] > _CLEARLY * asymmetry:
                return seen._replace(is_resolved=True)
        return first

    def _of_predictor(
        self, theta: np.ndarray, is_step: bool
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns gradient and Hessian of a likelihood with a linear predictor, or None."""
        if not self._has_predictor:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operations that cannot be vectorized
            try:
                found = self._by_rows(theta)
            except _NOT_VECTORIZED:
                self._has_predictor = False
                return None
        if not (is_step and self._was_checked):
            self._has_predictor = agrees(found[1], lambda v: self(theta, v).likelihood)
            self._was_checked = True
        return found if self._has_predictor else None

    @functools.cached_property
    def _by_rows(self) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        return rank_one_hessian(self._target, self._like)

    def _in_blocks(
        self, theta: np.ndarray, vectors: np.ndarray, with_likelihood: bool
    ) -> HessianProducts:
        blocks = -(-len(vectors) // _BLOCK)
        count = -(-len(vectors) // blocks)
        run = kept_program(
            self._target,
            f"Hessians times {count} vectors, {with_likelihood=}",
            self._like,
            lambda: self._compile(count, with_likelihood),
        )
        at = tf.constant(theta, self._dtype)
        found = by_blocks(functools.partial(run, at), vectors, count, self._dtype)
        likelihood, prior, gradient = (x.astype(np.float64) for x in found)
        return HessianProducts(likelihood, prior, gradient[0])

    def _compile(self, count: int, with_likelihood: bool) -> Any:
        target, size = self._target, max(1, self._target.chunk_size // count)

        @traced
        def products(theta: tf.Tensor, probes: tf.Tensor) -> tuple[tf.Tensor, ...]:
            state = unflatten_events(tf.broadcast_to(theta, probes.shape), self._like, 0)
            probe = unflatten_events(probes, self._like, 0)
            parts = [value_and_gradient(target.log_prior, state, probe, connected=False)[1:]]
            if with_likelihood:
                given = state, size, probe, probes.shape[:1]
                parts.insert(0, target.sum_over_chunks(*given)[1:])
            slopes = [flatten_events(slope, 1) for slope, _ in parts]
            bends = [flatten_events(bend, 1) for _, bend in parts]
            return bends[0], bends[-1], tf.add_n(slopes)

        return products


class Hessians(NamedTuple):
    """Hessians of likelihood and log posterior, `[D, D]`, and the log posterior's gradient.

    `is_resolved` tells that they were evaluated again because rounding hid a flat direction, and
    that it is seen now.
    """

    likelihood: np.ndarray
    posterior: np.ndarray
    gradient: np.ndarray
    is_resolved: bool = False


def _symmetric(found: HessianProducts) -> Hessians:
    likelihood, posterior = (
        h + h.T for h in (found.likelihood / 2, (found.likelihood + found.prior) / 2)
    )
    return Hessians(likelihood, posterior, found.gradient)


def _is_near_rounding(precision: np.ndarray, eps: float) -> bool:
    """Returns whether rounding hides the least eigenvalue. A clearly negative one is a saddle's."""
    scaled, _ = to_unit_diagonal(precision)
    return bool(
        np.isfinite(scaled).all() and abs(np.linalg.eigvalsh(scaled)[0]) < _NEAR_ROUNDING * eps
    )


def root_above(precision: np.ndarray, least: float) -> np.ndarray:
    """Returns R with R R^T the inverse of a precision, whose eigenvalues are at least `least`.

    They are those of the matrix scaled to a unit diagonal.
    """
    scaled, scale = to_unit_diagonal(precision)
    values, vectors = np.linalg.eigh(scaled)
    return vectors / np.sqrt(np.maximum(values, least)) / scale[:, np.newaxis]


def hessian_products(target: MinibatchLogProb, like: State) -> HessianFunction:
    """Returns the Hessians of a target as a function, which is kept with the target."""
    return kept_program(target, "hessian products", like, lambda: HessianFunction(target, like))


def quadratic_at(
    target: MinibatchLogProb, center: State, hessian: HessianForm = "auto"
) -> Quadratic | LowRankHessian:
    """Returns the expansion at `center`.

    `"full"` takes D Hessian-vector products with all data, and is what `"auto"` stands for up to
    4096 entries. Beyond, `"auto"` is `"low_rank"`; see `low_rank_at`. `"diag"` has rank zero.

    Raises:
      ValueError: D is above 4096 with `"full"`; the form is unknown; a second derivative is not
        finite; the log likelihood has no second derivatives; the Hessian of the log posterior is
        not negative definite.
    """
    one_of("hessian", hessian, ["auto", "full", "low_rank", "diag"])
    flat = flatten_events(center, 0)
    dim = flat.shape[0]
    if hessian == "full" and dim > MOST_DIMENSIONS:
        raise ValueError(
            f"hessian must be 'auto', 'low_rank' or 'diag' for more than {MOST_DIMENSIONS} "
            f"entries, because 'full' keeps D x D matrices. Received: 'full' for D = {dim}."
        )
    try:
        known = target.curvature if hessian == "auto" else None
        # Matrices are known at zero only. Low rank takes its products at the given center.
        if isinstance(known, LowRankHessian) or (known is not None and not np.any(flat)):
            return known
        products = hessian_products(target, center)
        if hessian in ("low_rank", "diag") or dim > MOST_DIMENSIONS:
            low_rank, gradient = low_rank_at(target, center, products, hessian == "diag")
            _warn_if_far(gradient, low_rank)
            return low_rank
        found = products.matrices(flat.numpy())
    except (LookupError, NotImplementedError) as error:
        raise ExpansionError(
            "log_prior_fn and log_likelihood_fn must have second derivatives at the center. "
            f"Received: functions without. TensorFlow raised: {error}. {ORDER_1}"
        ) from error
    quadratic = quadratic_of(found, flat.dtype)
    _warn_if_far(found.gradient, quadratic)
    return quadratic


def quadratic_of(found: Hessians, dtype: tf.DType) -> Quadratic:
    """Returns the expansion with these Hessians; raises ValueError as `quadratic_at` does."""
    check_finite(found.posterior)
    check_curved(found.likelihood)
    check_definite(least_eigenvalue(-found.posterior))
    if found.is_resolved:
        return quadratic_in(dtype, found)
    return Quadratic(*(tf.constant(h, dtype) for h in found[:2]))


def quadratic_in(dtype: tf.DType, found: Hessians) -> Quadratic:
    """Returns the expansion with these Hessians, also of flat directions that `dtype` loses."""
    return Quadratic(*(tf.constant(h, dtype) for h in found[:2]), found)
