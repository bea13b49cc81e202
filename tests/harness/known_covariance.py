"""Estimators with the exact V, so that stationary laws have a closed form with Sigma = c V."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.covariance import Diag, Full, RunningMean
from tfp_sgmcmc.covariance.base import AverageState
from tfp_sgmcmc.covariance.matrices import DenseMatrix, DiagonalMatrix, Matrix


class KnownCovariance(Full):
    """An estimator of V that returns `matrix`, `[D, D]`, in every chain.

    Rows and columns follow the parts in the order of `tf.nest.flatten`.

    >>> from tests.harness.gaussian_mean import GaussianMean
    >>> model = GaussianMean(num_examples=12)
    >>> target = model.target(4, replacement=True)
    >>> covariance = KnownCovariance(model.noise(4, replacement=True) / target.noise_scale)
    """

    def __init__(self, matrix: Any, solver: Any = "auto"):
        super().__init__(RunningMean(), solver=solver)
        self.matrix = np.asarray(matrix)

    def _update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor
    ) -> tuple[Matrix, AverageState]:
        matrix = tf.constant(self.matrix, statistic.dtype)
        return DenseMatrix(tf.broadcast_to(matrix, tf.shape(statistic)), self.solver), own


class KnownDiagonal(Diag):
    """An estimator of a diagonal V that returns the entries `diagonal`, `[D]`, in every chain."""

    def __init__(self, diagonal: Any):
        super().__init__(RunningMean())
        self.diagonal = np.asarray(diagonal)

    def groups(self, parts: Sequence[tf.Tensor]) -> list[list[int]]:
        return [list(range(len(parts)))]

    def _update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor
    ) -> tuple[Matrix, AverageState]:
        diagonal = tf.constant(self.diagonal, statistic.dtype)
        return DiagonalMatrix(tf.broadcast_to(diagonal, tf.shape(statistic))), own
