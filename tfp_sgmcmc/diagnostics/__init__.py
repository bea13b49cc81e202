"""Whether a chain can be trusted: errors against a reference, and chains that broke down."""

from tfp_sgmcmc.diagnostics.errors import relative_covariance_error, relative_mean_error
from tfp_sgmcmc.diagnostics.finite import NonFiniteChainError, check_finite

__all__ = [
    "NonFiniteChainError",
    "check_finite",
    "relative_covariance_error",
    "relative_mean_error",
]
