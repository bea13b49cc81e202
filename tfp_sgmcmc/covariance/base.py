"""The base class of the estimators of the covariance of the gradient noise, and their averages.

By default an average over past minibatches leaves out the current one.
"""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.covariance.factored_scores import FactoredScores, count_rows
from tfp_sgmcmc.covariance.matrices import Matrix, NoiseCovariance, Solver, as_solver
from tfp_sgmcmc.internal import memory, xla
from tfp_sgmcmc.internal.checks import array, boolean, integer, number, require
from tfp_sgmcmc.internal.nest import (
    State,
    append_dims,
    flatten_events,
    instances,
    num_entries,
    of_all_parts,
)


class AverageState(NamedTuple):
    """The state of an average between steps.

    Attributes:
      value: the average. A `History` has the last statistics, `[chains..., lag + K, ...]`, the
        youngest first.
      count: number of minibatches in the average, `[chains...]`. A `History` has 1 for each slot
        that holds a minibatch, and 0 for the others, `[chains..., lag + K]`.
    """

    value: tf.Tensor
    count: tf.Tensor


class Average(abc.ABC):
    """Base class of averages. A chain leaves out a minibatch for which `accept` is False."""

    #: How many statistics are kept for each chain.
    num_slots = 1

    @abc.abstractmethod
    def init(self, statistic: tf.Tensor, chain_ndims: int) -> AverageState:
        """Returns the state before the first minibatch, for statistics like `statistic`."""

    @abc.abstractmethod
    def update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor, include_current: bool
    ) -> tuple[tf.Tensor, AverageState]:
        """Returns the average to use at this step, and the next state.

        The current minibatch is included if there is no past. An average of nothing is zero.
        """


class RunningMean(Average):
    r"""The mean, or an exponential average, of all minibatches so far.

    \[
    V_t = V_{t-1} + \kappa_t (\hat V_t - V_{t-1}), \qquad
    \kappa_t = \max\Bigl(\frac{1 + \text{power}}{t + \text{power}}, 1 - \text{decay}\Bigr)
    \]

    With a power the first minibatches, from where a chain started, are forgotten sooner: minibatch
    t has a weight of about \( t^{\text{power}} \) (polynomial-decay averaging, Shamir and Zhang,
    ICML 2013).

    Args:
      decay: in [0, 1), or None for a mean without end. Otherwise ValueError.
      power: at least 0, otherwise ValueError.
    """

    def __init__(self, decay: float | None = None, power: float = 0.0):
        if decay is not None:
            decay = number("decay", decay, "None or a number in [0, 1)", lambda x: 0 <= x < 1)
        self.decay = decay
        self.power = number("power", power, "a number of at least 0", lambda x: x >= 0)

    def init(self, statistic: tf.Tensor, chain_ndims: int) -> AverageState:
        count = tf.zeros(tf.shape(statistic)[:chain_ndims], tf.int32)
        return AverageState(tf.zeros_like(statistic), count)

    def update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor, include_current: bool
    ) -> tuple[tf.Tensor, AverageState]:
        kappa = (1 + self.power) / (tf.cast(own.count + 1, statistic.dtype) + self.power)
        if self.decay is not None:
            kappa = tf.maximum(kappa, 1 - self.decay)
        moved = own.value + append_dims(kappa, statistic) * (statistic - own.value)
        value = tf.where(append_dims(accept, statistic), moved, own.value)
        used = value
        if not include_current:
            used = tf.where(append_dims(own.count == 0, value), value, own.value)
        return used, AverageState(value, own.count + tf.cast(accept, tf.int32))


