"""The covariance of the gradient noise: estimate it, multiply, solve and draw with it."""

from tfp_sgmcmc.covariance.averages import History, RunningMean
from tfp_sgmcmc.covariance.estimators import (
    Block,
    CovarianceEstimator,
    CovarianceState,
    Diag,
    Full,
    LowRank,
    as_covariance,
)
from tfp_sgmcmc.covariance.operators import NoiseCovariance
from tfp_sgmcmc.covariance.solvers import Solver

__all__ = [
    "Block",
    "CovarianceEstimator",
    "CovarianceState",
    "Diag",
    "Full",
    "History",
    "LowRank",
    "NoiseCovariance",
    "RunningMean",
    "Solver",
    "as_covariance",
]
