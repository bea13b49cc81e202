"""Rows' log likelihoods about a center: derivatives of linear models, and remainders of any."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.nest import State, flatten_events, num_entries, unflatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import kept_program, value_and_gradient
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.scores import expansion_remainders

NUM_PAIRS = 4  # of draws, each with its mirror image

_NUM_DIRECTIONS = 16  # that represent all in norms of rows
_MOST_ROUNDING = 1e-5  # rounding of a number that hides less than 0.1 % of a sum's least curvature
_MOST_NUMBERS = 2**20  # of a block's gradients at all draws


class Draws(NamedTuple):
    r"""The center `[D]`, z `[K, D]`, the draws less the center `[K, D]`, and L `[D, D]`.

    `stacked` has as rows the center, the draws and directions \( v_j \) with
    \( \sum_j (v_j^T x)^2 \approx |L^T x|^2 \). Programs take it as an argument, because XLA
    multiplies matrices that a program puts together several times slower.

    The directions are the columns of L, or 16 random combinations of them, whose products with the
    rows cost less (Johnson and Lindenstrauss 1984). They give |L^T x| with an error of about 16 %,
    so that a pool that is drawn by them needs 3 % more rows.
    """

    center: tf.Tensor
    z: tf.Tensor
    offsets: tf.Tensor
    factor: tf.Tensor
    stacked: tf.Tensor

    @classmethod
    def of(
        cls, center: Any, z: np.ndarray, offsets: np.ndarray, factor: np.ndarray, dtype: tf.DType
    ) -> Self:
        directions = factor.T
        if not _must_be_whitened(factor, dtype):
            directions = _mixture(len(factor)) @ directions
        stacked = np.concatenate([center[np.newaxis], center + offsets, directions])
        return cls(*(tf.constant(x, dtype) for x in (center, z, offsets, factor, stacked)))

    @classmethod
    def all_at(cls, theta: np.ndarray, factor: np.ndarray, dtype: tf.DType) -> Self:
        """Returns draws that are the center, for which remainders vanish."""
        zeros = np.zeros([2 * NUM_PAIRS, len(theta)])
        return cls.of(theta, zeros, zeros, factor, dtype)

    @property
    def is_whitened(self) -> bool:
        """Whether the directions are the columns of L, and Hessians are whitened by it.

        They are where L mixes columns so much that sums in single precision would lose the flat
        directions of a Hessian, and where there are so few of them that this costs nothing.
        """
        return _has_all_directions(self.stacked)


def _has_all_directions(stacked: tf.Tensor) -> bool:
    """Returns `Draws.is_whitened`, by the shape of `Draws.stacked`."""
    return stacked.shape[0] == 1 + 2 * NUM_PAIRS + stacked.shape[1]


def _must_be_whitened(factor: np.ndarray, dtype: tf.DType) -> bool:
    """Returns whether rounding hides part of the least eigenvalue, where that costs anything."""
    if len(factor) <= _NUM_DIRECTIONS:
        return True
    if not (factor - np.diag(np.diagonal(factor))).any():
        return False  # no columns are mixed
    scale = np.linalg.norm(np.linalg.inv(factor), axis=0)  # roots of the precision's diagonal
    scaled = scale[:, np.newaxis] * factor
    largest = np.linalg.eigvalsh(scaled @ scaled.T)[-1]  # of the inverse of the scaled precision
    return bool(np.finfo(dtype.as_numpy_dtype).eps * largest > _MOST_ROUNDING)


@functools.lru_cache(maxsize=8)
def _mixture(dim: int) -> np.ndarray:
    """Returns G with orthogonal rows, `[16, dim]`, and the mean of |G x|^2 equal to |x|^2."""
    normal = np.random.default_rng(0).standard_normal([dim, _NUM_DIRECTIONS])
    return (dim / _NUM_DIRECTIONS) ** 0.5 * np.linalg.qr(normal)[0].T


class Expansions(NamedTuple):
    r"""Expansions of rows' log likelihoods in the predictor \( \eta \), at the center.

    Attributes:
      values: log likelihoods, `[n]`.
      slopes: their first derivatives by \( \eta \), `[n]`.
      bends: their second derivatives, `[n]`.
      remainders: first derivatives at draws less their expansion, `[K, n]`.
      jacobian: J, the derivatives of predictors by the state, `[n, D]`.
      projections: products of the rows of J with the directions of `Draws`, `[E, n]`; if it is
        whitened, \( L^T J^T \), `[D, n]`.
    """

    values: tf.Tensor
    slopes: tf.Tensor
    bends: tf.Tensor
    remainders: tf.Tensor
    jacobian: tf.Tensor
    projections: tf.Tensor


class LinearBlocks:
    """Evaluates blocks of rows of a `LinearModel` of one predictor.

    Args:
      model: has the `LinearModel`.
      like: a state without chain dimensions.
    """

    def __init__(self, model: MinibatchLogProb, like: State):
        self._model, self._like = model, like

    def sums_and_norms(
        self, stacked: tf.Tensor, rows: Any, weights: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Returns weighted sums of values, gradients and Hessians, and `Moments.norms`.

        The Hessian is L^T H L if the draws are whitened, else H.

        Args:
          stacked: `Draws.stacked`.
          rows: a block.
          weights: of the rows, `[n]`.
        """
        found = self._expansions(stacked, rows)
        gradient = tf.linalg.matvec(found.jacobian, weights * found.slopes, transpose_a=True)
        bends = weights * found.bends
        if _has_all_directions(stacked):
            bent = bends * found.projections
            hessian = tf.linalg.matmul(bent, found.projections, transpose_b=True)
        else:
            bent = bends[:, tf.newaxis] * found.jacobian
            hessian = tf.linalg.matmul(bent, found.jacobian, transpose_a=True)
        return tf.reduce_sum(weights * found.values), gradient, hessian, _lengths(found)

    def moments(self, at: Draws, rows: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns `Moments`."""
        found = self._expansions(at.stacked, rows)
        if at.is_whitened:
            whitened = tf.transpose(found.projections)
        else:
            whitened = tf.linalg.matmul(found.jacobian, at.factor)
        remainders = found.remainders
        means = tf.reduce_mean(remainders, axis=0)[:, tf.newaxis] * whitened
        tilts = tf.linalg.matmul(remainders, at.z, transpose_a=True) * whitened / at.z.shape[0]
        return _lengths(found), means, tilts

    def _expansions(self, stacked: tf.Tensor, rows: Any) -> Expansions:
        jacobian, origin = self._predictor(rows)
        product = tf.linalg.matmul(stacked, jacobian, transpose_b=True)
        count = 1 + 2 * NUM_PAIRS
        eta = origin + product[:count]
        linear = self._model.linear_model
        assert linear is not None

        def derivatives(eta: tf.Tensor, probe: Any = None) -> Any:
            return value_and_gradient(
                lambda e: linear.log_prob(e, rows), eta, probe, connected=False
            )

        values, slopes, bends = derivatives(eta[0], tf.ones_like(eta[0]))
        remainders = derivatives(eta[1:])[1] - slopes - bends * (eta[1:] - eta[0])
        return Expansions(values, slopes, bends, remainders, jacobian, product[count:])

    def _predictor(self, rows: Any) -> tuple[tf.Tensor, Any]:
        """Returns J, `[n, D]`, and the predictors at a state of zeros, of which they are affine."""
        linear = self._model.linear_model
        if linear is not None and self._model.bijector is None:
            return linear.features(rows), 0.0
        dim, dtype = num_entries(self._like), tf.nest.flatten(self._like)[0].dtype
        at_zero = unflatten_events(tf.zeros([dim], dtype), self._like, 0)
        at_units = unflatten_events(tf.eye(dim, dtype=dtype), self._like, 0)
        origin = self._model.linear_predictor(at_zero, rows)
        return tf.transpose(self._model.linear_predictor(at_units, rows) - origin), origin


def is_simple(model: MinibatchLogProb) -> bool:
    """Returns whether a model is a `LinearModel` of one predictor."""
    linear = model.linear_model
    return linear is not None and linear.num_outputs is None


def _lengths(found: Expansions) -> tf.Tensor:
    """Returns root mean squares over draws of whitened remainders, `[n]`."""
    squares = tf.reduce_sum(found.projections**2, axis=0)
    return tf.sqrt(tf.reduce_mean(found.remainders**2, axis=0) * squares)


class Moments(NamedTuple):
    r"""Moments of rows' remainders over draws of Laplace's approximation, in whitened coordinates.

    Attributes:
      norms: root mean squares of \( |s_i| \), `[n]`.
      means: means of \( s_i \), `[n, D]`. By Stein's identity, a row that counts with an error e
        in its weight moves the posterior's mean by about e times this, in standard deviations.
      tilts: means of \( s_i z \), entry by entry, `[n, D]`, which change variances likewise.
    """

    norms: np.ndarray
    means: np.ndarray
    tilts: np.ndarray


class RowRemainders:
    r"""Computes \( s_i(\theta_k) \), the gradient of row i after its second-order expansion.

    \[
    s_i(\theta) = L^T \left( \nabla \log p(x_i \mid \theta) - \nabla \log p(x_i \mid \hat\theta)
      - \nabla^2 \log p(x_i \mid \hat\theta) \, (\theta - \hat\theta) \right), \qquad
    \theta_k = \hat\theta + L z_k
    \]

    The \( z_k \) are four standard normal draws and their mirror images, for which odd orders
    cancel exactly in `Moments.tilts`, and even ones in products with z.

    Args:
      model: evaluates log likelihoods.
      center: \( \hat\theta \).
      factor: L, `[D, D]`.
      seed: of the draws.
      jit_compile: whether XLA compiles blocks of rows.
      shift: z around which the draws lie, `[D]`; the mode if the center is not at it.
    """

    def __init__(
        self,
        model: MinibatchLogProb,
        center: State,
        factor: np.ndarray,
        seed: tf.Tensor,
        jit_compile: bool = True,
        shift: Any = 0.0,
    ):
        flat = flatten_events(center, 0)
        self._dim, self.factor = flat.shape[0], factor
        half = random.normal([NUM_PAIRS, self._dim], tf.float64, seed).numpy()
        z = np.concatenate([half, -half])
        self.at = Draws.of(flat.numpy(), z, (shift + z) @ factor.T, factor, flat.dtype)
        is_linear = is_simple(model)
        blocks = LinearBlocks(model, center) if is_linear else _BlockRemainders(model, center)
        each = self._dim * (1 if is_linear else 2 * NUM_PAIRS)
        #: The number of rows that are evaluated at once.
        self.block_rows = max(64, _MOST_NUMBERS // each)
        self._moments = kept_program(
            model,
            f"moments of rows, {jit_compile=}",
            center,
            lambda: traced(blocks.moments, jit_compile),
        )
        if isinstance(blocks, _BlockRemainders):
            self._norms = kept_program(
                model,
                f"norms of rows, {jit_compile=}",
                center,
                lambda: traced(blocks.norms, jit_compile),
            )

    def norms(self, rows: Any) -> np.ndarray:
        """Returns `Moments.norms` of a block of rows, unless the model is linear."""
        total, size, parts = len(tf.nest.flatten(rows)[0]), self.block_rows, []
        for start in range(0, total, size):
            part = tf.nest.map_structure(lambda x, a=start: x[a : a + size], rows)
            parts.append(self._norms(self.at, part).numpy())
        return np.concatenate(parts).astype(np.float64)

    def moments(self, rows: Any) -> Moments:
        """Returns the moments of a block of up to `block_rows` rows."""
        norms, means, tilts = (np.asarray(x) for x in self._moments(self.at, rows))
        return Moments(norms.astype(np.float64), means, tilts)


class _BlockRemainders:
    """Evaluates remainders of a block of rows; draws are arguments, so that programs are kept."""

    def __init__(self, model: MinibatchLogProb, like: State):
        self._model, self._like = model, like

    def norms(self, at: Draws, rows: Any) -> tf.Tensor:
        """Returns `Moments.norms`."""
        return _norms(self._slopes(at, rows))

    def moments(self, at: Draws, rows: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns `Moments`."""
        slopes = self._slopes(at, rows)
        tilts = tf.reduce_mean(slopes * at.z[:, tf.newaxis], axis=0)
        return _norms(slopes), tf.reduce_mean(slopes, axis=0), tilts

    def _slopes(self, at: Draws, rows: Any) -> tf.Tensor:
        """Returns remainders of whitened gradients at each draw, `[K, n, D]`."""
        size = tf.nest.flatten(rows)[0].shape[0]
        given = at.center + at.offsets, at.center, at.offsets
        remainders = expansion_remainders(self._model, self._like, rows, size, *given)
        return tf.linalg.matmul(remainders, at.factor)


def _norms(slopes: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.reduce_sum(slopes**2, axis=-1), axis=0))
