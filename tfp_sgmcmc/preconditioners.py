"""The matrix M of preconditioned Langevin dynamics: constant, adaptive, or a function of theta.

The dynamics that leave exp(log p) invariant are

  d theta = 1/2 (M grad log p + div M) dt + M^(1/2) dW,   (div M)_i = sum_j d M_ij / d theta_j.

A preconditioner is evaluated at a state and gives a `LocalMatrix`, the few operations with M that
samplers need. Without the drift div M, a position-dependent M samples another distribution.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

State = Any  # a tensor, or any nest of tensors


class LocalMatrix(NamedTuple):
    """Operations with M at one state; every argument and result has the structure of the state.

    Attributes:
      multiply: v -> M v.
      sqrt_multiply: z -> S z with S S^T = M.
      divergence: div M at the state, or None where it is zero.
      inverse_quadratic: v -> v^T M^-1 v, shape `[chains...]`, or None where it is not known.
      log_det: log det M, shape `[chains...]` or broadcastable to it, or None likewise.
    """

    multiply: Callable[[State], State]
    sqrt_multiply: Callable[[State], State]
    divergence: State | None = None
    inverse_quadratic: Callable[[State], tf.Tensor] | None = None
    log_det: Any = None


class GradientInfo(NamedTuple):
    """What an adaptive preconditioner may learn from at a step.

    Attributes:
      gradient: the gradient estimate of the log posterior (a sum over N examples).
      num_examples: N.
      probe: random signs, and `hessian_product`, the estimate's Hessian times `probe`, for
        preconditioners with `needs_curvature`.
    """

    gradient: State
    num_examples: int
    probe: State = None
    hessian_product: State = None


class Preconditioner(abc.ABC):
    """Base class. `chain_ndims` is the number of leading chain dimensions of the state."""

    #: Whether `evaluate` uses Hessian products.
    needs_curvature = False

    def init(self, state: State) -> Any:
        """The preconditioner's own state before the first step."""
        del state
        return ()

    @abc.abstractmethod
    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        """Returns M at `state`, and the preconditioner's own next state."""


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
            if not np.issubdtype(np.asarray(leaf).dtype, np.number):
                raise TypeError(f"scale is {leaf!r}; positive numbers are expected.")
            if not np.all((np.asarray(leaf) > 0) & np.isfinite(leaf)):
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
            s = tf.convert_to_tensor(s, x.dtype)
            check_broadcasts("scale", s, x)
            return s

        if not (tf.nest.is_nested(state) and tf.nest.is_nested(scale)):
            return tf.nest.map_structure(lambda x: convert(x, scale), state)
        return tree.map_structure_up_to(
            state, convert, state, match_structure("scale", scale, state)
        )


