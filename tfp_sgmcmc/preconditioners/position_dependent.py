"""Matrices that are known functions of the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import accepts
from tfp_sgmcmc.internal.nest import State, returned_by
from tfp_sgmcmc.preconditioners.base import GradientInfo, LocalMatrix, Preconditioner


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


def _entry_of_each_chain(state: State, chain_ndims: int) -> tf.Tensor:
    part = tf.nest.flatten(state)[0]
    return part[(..., *[0] * (part.shape.rank - chain_ndims))]


def _log_abs_det(w: tf.Tensor) -> tf.Tensor:
    """Returns log |det W|, by QR because `tf.linalg.slogdet` has no kernel in XLA."""
    diagonal = tf.linalg.diag_part(tf.linalg.qr(w).r)
    return tf.reduce_sum(tf.math.log(tf.abs(diagonal)), axis=-1)
