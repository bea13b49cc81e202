"""The matrix M of preconditioned Langevin dynamics: constant, adaptive, or a function of theta.

The dynamics that leave exp(log p) invariant are

  d theta = 1/2 (M grad log p + div M) dt + M^(1/2) dW,   (div M)_i = sum_j d M_ij / d theta_j.

A preconditioner is evaluated at a state and returns a `LocalMatrix`, the operations with M that
samplers need. Without the drift div M, a position-dependent M samples another distribution.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import accepts, array, boolean, number, numbers, positive, require
from tfp_sgmcmc.internal.nest import (
    State,
    by_part,
    flatten_events,
    num_entries,
    returned_by,
    squared_norm,
    sum_events,
    unflatten_events,
)

__all__ = [
    "Diagonal",
    "FullMatrix",
    "GradientInfo",
    "LocalMatrix",
    "NaturalGradientICA",
    "PositionDependent",
    "Preconditioner",
    "RMSprop",
    "as_preconditioner",
]

# The asymmetry allowed, relative to (M_ii M_jj)^(1/2). `float32` inverses from tf.linalg.inv reach
# 4e-4 at condition number 10^5.
_ASYMMETRY = 1e-3


class LocalMatrix(NamedTuple):
    """Operations with M at one state, on vectors in the structure of the state.

    Attributes:
      multiply: v -> M v.
      sqrt_multiply: z -> S z with S S^T = M.
      divergence: div M at the state, or None if it is zero.
      inverse_quadratic: v -> v^T M^-1 v, shape `[chains...]`, or None if it is unknown.
      log_det: log det M, shape `[chains...]` or broadcastable to it, or None if it is unknown.
    """

    multiply: Callable[[State], State]
    sqrt_multiply: Callable[[State], State]
    divergence: State | None = None
    inverse_quadratic: Callable[[State], tf.Tensor] | None = None
    log_det: Any = None


class GradientInfo(NamedTuple):
    """The gradient information of a step, from which adaptive preconditioners learn.

    Attributes:
      gradient: the gradient estimate of the log posterior (a sum over N examples).
      num_examples: N.
      probe: random signs, for preconditioners with `needs_curvature`.
      hessian_product: the estimate's Hessian times `probe`, for the same preconditioners.
    """

    gradient: State
    num_examples: int
    probe: State = None
    hessian_product: State = None


class Preconditioner(abc.ABC):
    """The base class of preconditioners.

    `chain_ndims` is the number of leading chain dimensions of the state. A preconditioner that
    learns keeps what it has learnt in `own`, which kernels carry from step to step.
    """

    #: Whether `evaluate` uses Hessian products.
    needs_curvature = False

    def init(self, state: State) -> Any:
        """Returns `own` before the first step."""
        del state
        return ()

    @abc.abstractmethod
    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        """Returns M at `state`, and the next `own`."""


class Diagonal(Preconditioner):
    """M = diag(scale): a constant scalar or diagonal matrix.

    Examples:
      >>> import tfp_sgmcmc as sgmcmc
      >>> m, _ = sgmcmc.preconditioners.Diagonal([4., 9.]).evaluate(tf.zeros([2]), chain_ndims=0)
      >>> m.sqrt_multiply(tf.ones([2])).numpy()
      array([2., 3.], dtype=float32)

    Args:
      scale: a positive number or array that broadcasts with every state part, or one for each part.

    Raises:
      TypeError: an entry is not a number.
      ValueError: an entry is not positive and finite.
    """

    def __init__(self, scale: Any):
        numbers("scale", scale, "a positive finite number")
        self.scale, self._name = scale, "scale"

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        scales = by_part(self._name, self.scale, state)
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


class FullMatrix(Preconditioner):
    """M = a constant symmetric positive definite matrix over the whole state.

    Entries M_ij and M_ji, which are averaged, may differ by 0.001 (M_ii M_jj)^(1/2), as in a
    `float32` inverse. The constructor computes the Cholesky factor.

    Args:
      matrix: `[D, D]`, where D is the number of entries of all state parts of one chain, in the
        order of `tf.nest.flatten` and row-major within a part.

    Raises:
      TypeError: the matrix is not an array of numbers.
      ValueError: the matrix is not square, not symmetric or not positive definite. At the first
        step: its size differs from the size of the state.
    """

    def __init__(self, matrix: Any):
        matrix = array("matrix", matrix, least_ndim=0).astype(np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"matrix must be square, [D, D]. Received: shape {matrix.shape}.")
        scale = np.sqrt(np.abs(np.diag(matrix)))
        is_symmetric = np.all(np.abs(matrix - matrix.T) <= _ASYMMETRY * np.outer(scale, scale))
        require("matrix", "a matrix that is not", is_symmetric, "symmetric")
        matrix = (matrix + matrix.T) / 2
        try:
            factor = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError as error:
            raise ValueError(
                "matrix must be positive definite. Received: a matrix whose smallest eigenvalue is "
                f"{np.linalg.eigvalsh(matrix)[0]:.3g}."
            ) from error
        self.matrix, self._factor = matrix, factor
        self._whitener = np.linalg.inv(factor)
        self._log_det = 2 * np.sum(np.log(np.diag(factor)))

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        dtype = tf.nest.flatten(state)[0].dtype
        size = num_entries(state, chain_ndims)
        if size != len(self.matrix):
            raise ValueError(
                f"matrix must have shape [{size}, {size}], because a chain's state has {size} "
                f"entries. Received: shape {self.matrix.shape}."
            )

        def times(matrix: np.ndarray) -> Callable[[State], State]:
            with tf.init_scope():  # a captured tensor, not a constant in every compiled program
                transposed = tf.constant(matrix.T, dtype)

            def product(v: State) -> State:
                flat = flatten_events(v, chain_ndims)
                rows = flat if chain_ndims else flat[tf.newaxis]
                products = tf.linalg.matmul(rows, transposed)
                return unflatten_events(products if chain_ndims else products[0], v, chain_ndims)

            return product

        whiten = times(self._whitener)
        return LocalMatrix(
            multiply=times(self.matrix),
            sqrt_multiply=times(self._factor),
            inverse_quadratic=lambda v: squared_norm(whiten(v), chain_ndims),
            log_det=tf.constant(self._log_det, dtype),
        ), own


class PositionDependent(Preconditioner):
    """M(theta), given as functions of the state.

    Vectors have the structure and shape of the state, including its chain dimensions.

    Args:
      multiply_fn: `(state, v) -> M v`.
      sqrt_multiply_fn: `(state, z) -> S z` with S S^T = M.
      divergence_fn: `state -> div M`, the vector of sums over j of d M_ij / d theta_j; zero for a
        constant M.
      inverse_quadratic_fn: `(state, v) -> v^T M^-1 v`, shape `[chains...]`. Only corrected kernels
        need it.
      log_det_fn: `state -> log det M`, shape `[chains...]`. Only corrected kernels need it.

    Raises:
      TypeError: a function is not callable with these arguments. At the first step: it does not
        return numbers.
      ValueError: at the first step: a function returns None, another structure than the state's, or
        a shape that does not fit.
    """

    def __init__(
        self,
        multiply_fn: Callable[[State, State], State],
        sqrt_multiply_fn: Callable[[State, State], State],
        divergence_fn: Callable[[State], State],
        inverse_quadratic_fn: Callable[[State, State], tf.Tensor] | None = None,
        log_det_fn: Callable[[State], tf.Tensor] | None = None,
    ):
        self.multiply_fn = accepts("multiply_fn", multiply_fn, "state", "v")
        self.sqrt_multiply_fn = accepts("sqrt_multiply_fn", sqrt_multiply_fn, "state", "z")
        self.divergence_fn = accepts("divergence_fn", divergence_fn, "state")
        if inverse_quadratic_fn is not None:
            accepts("inverse_quadratic_fn", inverse_quadratic_fn, "state", "v")
        if log_det_fn is not None:
            accepts("log_det_fn", log_det_fn, "state")
        self.inverse_quadratic_fn, self.log_det_fn = inverse_quadratic_fn, log_det_fn

    def init(self, state: State) -> tuple[()]:
        """Returns nothing; raises here, before the first step, for functions that do not fit."""
        zeros = tf.nest.map_structure(tf.zeros_like, state)
        for name in ("multiply_fn", "sqrt_multiply_fn"):
            product = returned_by(name, getattr(self, name)(state, zeros), state)
            for part in map(tf.get_static_value, tf.nest.flatten(product)):
                if part is not None and np.any(part):
                    raise ValueError(
                        f"{name} must be linear in its second argument. Received: a product with "
                        f"zero of up to {np.abs(part).max():.3g}."
                    )
        return ()

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, Any]:
        quadratic, log_det = self.inverse_quadratic_fn, self.log_det_fn
        chains = _entry_of_each_chain(state, chain_ndims)

        def vector(name: str, value: Any) -> State:
            return returned_by(name, value, state)

        def by_chain(name: str, value: Any) -> tf.Tensor:
            return returned_by(name, value, chains)

        return LocalMatrix(
            multiply=lambda v: vector("multiply_fn", self.multiply_fn(state, v)),
            sqrt_multiply=lambda v: vector("sqrt_multiply_fn", self.sqrt_multiply_fn(state, v)),
            divergence=vector("divergence_fn", self.divergence_fn(state)),
            inverse_quadratic=None
            if quadratic is None
            else lambda v: by_chain("inverse_quadratic_fn", quadratic(state, v)),
            log_det=None if log_det is None else by_chain("log_det_fn", log_det(state)),
        ), own


class NaturalGradientICA(PositionDependent):
    r"""The natural gradient of independent component analysis, M(W) G = G W^T W.

    The state is one matrix W, `[chains..., d, d]`. S Z = Z W, (div M)(W) = (d + 1) W,
    log det M = 2 d log |det W|.

    References:
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
            log_det_fn=lambda w: 2.0 * w.shape[-1] * _log_abs_det(w),
        )