class FullMatrix(Preconditioner):
    """M = a constant symmetric positive definite matrix over the whole state.

    Its Cholesky factor is taken once, here.

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
        if not np.allclose(matrix, matrix.T, rtol=1e-5, atol=1e-6 * np.abs(matrix).max()):
            raise ValueError("matrix is not symmetric.")
        try:
            factor = np.linalg.cholesky((matrix + matrix.T) / 2)
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
            return lambda v: unflatten_events(
                tf.linalg.matmul(flatten_events(v, chain_ndims), transposed), v, chain_ndims
            )

        whiten = times(self._whitener)
        return LocalMatrix(
            multiply=times(self.matrix),
            sqrt_multiply=times(self._factor),
            inverse_quadratic=lambda v: squared_norm(whiten(v), chain_ndims),
            log_det=tf.constant(self._log_det, dtype),
        ), own


class RMSprop(Preconditioner):
    r"""M = diag(1 / (epsilon + sqrt(V))): the preconditioner of pSGLD.

    \[
    V_t = \text{decay}\, V_{t-1} + (1 - \text{decay})\, (g_t / N)^2, \qquad
    M_t = \operatorname{diag}\bigl(1 / (\epsilon + \sqrt{V_t})\bigr), \qquad V_0 = 0
    \]

    with g the gradient estimate, and, with V_{t-1} held fixed,

    \[
    (\operatorname{div} M)_i = - \frac{(1 - \text{decay})\, g_i H_{ii} / N^2}
      {\sqrt{V_i}\, (\epsilon + \sqrt{V_i})^2}, \qquad H = \nabla g .
    \]

    The diagonal of H is estimated without bias by z * (H z) with random signs z; this costs about
    two gradients more a step. Li et al. leave the term out, which `gamma=False` does too: right
    only in the limit decay -> 1. (They average the likelihood's gradients alone; here g includes
    the prior.) While V is near V_0 = 0 the term can throw a chain far: burn in, or raise epsilon.

    V_{t-1} depends on earlier states, and no term corrects for that. The chain is right for small
    steps when decay = 0, or when 1 - decay is so small that V hardly moves while the chain crosses
    the posterior; in between M follows the chain, and the limit of small steps is proportional to
    \( p(\theta) M(\theta)^{-\text{decay}} \): on N(0, 1) with epsilon = 0.5, decay = 0.9 gives a
    variance of 1.5.

    Args:
      decay: of the average of squared gradients, in [0, 1).
      epsilon: bounds M from above by 1/epsilon.
      gamma: whether to include div M.

    Raises:
      ValueError: `decay` or `epsilon` out of range.

    #### References

    C. Li, C. Chen, D. Carlson and L. Carin. Preconditioned stochastic gradient Langevin dynamics
    for deep neural networks. AAAI, 2016. Algorithm 1, equations 3-5.
    """

    def __init__(self, decay: float = 0.99, epsilon: float = 1e-5, gamma: bool = True):
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; a number in [0, 1) is expected.")
        if not epsilon > 0:
            raise ValueError(f"epsilon is {epsilon}; a positive number is expected.")
        self.decay, self.epsilon, self.gamma = decay, epsilon, gamma
        self.needs_curvature = gamma

    def init(self, state: State) -> State:
        return tf.nest.map_structure(tf.zeros_like, state)

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        if info is None:
            raise ValueError("RMSprop learns from gradients; it has no M for a corrected kernel.")
        decay, total = self.decay, info.num_examples
        average = tf.nest.map_structure(
            lambda v, g: decay * v + (1 - decay) * (g / total) ** 2, own, info.gradient
        )
        scales = tf.nest.map_structure(lambda v: 1 / (self.epsilon + tf.sqrt(v)), average)

        def divergence(
            v: tf.Tensor, m: tf.Tensor, g: tf.Tensor, z: tf.Tensor, hz: tf.Tensor
        ) -> tf.Tensor:
            slope = tf.math.divide_no_nan(g / total, tf.sqrt(v))  # bounded by (1-decay)^-1/2
            return -(1 - decay) * slope * (z * hz / total) * m**2

        return LocalMatrix(
            multiply=lambda v: tf.nest.map_structure(tf.multiply, scales, v),
            sqrt_multiply=lambda v: tf.nest.map_structure(lambda m, x: tf.sqrt(m) * x, scales, v),
            divergence=tf.nest.map_structure(
                divergence, average, scales, info.gradient, info.probe, info.hessian_product
            )
            if self.gamma
            else None,
        ), average


class PositionDependent(Preconditioner):
    """M(theta), given as functions of the state.

    Every vector has the structure and shape of the state, chain dimensions included.

    Args:
      multiply_fn: `(state, v) -> M v`.
      sqrt_multiply_fn: `(state, z) -> S z` with S S^T = M.
      divergence_fn: `state -> div M`, the vector of sums over j of d M_ij / d theta_j.
      inverse_quadratic_fn: `(state, v) -> v^T M^-1 v`, shape `[chains...]`; only corrected kernels
        need it, and
      log_det_fn: `state -> log det M`, shape `[chains...]`.
    """

    def __init__(
        self,
        multiply_fn: Callable[[State, State], State],
        sqrt_multiply_fn: Callable[[State, State], State],
        divergence_fn: Callable[[State], State],
        inverse_quadratic_fn: Callable[[State, State], tf.Tensor] | None = None,
        log_det_fn: Callable[[State], tf.Tensor] | None = None,
    ):
        self.multiply_fn, self.sqrt_multiply_fn = multiply_fn, sqrt_multiply_fn
        self.divergence_fn = divergence_fn
        self.inverse_quadratic_fn, self.log_det_fn = inverse_quadratic_fn, log_det_fn

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        quadratic, log_det = self.inverse_quadratic_fn, self.log_det_fn
        return LocalMatrix(
            multiply=lambda v: self.multiply_fn(state, v),
            sqrt_multiply=lambda v: self.sqrt_multiply_fn(state, v),
            divergence=self.divergence_fn(state),
            inverse_quadratic=None if quadratic is None else lambda v: quadratic(state, v),
            log_det=None if log_det is None else log_det(state),
        ), own


class NaturalGradientICA(PositionDependent):
    r"""The natural gradient of independent component analysis, M(W) G = G W^T W.

    The state is one matrix W, `[chains..., d, d]`. S Z = Z W, (div M)(W) = (d + 1) W,
    log det M = 2 d log |det W|.

    #### References

    S. Amari, A. Cichocki and H. Yang. A new algorithm for blind signal separation. NIPS, 1996.
    M. Welling and Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML,
    2011. Section 5.3.
    """

    def __init__(self) -> None:
        super().__init__(
            multiply_fn=lambda w, v: v @ tf.linalg.matrix_transpose(w) @ w,
            sqrt_multiply_fn=lambda w, z: z @ w,
            divergence_fn=lambda w: (w.shape[-1] + 1.0) * w,
            inverse_quadratic_fn=lambda w, v: tf.reduce_sum(
                tf.square(v @ tf.linalg.inv(w)), axis=[-2, -1]
            ),
            log_det_fn=lambda w: 2.0 * w.shape[-1] * tf.linalg.slogdet(w)[1],
        )


def as_preconditioner(value: Any) -> Preconditioner:
    """Returns a preconditioner as it is, None as the identity, and numbers as `Diagonal`."""
    if isinstance(value, Preconditioner):
        return value
    return Diagonal(1.0 if value is None else value)


def match_structure(name: str, value: Any, state: State) -> Any:
    """Returns `value`, a nest; raises ValueError unless it has one entry a part of the state."""
    try:
        picked = tree.map_structure_up_to(state, lambda _, v: v, state, value)
        left_over = len(tf.nest.flatten(picked)) != len(tf.nest.flatten(value))
    except (TypeError, ValueError):
        left_over = True
    if left_over:
        raise ValueError(
            f"{name} is {value}, which has not the structure of the state, whose parts have "
            f"shapes {tf.nest.map_structure(lambda x: x.shape, state)}."
        )
    return value


def check_broadcasts(name: str, value: tf.Tensor, part: tf.Tensor) -> None:
    """Raises ValueError unless `value` broadcasts to the shape of a part of the state."""
    try:
        fits = part.shape.is_compatible_with(tf.broadcast_static_shape(value.shape, part.shape))
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} has shape {value.shape}, which does not broadcast to a state part of shape "
            f"{part.shape}."
        )


def sum_events(x: State, chain_ndims: int) -> tf.Tensor:
    """Sums every part over its event dimensions, and the parts: shape `[chains...]`."""
    parts = tf.nest.flatten(x)
    return tf.add_n([tf.reduce_sum(p, list(range(chain_ndims, p.shape.rank))) for p in parts])


def squared_norm(x: State, chain_ndims: int) -> tf.Tensor:
    """Squared Euclidean norm over all parts, `[chains...]`."""
    if chain_ndims:
        return sum_events(tf.nest.map_structure(tf.square, x), chain_ndims)
    flat = [tf.reshape(p, [-1]) for p in tf.nest.flatten(x)]
    return tf.add_n([tf.tensordot(p, p, 1) for p in flat])  # XLA vectorises these, not plain sums


def flatten_events(x: State, chain_ndims: int) -> tf.Tensor:
    """Concatenates the parts' entries: `[chains..., D]` (`[1, D]` without chain dimensions)."""
    chains = tf.shape(tf.nest.flatten(x)[0])[:chain_ndims] if chain_ndims else [1]
    parts = [
        tf.reshape(p, tf.concat([chains, [p.shape[chain_ndims:].num_elements()]], axis=0))
        for p in tf.nest.flatten(x)
    ]
    return tf.concat(parts, axis=-1)


def unflatten_events(flat: tf.Tensor, like: State, chain_ndims: int) -> State:
    """The inverse of `flatten_events`, to the shapes of `like`."""
    parts = tf.nest.flatten(like)
    pieces = tf.split(flat, [p.shape[chain_ndims:].num_elements() for p in parts], axis=-1)
    return tf.nest.pack_sequence_as(
        like, [tf.reshape(x, tf.shape(p)) for x, p in zip(pieces, parts, strict=True)]
    )
