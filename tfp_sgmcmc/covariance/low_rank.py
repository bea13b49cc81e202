"""Low-rank estimates of the covariance of the gradient noise: the scores themselves."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfp_sgmcmc.covariance.averages import Average, AverageState, History
from tfp_sgmcmc.covariance.base import CovarianceEstimator, degrees_of_freedom
from tfp_sgmcmc.covariance.factored_scores import pad_rows
from tfp_sgmcmc.covariance.matrices import LowRankMatrix, Matrix
from tfp_sgmcmc.covariance.solvers import Solver
from tfp_sgmcmc.internal.checks import boolean


class LowRank(CovarianceEstimator):
    """V as the centred scores of the last minibatches; no D x D matrix is formed.

    Each chain keeps the scores of K + lag minibatches, n rows of D numbers each, and uses those of
    K. V is noisy unless K n is much larger than D. Noise biases samplers that solve with V (NOGIN,
    SGFS): keep more minibatches, or take smaller steps.

    Arguments and exceptions are those of `CovarianceEstimator`, but `average` is a `History`; None
    stands for `History(4, lag=4)`, or `History(4)` if `include_current` is True.
    """

    methods = ("auto", "cg", "woodbury")
    name = "low_rank"

    def __init__(
        self,
        average: Average | None = None,
        include_current: bool = False,
        solver: str | Solver = "auto",
    ):
        boolean("include_current", include_current)
        average = History(4, lag=0 if include_current else 4) if average is None else average
        super().__init__(average, include_current, solver)
        if not isinstance(self.average, History):
            raise ValueError(
                "average must be History(...) for covariance='low_rank', which keeps the scores "
                f"themselves. Received: a {type(average).__name__}."
            )
        self._history = self.average

    def _shape(self, size: int, num_scores: int | None) -> list[int]:
        if num_scores is None:
            raise ValueError(
                "covariance='low_rank' must know the number of scores of a minibatch beforehand, "
                "because it keeps them. Received: batches of no fixed size. In fit, pass a "
                "batch_size that divides the number of examples, or num_groups."
            )
        return [num_scores, size]

    def _statistic(self, centred: tf.Tensor) -> tf.Tensor:
        return centred / degrees_of_freedom(centred) ** 0.5

    def _variances(self, statistic: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.square(statistic), axis=-2)

    def _update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor
    ) -> tuple[Matrix, AverageState]:
        statistic = pad_rows(statistic, own.value.shape[-2])
        slots, own = self._history.update_slots(own, statistic, accept, self.include_current)
        return self._matrix(slots), own

    def _matrix(self, value: Any) -> Matrix:
        rows, weights = value  # [chains..., K, n, D], [chains..., K]
        slots, n, size = rows.shape[-3:]
        rows = tf.reshape(rows, tf.concat([tf.shape(rows)[:-3], [slots * n, size]], axis=0))
        return LowRankMatrix(rows, tf.repeat(weights, n, axis=-1), self.solver)