class SquaredGradients(NamedTuple):
    """The average that `RMSprop` carries between steps.

    Attributes:
      average: V, in the structure and shapes of the state.
      size: s, the number of gradients that the average is worth, a scalar.
    """

    average: State
    size: tf.Tensor


class RMSprop(Preconditioner):
    r"""M = diag(1 / (epsilon + sqrt(V))): the preconditioner of pSGLD.

    \[
    s_t = 1 + \text{decay}\, s_{t-1}, \qquad
    V_t = V_{t-1} + \frac1{s_t} \bigl((g_t / N)^2 - V_{t-1}\bigr), \qquad
    M_t = \operatorname{diag}\bigl(1 / (\epsilon + \sqrt{V_t})\bigr)
    \]

    where g is the gradient estimate and s_0 = 0. V_t is the mean of the squared gradients so far,
    with weights that decay by `decay` at each step. With V_{t-1} held fixed,

    \[
    (\operatorname{div} M)_i = - \frac{g_i H_{ii} / N^2}
      {s_t \sqrt{V_i}\, (\epsilon + \sqrt{V_i})^2}, \qquad H = \nabla g .
    \]

    div M is taken as zero while decay^t > 1/e, for about the first 1/(1 - decay) steps, because an
    average of few gradients is sometimes nearly zero by chance, and the term would throw a chain
    hundreds of posterior standard deviations off. After that, z * (H z) with random signs z
    estimates the diagonal of H without bias, for about two more gradients in each step.

    Li et al. start from V_0 = 0 with 1 - decay in place of 1/s_t, which makes the first steps
    larger by a factor of up to (1 - decay)^-1/2. They average the gradients of the likelihood, and
    not the prior's. They leave out div M (`gamma=False`), which is right only as decay -> 1.

    Two limits remain. An entry whose first gradient is small by chance takes a wide first step, of
    standard deviation (step_size N / |g|)^(1/2). And V_{t-1} depends on earlier states, which no
    term corrects. The chain is right for small steps if decay = 0, or if 1/(1 - decay) is many
    times the number of steps in which the chain crosses the posterior, so that V hardly moves. In
    between, M follows the chain, and the limit of small steps is proportional to
    \( p(\theta) M(\theta)^{-\text{decay}} \). On N(0, 1) with epsilon = 0.5, decay = 0.9 gives a
    variance of 1.5. On the posterior of `python -m tfp_sgmcmc`, crossed in some 3000 steps, the
    relative error of the mean is 0.12, 0.055 and 0.029 with decay 0.99, 0.999 and 0.9999, and 0.022
    with the constant M that they approach. `gamma` makes no difference there.

    Args:
      decay: decay of the weights of past squared gradients, in [0, 1).
      epsilon: positive; it bounds M from above by 1/epsilon.
      gamma: whether to include div M.

    Raises:
      ValueError: `decay` or `epsilon` is out of range.
      TypeError: an argument is of another type.

    References:
      C. Li, C. Chen, D. Carlson and L. Carin. Preconditioned stochastic gradient Langevin dynamics
      for deep neural networks. AAAI, 2016. Algorithm 1, equations 3-5.

      D. P. Kingma and J. Ba. Adam: a method for stochastic optimization. ICLR, 2015. Section 3 has
      the correction of the initial bias, 1/s_t in place of 1 - decay.
    """

    def __init__(self, decay: float = 0.99, epsilon: float = 1e-5, gamma: bool = True):
        self.decay = number("decay", decay, "a number in [0, 1)", lambda x: 0 <= x < 1)
        self.epsilon, self.gamma = positive("epsilon", epsilon), boolean("gamma", gamma)
        self.needs_curvature = gamma

    def init(self, state: State) -> SquaredGradients:
        dtype = tf.nest.flatten(state)[0].dtype
        size = tf.zeros([], dtype if dtype.size >= 4 else tf.float32)  # in which 0.999 < 1
        return SquaredGradients(tf.nest.map_structure(tf.zeros_like, state), size)

    def evaluate(
        self, state: State, chain_ndims: int, own: Any = (), info: GradientInfo | None = None
    ) -> tuple[LocalMatrix, SquaredGradients]:
        if info is None:
            raise ValueError(
                "RMSprop must learn from gradient estimates, which a corrected kernel does not "
                "have. Received: no gradient. Use a preconditioner that depends on the state only."
            )
        total, size = info.num_examples, 1 + self.decay * own.size
        average = tf.nest.map_structure(
            lambda v, g: v + ((g / total) ** 2 - v) / tf.cast(size, v.dtype),
            own.average,
            info.gradient,
        )
        scales = tf.nest.map_structure(lambda v: 1 / (self.epsilon + tf.sqrt(v)), average)
        settled = size * (1 - self.decay) >= 1 - math.exp(-1)  # (1 - decay) s_t = 1 - decay^t

        def divergence(
            v: tf.Tensor, m: tf.Tensor, g: tf.Tensor, z: tf.Tensor, hz: tf.Tensor
        ) -> tf.Tensor:
            slope = tf.math.divide_no_nan(g / total, tf.sqrt(v))  # bounded by s_t^1/2
            slope /= tf.cast(size, slope.dtype)
            return tf.where(settled, -slope * (z * hz / total) * m**2, 0.0)

        return LocalMatrix(
            multiply=lambda v: tf.nest.map_structure(tf.multiply, scales, v),
            sqrt_multiply=lambda v: tf.nest.map_structure(lambda m, x: tf.sqrt(m) * x, scales, v),
            divergence=tf.nest.map_structure(
                divergence, average, scales, info.gradient, info.probe, info.hessian_product
            )
            if self.gamma
            else None,
        ), SquaredGradients(average, size)


def as_preconditioner(value: Any) -> Preconditioner:
    """Returns a preconditioner unchanged, the identity for None, and `Diagonal` for numbers."""
    if isinstance(value, Preconditioner):
        return value
    value = 1.0 if value is None else value
    numbers("preconditioner", value, "a positive finite number")
    diagonal = Diagonal(value)
    diagonal._name = "preconditioner"  # in messages about its shape
    return diagonal


def _entry_of_each_chain(state: State, chain_ndims: int) -> tf.Tensor:
    part = tf.nest.flatten(state)[0]
    return part[(..., *[0] * (part.shape.rank - chain_ndims))]


def _log_abs_det(w: tf.Tensor) -> tf.Tensor:
    """Returns log |det W|, by QR because `tf.linalg.slogdet` has no kernel in XLA."""
    diagonal = tf.linalg.diag_part(tf.linalg.qr(w).r)
    return tf.reduce_sum(tf.math.log(tf.abs(diagonal)), axis=-1)
