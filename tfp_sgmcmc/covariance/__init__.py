"""The covariance of the gradient noise: estimate it, multiply, solve and draw with it.

An estimate made from the minibatch that gives the gradient depends on that gradient, and biases
samplers: NOGIN's posterior standard deviations on a logistic regression (N = 12214, n = 500,
D = 129) came out wrong by a factor of 2.6 with it, and right to 2% with an average of earlier
minibatches. That is the default; `include_current=True` is the way of the papers.
"""

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
