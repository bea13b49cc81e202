"""Diagonal estimates of the covariance of the gradient noise, and the exact zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.covariance.base import CovarianceEstimator, CovarianceState, degrees_of_freedom
from tfp_sgmcmc.covariance.factored_scores import FactoredScores
from tfp_sgmcmc.covariance.matrices import DiagonalMatrix, Matrix
from tfp_sgmcmc.covariance.operators import NoiseCovariance
from tfp_sgmcmc.internal.nest import State, flatten_events


class Diag(CovarianceEstimator):
    """The diagonal of V, without a D x D matrix; arguments are those of `CovarianceEstimator`."""

    name = "diag"

    def groups(self, parts: Sequence[tf.Tensor]) -> list[list[int]]:
        return [[i] for i in range(len(parts))]

    def _shape(self, size: int, num_scores: int | None) -> list[int]:
        return [size]

    def _statistic_of(self, rows: Sequence[Any], chain_ndims: int) -> tf.Tensor:
        if len(rows) == 1 and isinstance(rows[0], FactoredScores):
            return rows[0].variances()
        return super()._statistic_of(rows, chain_ndims)

    def _statistic(self, centred: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.square(centred), axis=-2) / degrees_of_freedom(centred)

    def _variances(self, statistic: tf.Tensor) -> tf.Tensor:
        return statistic

    def _matrix(self, value: tf.Tensor) -> Matrix:
        return DiagonalMatrix(value)


class Zero(Diag):
    """Sigma = 0, for gradients that are exact."""

    def init(self, state: State, chain_ndims: int, num_scores: int | None) -> CovarianceState:
        skipped = tf.zeros(tf.shape(tf.nest.flatten(state)[0])[:chain_ndims], tf.int32)
        return CovarianceState([], [], tf.zeros([], tf.int32), skipped)

    def num_bytes(self, state: State, chain_ndims: int, num_scores: int | None) -> int:
        return 0

    def evaluate(
        self,
        own: CovarianceState,
        scores: State,
        noise_scale: Any,
        like: State,
        chain_ndims: int,
        num_scores: Any = None,
    ) -> tuple[NoiseCovariance, CovarianceState]:
        parts = tf.nest.flatten(like)
        zeros = [DiagonalMatrix(tf.zeros_like(flatten_events([x], chain_ndims))) for x in parts]
        return NoiseCovariance(zeros, self.groups(parts), 0.0, like, chain_ndims), own
