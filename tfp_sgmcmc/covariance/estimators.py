"""Dense, block, diagonal and low-rank estimates of the covariance of the gradient noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.covariance.base import (
    Average,
    AverageState,
    CovarianceEstimator,
    CovarianceState,
    History,
    degrees_of_freedom,
)
from tfp_sgmcmc.covariance.factored_scores import FactoredScores, pad_rows
from tfp_sgmcmc.covariance.matrices import (
    DenseMatrix,
    DiagonalMatrix,
    LowRankMatrix,
    Matrix,
    NoiseCovariance,
    Solver,
)
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.checks import a_type, boolean, require
from tfp_sgmcmc.internal.nest import MANY_PARTS, Packing, State, flatten_events


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


class Diag(CovarianceEstimator):
    """The diagonal of V, without a D x D matrix; arguments are those of `CovarianceEstimator`.

    Each part of the state has a vector of variances. Of many parts, the small ones share one.
    """

    name = "diag"

    def groups(self, parts: Sequence[tf.Tensor]) -> list[list[int]]:
        return [part.members for part in Packing(parts, fewest=MANY_PARTS).parts]

    def _shape(self, size: int, num_scores: int | None) -> list[int]:
        return [size]

    def _statistic_of(self, rows: Sequence[Any], chain_ndims: int) -> tf.Tensor:
        of_one = super()._statistic_of
        statistics = [
            x.variances() if isinstance(x, FactoredScores) else of_one([x], chain_ndims)
            for x in rows
        ]
        if len(rows) == 1:
            return statistics[0]
        # Not materialized, all variances would be computed again for each part that uses them.
        return xla.materialized(tf.concat(statistics, axis=-1))

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
        groups = self.groups(parts)
        flat = [flatten_events([parts[i] for i in group], chain_ndims) for group in groups]
        zeros = [DiagonalMatrix(tf.zeros_like(x)) for x in flat]
        return NoiseCovariance(zeros, groups, 0.0, like, chain_ndims), own


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
                f"themselves. Received: {a_type(average)}."
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


KINDS = {kind.name: kind for kind in (Full, Block, Diag, LowRank)}


def as_covariance(
    value: Any, average: Average | None = None, exact: bool = False
) -> CovarianceEstimator:
    """Returns the estimator that `value` names, or `value` if it is an estimator.

    Args:
      value: `"full"`, `"block"`, `"diag"`, `"low_rank"`, or a `CovarianceEstimator`. Anything else
        raises ValueError.
      average: the sampler's choice for an estimator without an average.
      exact: whether gradients are exact, which makes Sigma zero.
    """
    if not isinstance(average, Average | None):
        raise TypeError(f"average must be a RunningMean or a History. Received: {average!r}.")
    boolean("exact", exact)
    if not isinstance(value, CovarianceEstimator):
        expected = f"one of {', '.join(KINDS)}, or an estimator of tfp_sgmcmc.covariance"
        require("covariance", repr(value), isinstance(value, str) and value in KINDS, expected)
        value = KINDS[value]()
    if exact:
        return Zero()
    return value if average is None else value.with_average(average)
