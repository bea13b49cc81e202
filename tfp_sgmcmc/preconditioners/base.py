"""What a preconditioner is, and what it gives to samplers."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.state import State


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
