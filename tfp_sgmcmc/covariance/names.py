"""The names of the estimators, as samplers take them in their argument `covariance`."""

from __future__ import annotations

from typing import Any

from tfp_sgmcmc.covariance.averages import Average
from tfp_sgmcmc.covariance.base import CovarianceEstimator
from tfp_sgmcmc.covariance.diag import Diag, Zero
from tfp_sgmcmc.covariance.full import Block, Full
from tfp_sgmcmc.covariance.low_rank import LowRank

KINDS = {kind.name: kind for kind in (Full, Block, Diag, LowRank)}


def as_covariance(
    value: Any, average: Average | None = None, exact: bool = False
) -> CovarianceEstimator:
    """Returns the estimator that `value` names, or `value` if it is an estimator.

    Args:
      value: `"full"`, `"block"`, `"diag"`, `"low_rank"`, or a `CovarianceEstimator`.
      average: the sampler's choice for an estimator that has no average. A `low_rank` estimator
        always has one.
      exact: whether gradients are exact, which makes Sigma zero.

    Raises:
      ValueError: `value` is an unknown name or not an estimator.
    """
    if not isinstance(value, CovarianceEstimator):
        if not isinstance(value, str) or value not in KINDS:
            raise ValueError(
                f"covariance must be one of {', '.join(KINDS)}, or an estimator of "
                f"tfp_sgmcmc.covariance. Received: {value!r}."
            )
        value = KINDS[value]()
    if exact:
        return Zero()
    return value if average is None else value.with_average(average)
