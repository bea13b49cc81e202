"""The interface between preconditioners and samplers."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.internal.nest import State


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
