"""The matrix M of preconditioned Langevin dynamics: constant, adaptive, or a function of theta.

The dynamics that leave exp(log p) invariant are

  d theta = 1/2 (M grad log p + div M) dt + M^(1/2) dW,   (div M)_i = sum_j d M_ij / d theta_j.

A preconditioner is evaluated at a state and returns a `LocalMatrix`, the operations with M that
samplers need. Without the drift div M, a position-dependent M samples another distribution.
"""

from tfp_sgmcmc.preconditioners.base import (
    Diagonal,
    FullMatrix,
    GradientInfo,
    LocalMatrix,
    Preconditioner,
    as_preconditioner,
)
from tfp_sgmcmc.preconditioners.position_dependent import NaturalGradientICA, PositionDependent
from tfp_sgmcmc.preconditioners.rmsprop import RMSprop

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
