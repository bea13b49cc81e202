"""Differences, scores and remainders of a `LinearModel`, by products with its features.

Targets have a `linear_model` in all functions, so the predictor eta is affine in the state. Its
Jacobian is therefore the same at every state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, append_dims, flatten_events, unflatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import value_and_gradient
from tfp_sgmcmc.targets.model_target import ModelTarget

Rows = tuple[tf.Tensor, tf.Tensor]  # log likelihoods `[..., n]` and derivatives by eta


class _Predictor:
    """The predictor of a batch at a state, which can be differentiated backwards."""

    def __init__(self, target: ModelTarget, state: State, batch: Any):
        # New tensors, because bijectors cache results of tensors that an earlier tape has watched.
        self._state = tf.nest.map_structure(tf.identity, state)
        with tf.GradientTape(watch_accessed_variables=False) as self._tape:
            self._tape.watch(tf.nest.flatten(self._state))
            self.eta = target.linear_predictor(self._state, batch)

    def pull_back(self, slopes: tf.Tensor) -> State:
        """Returns the sum over examples of slopes times the Jacobian of eta, shaped as the state.

        A bijector is differentiated once per chain instead of once per example.
        """
        return self._tape.gradient(self.eta, self._state, output_gradients=slopes)


def differences(target: Any, state: State, anchor: State, batch: Any) -> tuple[tf.Tensor, State]:
    """Returns how much a batch's log likelihood at `state` exceeds the one at `anchor`.

    The results are the difference of the sums over the batch, `[chains...]`, and the difference of
    their gradients, in the shapes of the state.
    """
    predictor = _Predictor(target, state, batch)
    values, slopes = _of_rows(target, predictor.eta, batch)
    there, slopes_there = _of_rows(target, target.linear_predictor(anchor, batch), batch)
    found = _weighted((values - there, slopes - slopes_there), target.row_weights)
    return tf.reduce_sum(found[0], axis=-1), predictor.pull_back(found[1])


def scores(
    target: Any, state: State, batch: Any, chain_ndims: int, weights: Any = None
) -> tuple[tf.Tensor, State]:
    """Returns log likelihoods and gradients of the groups of a `MinibatchLogProb`'s batch.

    `weights`, `[n]`, multiply the examples if they are given.
    """
    found = _of_rows(target, target.linear_predictor(state, batch), batch)
    found = _weighted(found, weights)
    return in_groups(target, state, found, batch, target.num_scores, chain_ndims)


def _weighted(rows: Rows, weights: Any) -> Rows:
    """Returns rows times their weights, `[n]`, which are 1 if None."""
    if weights is None:
        return rows
    values, slopes = rows
    weights = tf.cast(weights, values.dtype)
    several = slopes.shape.rank > values.shape.rank  # outputs
    return values * weights, slopes * (weights[:, tf.newaxis] if several else weights)


def in_groups(
    target: ModelTarget, state: State, rows: Rows, batch: Any, num_rows: int, chain_ndims: int
) -> tuple[tf.Tensor, State]:
    """Returns sums over groups of examples, `[chains..., num_rows]`, and their gradients.

    `rows` are functions of the predictor, `[chains..., n]`, and their derivatives by it.
    """
    (values, slopes), x = rows, batch[0]
    several = slopes.shape.rank > values.shape.rank  # outputs
    products = (
        x[..., tf.newaxis] * slopes[..., tf.newaxis, :] if several else x * slopes[..., tf.newaxis]
    )

    def sum_groups(terms: tf.Tensor) -> tf.Tensor:
        size, axis = values.shape[-1] // num_rows, chain_ndims
        shape = tf.shape(terms)
        sizes = [shape[:axis], [num_rows, size], shape[axis + 1 :]]
        return tf.reduce_sum(tf.reshape(terms, tf.concat(sizes, axis=0)), axis=axis + 1)

    if num_rows != values.shape[-1]:
        values, products = sum_groups(values), sum_groups(products)
    if target.bijector is None:
        return values, tf.nest.pack_sequence_as(state, [products])

    def for_each_row(part: tf.Tensor) -> tf.Tensor:
        part, shape = tf.expand_dims(part, chain_ndims), tf.shape(part)
        sizes = [shape[:chain_ndims], [num_rows], shape[chain_ndims:]]
        return tf.broadcast_to(part, tf.concat(sizes, axis=0))

    at = tf.nest.map_structure(for_each_row, state)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tf.nest.flatten(at))
        (weights,) = tf.nest.flatten(target.constrain(at))
    return values, tape.gradient(weights, at, output_gradients=products)


class QuadraticDirections(NamedTuple):
    """The directions along which expansions of second order at a center keep quadratic terms.

    Attributes:
      offset: the state minus the center, `[chains..., D]`.
      weight: the factor of the offset in quadratic terms, `[chains..., 1]`.
      kept: the part of the weighted offset that quadratic terms keep, `[chains..., D]`.
    """

    offset: tf.Tensor
    weight: tf.Tensor
    kept: tf.Tensor


class LinearRemainders:
    """Remainders of log likelihoods after their second-order expansions at a center.

    Attributes:
      at_center: the predictors of all examples at the center, `[N]` or `[N, C]`.

    Args:
      target: a `MinibatchLogProb` with a `linear_model`.
      center: the center, without chain dimensions.
      is_full: whether expansions keep the whole offset, whose predictor is then known.
    """

    def __init__(self, target: Any, center: State, is_full: bool):
        self._target, self._center, self._is_full = target, center, is_full
        total, size = target.num_examples, target.chunk_size

        @traced
        def predictor(start: tf.Tensor) -> tf.Tensor:
            rows = target.rows(tf.minimum(start + tf.range(size), total - 1))
            return target.linear_predictor(center, rows)

        found = [predictor(tf.constant(start)) for start in range(0, total, size)]
        self.at_center = tf.concat(found, axis=0)[:total]

    def of_sum(
        self, state: State, directions: QuadraticDirections, batch: Any
    ) -> tuple[tf.Tensor, State]:
        """Returns the remainder of the weighted sum over `rows`, and its gradient.

        Args:
          state: the state of the chains.
          directions: the directions of the quadratic terms.
          rows: examples.
          weights: their weights, `[..., n]`.
          at_center: their predictors at the center.
        """
        rows, weights, at_center = batch
        predictor = _Predictor(self._target, state, rows)
        values, slopes = self._expand(predictor.eta, directions, rows, at_center)
        total = tf.reduce_sum(weights * values, axis=-1)
        return total, predictor.pull_back(append_dims(weights, at_center) * slopes)

    def of_groups(
        self, state: State, directions: QuadraticDirections, batch: Any, num_rows: int
    ) -> tuple[tf.Tensor, State]:
        """Returns the remainders of `num_rows` groups; `of_sum` documents the other arguments."""
        rows, weights, at_center = batch
        eta = self._target.linear_predictor(state, rows)
        values, slopes = self._expand(eta, directions, rows, at_center)
        found = weights * values, append_dims(weights, at_center) * slopes
        return in_groups(
            self._target, state, found, rows, num_rows, directions.weight.shape.rank - 1
        )

    def squared_norms(
        self, states: State, directions: QuadraticDirections, rows: Any, axes: tf.Tensor
    ) -> tf.Tensor:
        r"""Returns each example's mean over K states of \( \sum_j (s^T a_j)^2 \), `[n]`.

        `axes` has the vectors \( a_j \) as rows, `[D, D]`. For derivatives r by a predictor of
        Jacobian J, the sum is \( r^T J A A^T J^T r \), so that the K states share J A.
        """
        at_center = self._target.linear_predictor(self._center, rows)
        eta = self._target.linear_predictor(states, rows)
        slopes = self._expand(eta, directions, rows, at_center)[1]
        moved = unflatten_events(flatten_events(self._center, 0) + axes, self._center, 0)
        jacobian = self._target.linear_predictor(moved, rows) - at_center
        if slopes.shape.rank == 2:
            return tf.reduce_mean(slopes**2, axis=0) * tf.reduce_sum(jacobian**2, axis=0)
        gram = tf.einsum("dnb,dnc->nbc", jacobian, jacobian)
        return tf.einsum("knb,nbc,knc->n", slopes, gram, slopes) / slopes.shape[0]

    def _expand(
        self, eta: tf.Tensor, directions: QuadraticDirections, rows: Any, at_center: tf.Tensor
    ) -> Rows:
        offset, weight = eta - at_center, directions.weight
        if self._is_full:
            along = offset * append_dims(weight, offset)
        else:
            kept = directions.kept + flatten_events(self._center, 0)
            along = self._target.linear_predictor(unflatten_events(kept, self._center, 0), rows)
            along -= at_center
        values, slopes = _of_rows(self._target, eta, rows)
        there, slopes_there, bend = value_and_gradient(
            lambda e: self._target.linear_model.log_prob(e, rows),
            tf.zeros_like(offset) + at_center,
            along,
            connected=False,
        )
        linear = (slopes_there + bend / 2) * offset
        if offset.shape.rank > values.shape.rank:
            linear = tf.reduce_sum(linear, axis=-1)
        return values - there - linear, slopes - slopes_there - bend


def _of_rows(target: ModelTarget, eta: tf.Tensor, batch: Any) -> Rows:
    """Returns the log likelihood of each example of a batch, and its derivatives by eta."""
    model = target.linear_model
    assert model is not None
    return value_and_gradient(lambda e: model.log_prob(e, batch), eta, connected=False)[:2]