class History(Average):
    r"""A weighted average of K past minibatches.

    \[
    V_t = \sum_{k=1}^K w_k \hat V_{t-k-\text{lag}} \Big/ \sum_{k=1}^K w_k
    \]

    The sum runs over the minibatches that have been seen. If the current minibatch is included, it
    has the weight \( w_1 \). With a lag, the first minibatch stands for all earlier ones.

    A young minibatch has pushed the momenta that V is applied to. Where the mean and covariance of
    scores depend on each other, it biases a sampler nearly as much as the current one. A short
    average needs a lag: on a logistic regression (D = 129, n = 500, K = 1) a lag of 4 reduced the
    slope of NOGIN's posterior means against the exact ones from 2.3 to 1.1.

    Args:
      weights: \( w_1, \dots, w_K \), the youngest minibatch first; not negative, \( w_1 > 0 \). An
        integer K stands for K equal weights.
      lag: how many of the youngest minibatches to leave out, at least 0. They are kept in memory.

    Raises:
      ValueError: there are no weights; a weight is negative or not finite; `lag` is negative.
        Estimators also refuse a lag together with `include_current=True`.
      TypeError: `lag` is not an integer, or the weights are not numbers.
    """

    def __init__(self, weights: int | Sequence[float], lag: int = 0):
        expected = "a positive integer or a sequence of at least one number"
        if isinstance(weights, int | np.integer) and not isinstance(weights, bool):
            values = np.ones(max(weights, 0))
        else:
            values = array("weights", weights).astype(np.float64)
        require("weights", weights, values.ndim == 1 and len(values) > 0, expected)
        if not np.all(values >= 0) or values[0] <= 0:
            raise ValueError(
                f"weights must be at least 0, and the first positive. Received: {weights}. "
                "With a negative weight the average need not be a covariance."
            )
        self.weights, self.lag = values / values.sum(), integer("lag", lag, least=0)
        self.num_slots = self.lag + len(self.weights)

    def init(self, statistic: tf.Tensor, chain_ndims: int) -> AverageState:
        value = tf.stack([tf.zeros_like(statistic)] * self.num_slots, axis=chain_ndims)
        return AverageState(value, tf.zeros(tf.shape(value)[: chain_ndims + 1], value.dtype))

    def update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor, include_current: bool
    ) -> tuple[tf.Tensor, AverageState]:
        (value, weights), own = self.update_slots(own, statistic, accept, include_current)
        return tf.reduce_sum(append_dims(weights, value) * value, axis=accept.shape.rank), own

    def update_slots(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor, include_current: bool
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], AverageState]:
        """Returns statistics, `[chains..., K, ...]`, and weights, whose sum `update` returns."""
        axis = accept.shape.rank
        kept = tf.where(append_dims(accept, statistic), statistic, 0)
        present = tf.cast(accept, statistic.dtype)
        # A ring would not be faster: the old slots are still read, so XLA copies the value anyway.
        shifted = AverageState(_shift(kept, own.value, axis), _shift(present, own.count, axis))
        if self.lag:
            empty = tf.reduce_all(own.count == 0, axis=-1)
            new = AverageState(tf.expand_dims(kept, axis), present[..., tf.newaxis])
            shifted = tf.nest.map_structure(
                lambda x, old: tf.where(append_dims(empty, old), x, old), new, shifted
            )
        used = self._old_enough(shifted, axis)
        if not include_current:
            past = self._old_enough(own, axis)
            first = tf.reduce_all(past.count * self.weights == 0, axis=-1)
            used = tf.nest.map_structure(
                lambda new, old: tf.where(append_dims(first, new), new, old), used, past
            )
        weights = used.count * tf.constant(self.weights, statistic.dtype)
        total = tf.reduce_sum(weights, axis=-1, keepdims=True)
        return (used.value, tf.math.divide_no_nan(weights, total)), shifted

    def _old_enough(self, own: AverageState, axis: int) -> AverageState:
        index = (*[slice(None)] * axis, slice(self.lag, None))
        return AverageState(own.value[index], own.count[index])


def _shift(new: tf.Tensor, slots: tf.Tensor, axis: int) -> tf.Tensor:
    """Puts `new` into the first slot along `axis` and drops the content of the last slot."""
    kept = slots[(*[slice(None)] * axis, slice(-1))]
    return tf.concat([tf.expand_dims(new, axis), kept], axis=axis)


class CovarianceState(NamedTuple):
    """The state of an estimator between steps.

    Attributes:
      averages: an `AverageState` for each group of parts.
      inverses: inverses that precondition conjugate gradients, `[chains..., D, D]` for each group;
        empty unless the solver is `"lagged_cholesky"`.
      step: number of updates.
      num_skipped: number of minibatches left out for scores that are not finite, `[chains...]`.
    """

    averages: Sequence[AverageState]
    inverses: Sequence[tf.Tensor]
    step: tf.Tensor
    num_skipped: tf.Tensor


def covariance_states(results: Any) -> list[CovarianceState]:
    """Returns the states of all estimators in the results of a kernel, however nested."""
    return instances(results, CovarianceState)


