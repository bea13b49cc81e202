"""Gradient estimates by control variates of second order."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.nest import (
    State,
    flatten_events,
    map_parts,
    static_or_dynamic_shape,
    unflatten_events,
)
from tfp_sgmcmc.internal.replicas import device_scope
from tfp_sgmcmc.targets.anchored import Anchor
from tfp_sgmcmc.targets.base import GradientEstimate, value_and_gradient
from tfp_sgmcmc.targets.control_variates.importance_sampling import weighted_draws
from tfp_sgmcmc.targets.laplace.quadratic import (
    HessianForm,
    Quadratic,
    hessian_products,
    quadratic_at,
    weight,
)
from tfp_sgmcmc.targets.linear_model_scores import LinearRemainders, QuadraticDirections
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.scores import expansion_remainders, mapped_scores
from tfp_sgmcmc.targets.sharded import ShardedLogProb


class SecondOrder:
    r"""The estimates of a `ControlVariate` of order 2, whose docstring has the equations.

    Attributes:
      quadratic: the Hessians at the center.
      probabilities: the \( q_i \) of the examples in this process, or None if the wrapped target
        draws its minibatches.
      noise_scale: c in cov(gradient) = c V.

    Args:
      target: the wrapped target.
      anchor: the center, with the sum of all log likelihoods there.
      importance: "pilot", an array of N positive numbers, or None.
      hessian: the form of the expansion.
    """

    def __init__(
        self,
        target: MinibatchLogProb,
        anchor: Anchor,
        importance: Any,
        hessian: HessianForm,
    ):
        self._target, self._anchor = target, anchor
        self._center = flatten_events(anchor.state, 0)
        self.quadratic = quadratic_at(target, anchor.state, hessian)
        if not isinstance(self.quadratic, Quadratic):
            products = hessian_products(target, anchor.state)
            self.quadratic = self.quadratic.with_products(products, anchor.state)
        self.probabilities: np.ndarray | None = None
        self.noise_scale = target.noise_scale
        self._linear: dict[int, LinearRemainders] = {}  # of each part of the target held here
        if target.linear_model is not None:
            is_full = isinstance(self.quadratic, Quadratic)
            for part in target.parts:
                with device_scope(target.replicas, part.number):
                    self._linear[part.number] = LinearRemainders(part, anchor.state, is_full)
        if importance is None:
            return
        self._draws = weighted_draws(
            target, importance, self.quadratic, anchor.state, self._squared_norms
        )
        self.probabilities = np.concatenate([x.probabilities for x in self._draws.values()])
        self._weigh(target)

    def _weigh(self, target: MinibatchLogProb) -> None:
        """Adapts the scale and the target to examples drawn by their probabilities."""
        self.noise_scale = target.num_examples**2 / target.batch_size
        if isinstance(target, ShardedLogProb):
            self._target = target.with_replacement()

    def with_target(self, target: MinibatchLogProb) -> SecondOrder:
        """Returns these estimates for a target that differs in its minibatches only."""
        other = copy.copy(self)
        other._target, other.noise_scale = target, target.noise_scale
        if self.probabilities is not None:
            other._weigh(target)
        return other

    def estimate(
        self, state: State, seed: tf.Tensor, target_state: Any, probe: State, with_scores: bool
    ) -> GradientEstimate:
        """Returns the estimate, from the arguments of `Target.estimate`."""
        base, anchor = self._target, self._anchor
        prior, slope, product = value_and_gradient(base.log_prior, state, probe, connected=False)
        batch_of, target_state = self._draw(seed, target_state, static_or_dynamic_shape(prior))
        ndims = prior.shape.rank
        directions = self._directions(state, ndims)
        offset, bend = directions.offset, self.quadratic.bend(directions.kept)
        total = flatten_events(anchor.gradient, 0)
        gradient = flatten_events(slope, ndims) + total + bend
        log_prob = prior + anchor.log_likelihood + _inner(total + bend / 2, offset)
        scale, scores = base.num_examples / base.batch_size, ()
        if with_scores and probe is None:
            values, slopes = base.gathered(
                lambda part: self._of_groups(part, state, directions, batch_of(part)), ndims
            )
            scores = self._parts(slopes / base.group_size**0.5)
            value, slope = tf.reduce_sum(values, -1), tf.reduce_sum(slopes, -2)
        else:
            value, slope, curvature = base.summed(
                lambda part: self._of_sum(part, state, directions, batch_of(part), probe)
            )
            if probe is not None:
                product = map_parts(lambda a, b: a + scale * b, product, curvature)
        return GradientEstimate(
            self._parts(gradient + scale * slope),
            log_prob + scale * value,
            scores,
            product,
            target_state,
            tf.constant(self.noise_scale, prior.dtype),
        )

    def _directions(self, state: State, ndims: int) -> QuadraticDirections:
        offset = flatten_events(state, ndims) - self._center
        factor = weight(self.quadratic, offset)
        return QuadraticDirections(offset, factor, self.quadratic.kept(factor * offset))

    def _parts(self, flat: tf.Tensor) -> State:
        return unflatten_events(flat, self._anchor.state, 0)

    def _draw(self, seed: tf.Tensor, target_state: Any, chains: Any) -> tuple[Any, Any]:
        """Returns the next minibatch, a function of a part of the target, and the target state.

        A minibatch consists of examples, their weights in a sum that estimates n/N times the sum
        over all examples, and for a linear model their predictors at the center.
        """
        if self.probabilities is None:
            indices_of, target_state = self._target.next_indices(seed, target_state)

        def batch_of(part: Any) -> tuple[Any, ...]:
            if self.probabilities is None:
                indices = indices_of(part, chains)
                weights = part.weighted(tf.ones_like(indices, self._center.dtype))
            else:
                draws = self._draws[part.number]
                indices, weights = draws(part, random.as_seed(seed), chains)
            linear = self._linear.get(part.number)
            known = () if linear is None else (tf.gather(linear.at_center, indices),)
            return part.rows(indices), weights, *known

        return batch_of, target_state

    def _of_sum(
        self, part: Any, state: State, directions: QuadraticDirections, batch: Any, probe: Any
    ) -> tuple[tf.Tensor, tf.Tensor, State]:
        """Returns the remainder of the sum, its gradient, and the sum's Hessian times `probe`."""
        offset = directions.offset
        shape, linear = offset.shape[:-1], self._linear.get(part.number)
        if linear is not None and probe is None:
            value, slope = linear.of_sum(state, directions, batch)
            return value, flatten_events(slope, shape.rank), ()
        rows, weights = batch[:2]

        def weighted_sum(s: State) -> tf.Tensor:
            values = part.log_likelihood(s, rows, part.batch_size, shape)
            return tf.reduce_sum(weights * values, axis=-1)

        value, slope, curvature = value_and_gradient(weighted_sum, state, probe, connected=False)
        center, along = (
            self._parts(tf.zeros_like(offset) + self._center),
            self._parts(directions.kept),
        )
        at_center, *rest = value_and_gradient(weighted_sum, center, along, connected=False)
        slope_there, bend = (flatten_events(x, shape.rank) for x in rest)
        taylor = at_center + _inner(slope_there + bend / 2, offset)
        slopes = flatten_events(slope, shape.rank) - slope_there - bend
        return value - taylor, slopes, curvature

    def _of_groups(
        self, part: Any, state: State, directions: QuadraticDirections, batch: Any, single: int = 0
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns remainders of the groups of a minibatch, or of `single` rows for all chains."""
        offset = directions.offset
        shape, linear = offset.shape[:-1], self._linear.get(part.number)
        num_rows, size = (single, 1) if single else (part.num_scores, part.group_size)
        batch_ndims = 0 if single or part.shared_batch else shape.rank
        if linear is not None:
            values, slopes = linear.of_groups(state, directions, batch, num_rows)
            return values, flatten_events(slopes, shape.rank + 1)

        def derivatives(at: State, probe: State = None) -> tuple[tf.Tensor, State, State]:
            return mapped_scores(
                lambda x, group: group[1] * part.log_likelihood(x, group[0], size, shape),
                at,
                batch,
                num_rows,
                shape.rank,
                batch_ndims,
                probe=probe,
            )

        center = self._parts(tf.zeros_like(offset) + self._center)
        values, slopes, _ = derivatives(state)
        at_center, *rest = derivatives(center, self._parts(directions.kept))
        slopes, slopes_there, bends = (flatten_events(x, shape.rank + 1) for x in (slopes, *rest))
        taylor = at_center + _inner(slopes_there + bends / 2, offset[..., tf.newaxis, :])
        return values - taylor, slopes - slopes_there - bends

    def _squared_norms(self, states: State, rows: Any, size: int) -> tf.Tensor:
        """Returns each example's mean of squared remainders over K states, `[size]`, whitened."""
        if self._linear and isinstance(self.quadratic, Quadratic):
            axes = tf.constant(self.quadratic.factor.T, self._center.dtype)
            linear = next(iter(self._linear.values()))
            return linear.squared_norms(states, self._directions(states, 1), rows, axes)
        found = self.quadratic.root(self.of_examples(states, rows, size), transposed=True)
        return tf.reduce_mean(tf.reduce_sum(found**2, axis=-1), axis=0)

    def of_examples(self, states: State, rows: Any, size: int) -> tf.Tensor:
        """Returns the remainders of `size` examples at each of K states, `[K, size, D]`."""
        directions = self._directions(states, 1)
        offset, base = directions.offset, self._target.parts[0]  # only for its functions
        if self._linear or base.shared_batch:  # a likelihood for a batch that all chains share
            batch = (rows, tf.ones([size], offset.dtype))
            if self._linear:
                batch += (base.linear_predictor(self._anchor.state, rows),)
            return self._of_groups(base, states, directions, batch, size)[1]
        center = tf.zeros_like(offset) + self._center
        given = flatten_events(states, 1), center, directions.kept
        return expansion_remainders(base, self._anchor.state, rows, size, *given)


def _inner(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x * y, axis=-1)
