"""Gradient estimates together with the covariance of their noise."""

from __future__ import annotations

import copy
import math
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.covariance import (
    CovarianceEstimator,
    CovarianceState,
    NoiseCovariance,
    as_covariance,
)
from tfp_sgmcmc.covariance.base import Average, History, RunningMean
from tfp_sgmcmc.covariance.estimators import Diag, Zero
from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.nest import (
    State,
    append_dims,
    map_parts,
    number_as_dtype,
    squared_norm,
)
from tfp_sgmcmc.kernels.momentum import scaled
from tfp_sgmcmc.targets.base import GradientEstimate, Target


class GradientNoise:
    """Gradient estimates of a target, with their covariance Sigma from past minibatches.

    `covariance` is the sampler's argument: a name or an estimator of `tfp_sgmcmc.covariance`, or
    "auto", which leaves the choice to the target. `average` is used by an estimator without one.
    None stands for an exponential average of past minibatches that is long enough for solutions
    with Sigma: 1000 scores for each entry of its largest matrix, and at least 199 minibatches. It
    forgets the start with the power 2. See `NOGIN`.
    Raises ValueError for an unknown name, and for a target with noisy gradients but no scores.
    """

    def __init__(self, target: Target, covariance: Any, average: Average | None):
        exact = target.num_scores == 0 and target.noise_scale == 0
        self._target = target
        is_auto = isinstance(covariance, str) and covariance == "auto"
        chosen = target.default_covariance if is_auto else covariance
        self.covariance = as_covariance(chosen, average, exact)
        if target.num_scores == 0 and not exact:
            raise ValueError(
                "target_log_prob_fn must give scores of single examples, from which the covariance "
                f"of its gradient noise is estimated. Received: {a_type(target)}, which "
                "gives none. Use MinibatchLogProb, ControlVariate or SVRG."
            )

    def estimation_steps(self, given: int | None, state: State, chain_ndims: int) -> int:
        """Returns the number of steps at the start that only average Sigma, by default by a rule.

        The rule is 10 D / n, at least 10, where D is the number of entries of the largest matrix
        (1 for a diagonal) and n the number of scores, or 32 if it is not known beforehand. A
        `History` needs no more than it holds, and exact gradients need none.
        """
        if given is not None or isinstance(self.covariance, Zero):
            return given or 0
        rule = math.ceil(10 * self._entries_by_score(state, chain_ndims))
        average = self.covariance.average
        slots = average.lag + len(average.weights) if isinstance(average, History) else math.inf
        return int(min(max(rule, 10), slots))

    def largest_rank(self, given: int | None, state: State, chain_ndims: int) -> int | None:
        """Returns the largest rank that Sigma can have at the first move, or None if not known.

        A minibatch of n scores has a covariance of rank n - 1 at most, and those of the steps of
        estimation are averaged.
        """
        if self._target.num_scores is None:
            return None
        minibatches = max(1, self.estimation_steps(given, state, chain_ndims))
        if isinstance(average := self.covariance.average, History):
            minibatches = min(max(1, minibatches - average.lag), len(average.weights))
        return minibatches * max(0, self._target.num_scores - 1)

    def _entries_by_score(self, state: State, chain_ndims: int) -> float:
        """Returns D / n for the largest matrix, where a diagonal counts as matrices of D = 1."""
        parts = tf.nest.flatten(state)
        sizes = [x.shape[chain_ndims:].num_elements() for x in parts]
        largest = max(sum(sizes[i] for i in group) for group in self.covariance.groups(parts))
        largest = 1 if isinstance(self.covariance, Diag) else max(1, largest)
        return largest / (self._target.num_scores or 32)  # Keras' batch size, if not known

    def _estimator(self, state: State, chain_ndims: int) -> CovarianceEstimator:
        """Returns the estimator with its average. Weights decay^k are worth 2 / (1 - decay)."""
        if self.covariance.average is not None:
            return self.covariance
        decay = max(0.99, 1 - 1 / (500 * self._entries_by_score(state, chain_ndims)))
        return self.covariance.with_average(RunningMean(decay, power=2.0))

    def init(self, state: State, chain_ndims: int) -> CovarianceState:
        """Returns the estimator's state before the first step; raises for what does not fit."""
        number_as_dtype(
            "noise_scale", self._target.noise_scale or 0.0, tf.nest.flatten(state)[0].dtype
        )
        return self.covariance.init(state, chain_ndims, self._target.num_scores)

    def estimate(
        self, state: State, seed: tf.Tensor, results: Any
    ) -> tuple[GradientEstimate, NoiseCovariance, CovarianceState]:
        """Returns the estimate at `state`, Sigma = c V, and the estimator's next state.

        The kernel's `results` have the states of the target and of the estimator.

        Sigma learns nothing from a minibatch with scores that are not finite, or whose squares are
        not. `CovarianceState.num_skipped` counts these. Their gradient stays as it is, so a chain
        whose gradient is NaN turns NaN.
        """
        estimate = self._target.estimate(state, seed, results.target_state)
        last = results.covariance_state
        return estimate, *self.learn(estimate, estimate.noise_scale, state, last)

    def past(self, state: State, last: CovarianceState, scale: Any = None) -> NoiseCovariance:
        """Returns c V from the minibatches so far, zero before the first.

        `scale` is c, by default the target's; unknown scales count as zero.
        """
        scale = (self._target.noise_scale or 0.0) if scale is None else scale
        chain_ndims = last.num_skipped.shape.rank
        unknown = tf.nest.map_structure(  # a single score, which no estimator learns from
            lambda x: tf.zeros_like(tf.expand_dims(x, chain_ndims)), state
        )
        estimator = copy.copy(self._estimator(state, chain_ndims))
        estimator.include_current = False
        return estimator.evaluate(last, unknown, scale, state, chain_ndims)[0]

    def learn(
        self, estimate: GradientEstimate, scale: Any, state: State, last: CovarianceState
    ) -> tuple[NoiseCovariance, CovarianceState]:
        """Returns `scale` V with the scores of `estimate`, and the estimator's next state."""
        chain_ndims = estimate.log_prob.shape.rank
        return self._estimator(state, chain_ndims).evaluate(
            last, estimate.scores, scale, state, chain_ndims, estimate.num_scores
        )