class CovarianceEstimator(abc.ABC):
    r"""Base class of the estimators of \( \Sigma = c V \).

    \[
    \hat V = \frac{1}{n-1} \sum_{i=1}^n (s_i - \bar s)(s_i - \bar s)^T
    \]

    is the sample covariance of the scores \( s_1, \dots, s_n \) of a minibatch. V averages it over
    minibatches; each kind of estimator keeps a different part of it.

    Args:
      average: an `Average`: `RunningMean()` (kappa_t = 1/t), `RunningMean(decay)` or `History`.
        None leaves the choice to the sampler.
      include_current: whether the average includes the minibatch that gives the gradient, as in
        the papers. This biases samplers; see `tfp_sgmcmc.covariance`.
      solver: a `Solver`, or the name of its method.

    Raises:
      ValueError: an option is unknown, or two options contradict each other.
      TypeError: `average` is not an `Average`, or an option has another type.
    """

    methods: tuple[str, ...] = ("auto",)
    name = ""

    def __init__(
        self,
        average: Average | None = None,
        include_current: bool = False,
        solver: str | Solver = "auto",
    ):
        if not isinstance(average, Average | None):
            raise TypeError(f"average must be a RunningMean or a History. Received: {average!r}.")
        boolean("include_current", include_current)
        if include_current and isinstance(average, History) and average.lag:
            raise ValueError(
                "average must have no lag when include_current is True. "
                f"Received: lag {average.lag}."
            )
        self.average, self.include_current = average, include_current
        self.solver = as_solver(solver)
        if self.solver.method not in self.methods:
            raise ValueError(
                f"solver must be one of {', '.join(self.methods)} for covariance='{self.name}'. "
                f"Received: {self.solver.method!r}."
            )

    def init(self, state: State, chain_ndims: int, num_scores: int | None) -> CovarianceState:
        """Returns the estimator's state before the first step.

        `num_scores` is the number of scores of a minibatch, or None if it is not known beforehand.
        Raises ValueError if it is below two, for `low_rank` without it, and for `block` with a
        state of one part; MemoryError if the host's memory is too small for the estimate.
        """
        if num_scores is not None and num_scores < 2:
            raise ValueError(
                f"covariance='{self.name}' needs at least 2 scores from each minibatch (the "
                f"target's batch_size or num_groups). Received: {num_scores}."
            )
        parts = tf.nest.flatten(state)
        self._require_memory(parts, chain_ndims, num_scores)
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

    def num_bytes(self, state: State, chain_ndims: int, num_scores: int | None) -> int:
        """Returns the bytes that the estimate keeps between steps.

        The arguments are those of `init`. A step takes at least one statistic (such as a D x D
        matrix for each chain) more.
        """
        slots, num_inverses = self._average.num_slots, self.solver.method == "lagged_cholesky"
        return (slots + num_inverses) * self._statistic_bytes(state, chain_ndims, num_scores)

    def _statistic_bytes(self, state: State, chain_ndims: int, num_scores: int | None) -> int:
        parts = tf.nest.flatten(state)
        total = 0
        for group in self.groups(parts):
            size = num_entries([parts[i] for i in group], chain_ndims)
            total += math.prod(self._shape(size, num_scores))
        num_chains = parts[0].shape[:chain_ndims].num_elements()
        return total * (num_chains or 1) * parts[0].dtype.size  # None: chains are not known yet

    def _require_memory(
        self, parts: Sequence[tf.Tensor], chain_ndims: int, num_scores: int | None
    ) -> None:
        if xla.on_accelerator():
            return
        size = num_entries(parts, chain_ndims)
        diagonal = (
            "" if self.name == "diag" else "covariance='diag' keeps D numbers for each chain. "
        )
        memory.require(
            {
                f"covariance='{self.name}' for D = {size:,} parameters": self.num_bytes(
                    parts, chain_ndims, num_scores
                ),
                "its update": self._statistic_bytes(parts, chain_ndims, num_scores),
            },
            f"{diagonal}covariance='low_rank' keeps n D for each of its minibatches of n scores "
            "(fewer with the target's num_groups). Fewer chains take less, too.",
        )

    def evaluate(
        self,
        own: CovarianceState,
        scores: State,
        noise_scale: Any,
        like: State,
        chain_ndims: int,
        num_scores: Any = None,
    ) -> tuple[NoiseCovariance, CovarianceState]:
        """Returns Sigma at this step, and the estimator's next state.

        Minibatches with scores that are not finite are left out and counted in `num_skipped`. Those
        with a single score, which has no covariance, are left out uncounted.

        Args:
          own: the state that `init` or the last call returned.
          scores: for each part a tensor `[chains..., rows, event...]`, or `FactoredScores`.
          noise_scale: c.
          like: the state of the chains.
          chain_ndims: number of its leading chain dimensions.
          num_scores: number of rows of `scores` that count; None stands for all.
        """
        parts, rows = tf.nest.flatten(like), tf.nest.flatten(scores)
        groups = self.groups(parts)
        statistics = [self._statistic_of([rows[i] for i in group], chain_ndims) for group in groups]
        finite = [tf.math.is_finite(self._variances(x)) for x in statistics]
        finite = [tf.cast(tf.reduce_all(x, axis=-1), parts[0].dtype) for x in finite]
        accept = of_all_parts(tf.minimum, finite) > 0
        enough = (count_rows(rows[0], chain_ndims) if num_scores is None else num_scores) > 1
        skipped = tf.cast(~accept & enough, tf.int32)
        accept &= enough
        updated = [
            self._update(average, statistic, accept)
            for average, statistic in zip(own.averages, statistics, strict=True)
        ]
        sigma = NoiseCovariance([v for v, _ in updated], groups, noise_scale, like, chain_ndims)
        averages, num_skipped = [average for _, average in updated], own.num_skipped + skipped
        return sigma, own._replace(averages=averages, step=own.step + 1, num_skipped=num_skipped)

    def prepare(
        self, own: CovarianceState, matrix: NoiseCovariance, shift: State, scale: Any
    ) -> tuple[NoiseCovariance, CovarianceState]:
        """Prepares solutions with diag(shift) + scale matrix, after `evaluate` returned `matrix`.

        The solver `"lagged_cholesky"` inverts this sum every `refactor_every` steps and, because
        averages change fast at first, at steps 1, 2, 4, 8, ... It preconditions conjugate gradients
        by the last inverse. Other solvers need no preparation.
        `shift` and `scale` have the forms that `NoiseCovariance.solve` takes.
        """
        if not own.inverses:
            return matrix, own
        is_power_of_two = tf.bitwise.bitwise_and(own.step, own.step - 1) == 0
        inverses = tf.cond(
            is_power_of_two | ((own.step - 1) % self.solver.refactor_every == 0),
            lambda: matrix.inverses(shift, scale),
            lambda: list(own.inverses),
        )
        return matrix.preconditioned(inverses), own._replace(inverses=inverses)

    def with_average(self, average: Average) -> CovarianceEstimator:
        """Returns this estimator if it has an average, otherwise a copy that has `average`."""
        if self.average is not None:
            return self
        other = copy.copy(self)
        other.average = average
        return other

    @property
    def _average(self) -> Average:
        return self.average or RunningMean(0.99)

    def groups(self, parts: Sequence[tf.Tensor]) -> list[list[int]]:
        """Returns, for each matrix, the indices of the parts that it acts on."""
        return [list(range(len(parts)))]

    def _statistic_of(self, rows: Sequence[Any], chain_ndims: int) -> tf.Tensor:
        rows = [x.rows() if isinstance(x, FactoredScores) else x for x in rows]
        flat = flatten_events(rows, chain_ndims + 1)
        return self._statistic(flat - tf.reduce_mean(flat, axis=-2, keepdims=True))

    @abc.abstractmethod
    def _shape(self, size: int, num_scores: int | None) -> list[int]:
        """Returns the shape of the statistic for a group of D = `size` entries."""

    @abc.abstractmethod
    def _statistic(self, centred: tf.Tensor) -> tf.Tensor:
        """Returns what is averaged, from centred scores `[chains..., rows, D]`."""

    @abc.abstractmethod
    def _variances(self, statistic: tf.Tensor) -> tf.Tensor:
        """Returns the variances, `[chains..., D]`; they are finite if the whole statistic is."""

    def _update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor
    ) -> tuple[Matrix, AverageState]:
        """Returns V of a group, and the next state of its average."""
        value, own = self._average.update(own, statistic, accept, self.include_current)
        return self._matrix(value), own

    @abc.abstractmethod
    def _matrix(self, value: Any) -> Matrix:
        """Returns V of a group, from the average of its statistic."""


def degrees_of_freedom(centred: tf.Tensor) -> tf.Tensor:
    """Returns n - 1 for centred scores `[chains..., n, D]`."""
    return tf.cast(tf.shape(centred)[-2] - 1, centred.dtype)
