"""Gradient estimates together with the covariance of their noise."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.covariance import CovarianceState, NoiseCovariance, as_covariance
from tfp_sgmcmc.covariance.averages import Average, History
from tfp_sgmcmc.covariance.diag import Diag, Zero
from tfp_sgmcmc.state import State
from tfp_sgmcmc.targets.base import GradientEstimate, Target


class GradientNoise:
    """Gradient estimates of a target, with their covariance Sigma from past minibatches.

    `covariance` is the sampler's argument, a name or an estimator of `tfp_sgmcmc.covariance`.
    `average` is for an estimator that names none. Raises ValueError for an unknown name, and for a
    target that has noisy gradients but no scores.
    """

    def __init__(self, target: Target, covariance: Any, average: Average):
        exact = target.num_scores == 0 and target.noise_scale == 0
        self._target = target
        self.covariance = as_covariance(covariance, average, exact)
        if target.num_scores == 0 and not exact:
            raise ValueError(
                "target_log_prob_fn must give scores of single examples, from which the covariance "
                f"of its gradient noise is estimated. Received: a {type(target).__name__}, which "
                "gives none. Use MinibatchLogProb, ControlVariate or SVRG."
            )

    def estimation_steps(self, given: int | None, state: State, chain_ndims: int) -> int:
        """Returns how many steps at the start only average Sigma: `given`, or by default a rule.

        The rule is 10 D / n, at least 10, where D is the number of entries of the largest matrix
        (1 for a diagonal) and n the number of scores, or 32 if it is not known beforehand. A
        `History` needs no more than it holds, and exact gradients need none.
        """
        if given is not None or isinstance(self.covariance, Zero):
            return given or 0
        parts, is_diagonal = tf.nest.flatten(state), isinstance(self.covariance, Diag)
        sizes = [x.shape[chain_ndims:].num_elements() for x in parts]
        largest = max(sum(sizes[i] for i in group) for group in self.covariance.groups(parts))
        rule = -(-10 * (1 if is_diagonal else largest) // (self._target.num_scores or 32))
        average = self.covariance.average
        slots = average.lag + len(average.weights) if isinstance(average, History) else math.inf
        return int(min(max(rule, 10), slots))

    def init(self, state: State, chain_ndims: int) -> CovarianceState:
        """Returns the estimator's state before the first step; raises for what does not fit."""
        return self.covariance.init(state, chain_ndims, self._target.num_scores)

    def estimate(
        self, state: State, seed: tf.Tensor, target_state: Any, last: CovarianceState
    ) -> tuple[GradientEstimate, NoiseCovariance, CovarianceState]:
        """Returns the estimate at `state`, Sigma = c V, and the estimator's next state.

        Sigma learns nothing from a minibatch with scores that are not finite, or whose squares are
        not. `CovarianceState.num_skipped` counts these. Their gradient stays as it is, so a chain
        whose gradient is NaN turns NaN.
        """
        estimate = self._target.estimate(state, seed, target_state)
        return self.learn(estimate, estimate.noise_scale, state, last)

    def past(self, state: State, last: CovarianceState, scale: Any = None) -> NoiseCovariance:
        """Returns c V from the minibatches so far, zero before the first.

        `scale` is c, by default the target's; unknown scales count as zero.
        """
        scale = (self._target.noise_scale or 0.0) if scale is None else scale
        chain_ndims = last.num_skipped.shape.rank
        rows = self._target.num_scores or 1
        unknown = tf.nest.map_structure(  # scores that no estimator learns from
            lambda x: tf.repeat(tf.expand_dims(x * math.nan, chain_ndims), rows, chain_ndims), state
        )
        return self.covariance.evaluate(last, unknown, scale, state, chain_ndims)[0]

    def learn(
        self, estimate: GradientEstimate, scale: Any, state: State, last: CovarianceState
    ) -> tuple[GradientEstimate, NoiseCovariance, CovarianceState]:
        """Returns what `estimate` returns, with `scale` V in place of Sigma."""
        chain_ndims = estimate.log_prob.shape.rank
        matrix, after = self.covariance.evaluate(last, estimate.scores, scale, state, chain_ndims)
        return estimate, matrix, after
