"""Averages of a statistic over minibatches: the past ones, by default without the current."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class AverageState(NamedTuple):
    """What an average carries between steps.

    Attributes:
      value: the average itself, or the last minibatches' statistics one after the other.
      count: number of minibatches taken in, `[chains...]`, or of steps.
      ages: steps since each entry of `value` came in, `[chains..., K + 1]`, or `()`.
    """

    value: tf.Tensor
    count: tf.Tensor
    ages: Any = ()


class Average(abc.ABC):
    """Base class. A minibatch is left out of a chain's average where `accept` is False there."""

    @abc.abstractmethod
    def init(self, statistic: tf.Tensor, chain_ndims: int) -> AverageState:
        """The state before the first minibatch, for statistics like `statistic`."""

    @abc.abstractmethod
    def update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor, include_current: bool
    ) -> tuple[Any, AverageState]:
        """Returns what to use at this step, and the next state.

        The first minibatch, which has no past, is its own.
        """


class RunningMean(Average):
    r"""The mean of all minibatches so far, or an exponential average of them.

    \[
    V_t = V_{t-1} + \kappa_t (\hat V_t - V_{t-1}), \qquad
    \kappa_t = \max(1/t, 1 - \text{decay})
    \]

    Args:
      decay: in [0, 1); None is the plain mean, \( \kappa_t = 1/t \).

    Raises:
      ValueError: `decay` out of range.
    """

    def __init__(self, decay: float | None = None):
        if decay is not None and not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; None or a number in [0, 1) is expected.")
        self.decay = decay

    def init(self, statistic: tf.Tensor, chain_ndims: int) -> AverageState:
        count = tf.zeros(tf.shape(statistic)[:chain_ndims], tf.int32)
        return AverageState(tf.zeros_like(statistic), count)

    def update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor, include_current: bool
    ) -> tuple[Any, AverageState]:
        count = own.count + tf.cast(accept, tf.int32)
        kappa = 1 / tf.cast(tf.maximum(count, 1), statistic.dtype)
        if self.decay is not None:
            kappa = tf.maximum(kappa, 1 - self.decay)
        kappa = _expand(tf.where(accept, kappa, 0), statistic)
        change = tf.where(_expand(accept, statistic), statistic - own.value, 0)
        value = own.value + kappa * change
        used = value
        if not include_current:
            used = tf.where(_expand(own.count == 0, value), value, own.value)
        return used, AverageState(value, count)


class History(Average):
    r"""A weighted average of the last K minibatches.

    \[
    V_t = \sum_{k=1}^K w_k \hat V_{t-k} \Big/ \sum_{k=1}^K w_k
    \]

    over those of them that have been; with the current minibatch included, it has \( w_1 \).

    Args:
      weights: \( w_1, \dots, w_K \), of the youngest first; not negative, \( w_1 > 0 \). An integer
        K stands for K equal ones.

    Raises:
      ValueError: no weights, or a weight that makes no covariance.
    """

    def __init__(self, weights: int | Sequence[float]):
        values = np.ones(weights) if isinstance(weights, int) else np.asarray(weights, np.float64)
        if values.ndim != 1 or not len(values):
            raise ValueError(f"weights is {weights}; one weight a minibatch, at least 1, expected.")
        if not np.all(np.isfinite(values) & (values >= 0)) or values[0] <= 0:
            raise ValueError(
                f"weights is {weights}; finite weights of at least 0 are expected, the first "
                "positive: with a negative one the average need not be a covariance."
            )
        self.weights = values / values.sum()

    def init(self, statistic: tf.Tensor, chain_ndims: int) -> AverageState:
        slots = len(self.weights) + 1
        value = tf.stack([tf.zeros_like(statistic)] * slots, axis=chain_ndims)
        ages = tf.fill(tf.shape(value)[: chain_ndims + 1], slots)
        return AverageState(value, tf.zeros([], tf.int32), ages)

    def update(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor, include_current: bool
    ) -> tuple[Any, AverageState]:
        (value, weights), own = self.update_slots(own, statistic, accept, include_current)
        return tf.reduce_sum(_expand(weights, value) * value, axis=accept.shape.rank), own

    def update_slots(
        self, own: AverageState, statistic: tf.Tensor, accept: tf.Tensor, include_current: bool
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], AverageState]:
        """As `update`, without the sum: statistics `[chains..., K + 1, ...]`, and their weights."""
        slots = len(self.weights) + 1
        chains = _all_indices(statistic, accept.shape.rank)
        here = tf.fill([tf.shape(chains)[0], 1], own.count % slots)
        here = tf.concat([chains, here], axis=1)

        def put(into: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            x = tf.reshape(x, tf.concat([[-1], tf.shape(x)[accept.shape.rank :]], axis=0))
            return tf.tensor_scatter_nd_update(into, here, x)

        kept = tf.where(_expand(accept, statistic), statistic, 0)
        value = put(own.value, kept)
        ages = put(own.ages + 1, tf.where(accept, 0, slots))  # the youngest is 0; `slots`: never
        table = np.zeros(slots + 1)
        start = 0 if include_current else 1
        table[start : start + len(self.weights)] = self.weights
        weights = tf.gather(tf.constant(table, statistic.dtype), tf.minimum(ages, slots))
        total = tf.reduce_sum(weights, axis=-1, keepdims=True)
        youngest = tf.cast(ages == 0, statistic.dtype)
        weights = tf.where(total == 0, youngest, tf.math.divide_no_nan(weights, total))
        return (value, weights), AverageState(value, own.count + 1, ages)


def _expand(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Appends axes of size one until `x` has the rank of `like`."""
    return tf.reshape(x, tf.concat([tf.shape(x), [1] * (like.shape.rank - x.shape.rank)], axis=0))


def _all_indices(x: tf.Tensor, ndims: int) -> tf.Tensor:
    """Every index into the first `ndims` dimensions of `x`, `[count, ndims]`."""
    shape = x.shape[:ndims]
    if shape.is_fully_defined():  # XLA knows no shape for what tf.where returns
        return tf.constant(np.argwhere(np.ones(shape)), tf.int32)
    return tf.cast(tf.where(tf.ones(tf.shape(x)[:ndims])), tf.int32)
