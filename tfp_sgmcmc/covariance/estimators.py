"""Estimators of the covariance of the gradient noise: full, block, diagonal and low rank."""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.covariance.averages import Average, AverageState, History, RunningMean
from tfp_sgmcmc.covariance.factored_scores import FactoredScores, count_rows, pad_rows
from tfp_sgmcmc.covariance.operators import (
    DenseMatrix,
    DiagonalMatrix,
    LowRankMatrix,
    Matrix,
    NoiseCovariance,
)
from tfp_sgmcmc.covariance.solvers import Solver, as_solver
from tfp_sgmcmc.state import State, flatten_events


class CovarianceState(NamedTuple):
    """What an estimator carries between steps.

    Attributes:
      averages: an `AverageState` for each group of parts.
      inverses: inverses that precondition conjugate gradients, `[chains..., D, D]` a group, where
        the solver is `"lagged_cholesky"`.
      step: number of updates.
      num_skipped: minibatches left out for scores that were not finite, `[chains...]`.
    """

    averages: Sequence[AverageState]
    inverses: Sequence[tf.Tensor]
    step: tf.Tensor
    num_skipped: tf.Tensor


class CovarianceEstimator(abc.ABC):
    r"""Base class of the estimators of \( \Sigma = c V \).

    From the scores \( s_1, \dots, s_n \) of a minibatch,
    \( \hat V = \frac{1}{n-1} \sum_i (s_i - \bar s)(s_i - \bar s)^T \), or the kept part of it; V is
    an average of these.

    Args:
      average: an `Average`: `RunningMean()` (kappa_t = 1/t), `RunningMean(decay)` or `History`.
        None leaves it to the sampler.
      include_current: whether the average includes the minibatch that gives the gradient, as
        papers have it. This biases samplers; see `tfp_sgmcmc.covariance`.
      solver: a `Solver`, or the name of its method.

    Raises:
      ValueError: unknown options.
      TypeError: an `average` of another kind.
    """

    methods: tuple[str, ...] = ("auto",)
    name = ""

    def __init__(
        self,
        average: Average | None = None,
        include_current: bool = False,
        solver: str | Solver = "auto",
    ):
        if average is not None and not isinstance(average, Average):
            raise TypeError(f"average is {average!r}; RunningMean(...) or History(...) expected.")
        if include_current and isinstance(average, History) and average.lag:
            raise ValueError(
                f"average has lag {average.lag} beside include_current=True; one or the other is "
                "expected."
            )
        self.average, self.include_current = average, include_current
        self.solver = as_solver(solver)
        if self.solver.method not in self.methods:
            raise ValueError(
                f"solver is {self.solver.method!r} beside covariance='{self.name}'; one of "
                f"{', '.join(self.methods)} is expected."
            )

    def init(self, state: State, chain_ndims: int, num_scores: int | None) -> CovarianceState:
        """The estimator's state before the first step.

        `num_scores` is None where it is not known before the minibatches come.

        Raises:
          ValueError: fewer than two scores, or an unknown number beside `low_rank`; `block` for a
            state of one part.
        """
        if num_scores is not None and num_scores < 2:
            raise ValueError(
                f"covariance='{self.name}' needs at least 2 scores a minibatch, but the target "
                f"gives {num_scores} (its batch_size or num_groups)."
            )
        parts = tf.nest.flatten(state)
        averages, inverses = [], []
        for group in self.groups(parts):
            flat = flatten_events([parts[i] for i in group], chain_ndims)
            shape = self._shape(flat.shape[-1], num_scores)
            zeros = tf.zeros(tf.concat([tf.shape(flat)[:-1], shape], axis=0), flat.dtype)
            zeros = tf.ensure_shape(zeros, flat.shape[:-1].concatenate(shape))
            averages.append(self._average.init(zeros, chain_ndims))
            if self.solver.method == "lagged_cholesky":
                inverses.append(zeros)
        skipped = tf.zeros(tf.shape(parts[0])[:chain_ndims], tf.int32)
        return CovarianceState(averages, inverses, tf.zeros([], tf.int32), skipped)

    def evaluate(
        self,
        own: CovarianceState,
        scores: State,
        noise_scale: Any,
        like: State,
        chain_ndims: int,
        system: Any = None,
    ) -> tuple[NoiseCovariance, CovarianceState]:
        """Returns Sigma at this step, and the estimator's next state.

        A minibatch whose scores are not finite is left out, and counted; one of a single score,
        which has no covariance, is left out.

        Args:
          own: what `init` or the last call returned.
          scores: of this step's minibatch, `[chains..., rows, event...]` a part, or
            `FactoredScores`.
          noise_scale: c.
          like: the state.
          chain_ndims: its number of leading chain dimensions.
          system: (shift, scale), as of `NoiseCovariance.solve`, of the systems that will be solved,
            or a function of Sigma that returns them; `"lagged_cholesky"` factorises them now and
            then.
        """
        parts, rows = tf.nest.flatten(like), tf.nest.flatten(scores)
        groups = self.groups(parts)
        statistics, accept = [], tf.ones(tf.shape(parts[0])[:chain_ndims], tf.bool)
        for group in groups:
            statistics.append(self._statistic_of([rows[i] for i in group], chain_ndims))
            variances = self._variances(statistics[-1])
            accept &= tf.reduce_all(tf.math.is_finite(variances), axis=-1)
        enough = count_rows(rows[0], chain_ndims) > 1
        skipped = tf.cast(~accept & enough, tf.int32)
        accept &= enough
        updated = [
            self._update(average, statistic, accept)
            for average, statistic in zip(own.averages, statistics, strict=True)
        ]
        matrices = [matrix for matrix, _ in updated]
        sigma = NoiseCovariance(matrices, groups, noise_scale, like, chain_ndims)
        inverses = own.inverses
        if inverses and system is not None:
            inverses = tf.cond(
                own.step % self.solver.refactor_every == 0,
                lambda: sigma.inverses(*(system(sigma) if callable(system) else system)),
                lambda: list(own.inverses),
            )
            sigma = sigma.preconditioned(inverses)
        own = CovarianceState(
            averages=[average for _, average in updated],
            inverses=inverses,
            step=own.step + 1,
            num_skipped=own.num_skipped + skipped,
        )
        return sigma, own

    def with_average(self, average: Average) -> CovarianceEstimator:
        """This estimator, or a copy of it with `average` if it names none."""
        if self.average is not None:
            return self
        other = copy.copy(self)
        other.average = average
        return other

    @property
    def _average(self) -> Average:
        return self.average or RunningMean(0.99)

    def groups(self, parts: Sequence[tf.Tensor]) -> list[list[int]]:
        """Indices of the parts that one matrix acts on."""
        return [list(range(len(parts)))]

    def _statistic_of(self, rows: Sequence[Any], chain_ndims: int) -> tf.Tensor:
        rows = [x.rows() if isinstance(x, FactoredScores) else x for x in rows]
        flat = flatten_events(rows, chain_ndims + 1)
        return self._statistic(flat - tf.reduce_mean(flat, axis=-2, keepdims=True))

    @abc.abstractmethod
    def _shape(self, size: int, num_scores: int | None) -> list[int]:
        """Shape of the statistic of D = `size` entries."""

    @abc.abstractmethod
    def _statistic(self, centred: tf.Tensor) -> tf.Tensor:
        """What is averaged, from centred scores `[chains..., rows, D]`."""

    @abc.abstractmethod
    def _variances(self, statistic: tf.Tensor) -> tf.Tensor:
        """The diagonal of the minibatch's covariance, `[chains..., D]`: finite if all of it is."""

    def _update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor
    ) -> tuple[Matrix, AverageState]:
        """V of a group, and the next state."""
        value, own = self._average.update(own, statistic, accept, self.include_current)
        return self._matrix(value), own

    @abc.abstractmethod
    def _matrix(self, value: Any) -> Matrix:
        """V of a group, from the average of its statistic."""