def largest_eigenvalue(
    sigma: NoiseCovariance, eigenvector: State, gradient: State, chain_ndims: int
) -> tuple[tf.Tensor, State]:
    """Returns the largest eigenvalue of Sigma, `[chains...]`, and its eigenvector.

    The iteration begins at the last eigenvector, plus a share of the gradient, which has a part in
    every direction of Sigma.
    """
    norm = tf.sqrt(squared_norm(gradient, chain_ndims))
    fresh = tf.math.divide_no_nan(tf.constant(0.1, norm.dtype), norm)
    start = map_parts(  # a gradient that is not finite is left out
        lambda v, g: tf.where(append_dims(tf.math.is_finite(norm), g), v + scaled(fresh, g), v),
        eigenvector, gradient,
    )  # fmt: skip
    return sigma.power_iteration(start, num_iterations=8)


def remaining_noise(
    sigma: NoiseCovariance, shift: Any, scale: Any, largest: tf.Tensor, z: State, chain_ndims: int
) -> State:
    """Returns S z with S S^T = shift I + scale Sigma and a negative `scale`.

    Power iteration finds the largest eigenvalue from below, so a tenth is added to bound it. If the
    bound fails all the same, the result is longer than any S z can be, and zero is returned.
    """
    noise = sigma.sqrt_multiply(shift, scale, 1.1 * largest, z)
    longest = 1.01 * shift * squared_norm(z, chain_ndims)
    sound = squared_norm(noise, chain_ndims) <= longest
    return map_parts(lambda x: tf.where(append_dims(sound, x), x, 0.0), noise)
