"""Dense estimates of the covariance of the gradient noise: one matrix, or one for each part."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfp_sgmcmc.covariance.base import CovarianceEstimator, degrees_of_freedom
from tfp_sgmcmc.covariance.matrices import DenseMatrix, Matrix


class Full(CovarianceEstimator):
    """V over all entries of all parts: a D x D matrix for each chain.

    Arguments and exceptions are those of `CovarianceEstimator`.

    Examples:
      >>> import tfp_sgmcmc as sgmcmc
      >>> covariance = sgmcmc.covariance.Full(
      ...     average=sgmcmc.covariance.RunningMean(decay=0.999), solver="lagged_cholesky")
      >>> covariance.solver.refactor_every
      100
    """

    methods = ("auto", "cg", "cholesky", "lagged_cholesky")
    name = "full"

    def _shape(self, size: int, num_scores: int | None) -> list[int]:
        return [size, size]

    def _statistic(self, centred: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matmul(centred, centred, transpose_a=True) / degrees_of_freedom(centred)

    def _variances(self, statistic: tf.Tensor) -> tf.Tensor:
        return tf.linalg.diag_part(statistic)

    def _matrix(self, value: tf.Tensor) -> Matrix:
        return DenseMatrix(value, self.solver)


class Block(Full):
    """One block of V for each part of the state; V is taken to be zero between parts.

    Arguments and exceptions are those of `CovarianceEstimator`. The state must have several parts.
    """

    name = "block"

    def groups(self, parts: Sequence[tf.Tensor]) -> list[list[int]]:
        if len(parts) < 2:
            raise ValueError(
                "covariance must be 'full', 'diag' or 'low_rank' for a state of one part. "
                "Received: covariance='block', which has one block for each part."
            )
        return [[i] for i in range(len(parts))]