class Full(CovarianceEstimator):
    """V over all entries of all parts: a D x D matrix for each chain.

    >>> import tfp_sgmcmc as sgmcmc
    >>> covariance = sgmcmc.covariance.Full(
    ...     average=sgmcmc.covariance.RunningMean(decay=0.999), solver="lagged_cholesky")
    >>> covariance.solver.refactor_every
    100

    Arguments and exceptions are those of `CovarianceEstimator`.
    """

    methods = ("auto", "cg", "cholesky", "lagged_cholesky")
    name = "full"

    def _shape(self, size: int, num_scores: int | None) -> list[int]:
        return [size, size]

    def _statistic(self, centred: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matmul(centred, centred, transpose_a=True) / _freedom(centred)

    def _variances(self, statistic: tf.Tensor) -> tf.Tensor:
        return tf.linalg.diag_part(statistic)

    def _matrix(self, value: tf.Tensor) -> Matrix:
        return DenseMatrix(value, self.solver)


class Block(Full):
    """One block of V for each part of the state; between parts V is taken to be zero.

    Arguments and exceptions are those of `CovarianceEstimator`; a state of one part is refused.
    """

    name = "block"

    def groups(self, parts: Sequence[tf.Tensor]) -> list[list[int]]:
        if len(parts) < 2:
            raise ValueError(
                "covariance='block' has one block for each part of the state, but the state has "
                "one part; 'full', 'diag' or 'low_rank' is expected."
            )
        return [[i] for i in range(len(parts))]


class Diag(CovarianceEstimator):
    """The diagonal of V; no D x D matrix is formed.

    Arguments and exceptions are those of `CovarianceEstimator`.
    """

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
        return tf.reduce_sum(tf.square(centred), axis=-2) / _freedom(centred)

    def _variances(self, statistic: tf.Tensor) -> tf.Tensor:
        return statistic

    def _matrix(self, value: tf.Tensor) -> Matrix:
        return DiagonalMatrix(value)


class LowRank(CovarianceEstimator):
    """V as the centred scores of the last minibatches; no D x D matrix is formed.

    Arguments and exceptions are those of `CovarianceEstimator`, but `average` is a `History`,
    `History(4, lag=4)` where None is given: memory is that of K + lag, time that of K minibatches'
    scores for each chain, n rows of D numbers each.

    V of K n rows is a noisy one where D is not small beside them, and what solves with it (NOGIN,
    SGFS) is biased by that at large steps: take more minibatches, or smaller steps.
    """

    methods = ("auto", "cg", "woodbury")
    name = "low_rank"

    def __init__(
        self,
        average: Average | None = None,
        include_current: bool = False,
        solver: str | Solver = "auto",
    ):
        average = History(4, lag=0 if include_current else 4) if average is None else average
        super().__init__(average, include_current, solver)
        if not isinstance(self.average, History):
            raise ValueError(
                f"average is a {type(average).__name__} beside covariance='low_rank', which keeps "
                "the scores themselves; History(...) is expected."
            )
        self._history = self.average

    def _shape(self, size: int, num_scores: int | None) -> list[int]:
        if num_scores is None:
            raise ValueError(
                "covariance='low_rank' keeps the scores of whole minibatches, and so many scores "
                "must be known beforehand, but the batches have no fixed size: in fit, pass a "
                "batch_size that divides the number of examples, a dataset batched with "
                "drop_remainder=True, or num_groups."
            )
        return [num_scores, size]

    def _statistic(self, centred: tf.Tensor) -> tf.Tensor:
        return centred / _freedom(centred) ** 0.5

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


class _Exact(Diag):
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
        system: Any = None,
    ) -> tuple[NoiseCovariance, CovarianceState]:
        parts = tf.nest.flatten(like)
        zeros = [DiagonalMatrix(tf.zeros_like(flatten_events([x], chain_ndims))) for x in parts]
        groups = [[i] for i in range(len(parts))]
        return NoiseCovariance(zeros, groups, 0.0, like, chain_ndims), own


KINDS = {kind.name: kind for kind in (Full, Block, Diag, LowRank)}


def as_covariance(
    value: Any, average: Average | None = None, exact: bool = False
) -> CovarianceEstimator:
    """Returns the estimator that `value`, its name or itself, stands for.

    Args:
      value: `"full"`, `"block"`, `"diag"`, `"low_rank"`, or a `CovarianceEstimator`.
      average: the sampler's choice for an estimator that names none (`low_rank` has its own).
      exact: whether gradients are exact, which makes Sigma zero.

    Raises:
      ValueError: an unknown name.
    """
    if not isinstance(value, CovarianceEstimator):
        if not isinstance(value, str) or value not in KINDS:
            raise ValueError(
                f"covariance is {value!r}; one of {', '.join(KINDS)}, or an estimator of "
                "tfp_sgmcmc.covariance, is expected."
            )
        value = KINDS[value]()
    if exact:
        return _Exact()
    return value if average is None else value.with_average(average)


def _freedom(centred: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.shape(centred)[-2] - 1, centred.dtype)
