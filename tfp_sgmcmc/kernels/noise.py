"""Gradient estimates together with the covariance of their noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.covariance import CovarianceState, NoiseCovariance, as_covariance
from tfp_sgmcmc.covariance.averages import Average
from tfp_sgmcmc.state import State, append_dims
from tfp_sgmcmc.targets.base import GradientEstimate, Target


class GradientNoise:
    """A target's estimates, each with Sigma as known from past minibatches.

    Args:
      target: the target.
      covariance: as samplers take it: a name, or an estimator of `tfp_sgmcmc.covariance`.
      average: the sampler's choice for an estimator that names none.

    Raises:
      ValueError: an unknown name; a target whose gradients are neither exact nor have scores.
    """

    def __init__(self, target: Target, covariance: Any, average: Average):
        exact = target.num_scores == 0 and target.noise_scale == 0
        self._target = target
        self.covariance = as_covariance(covariance, average, exact)
        if target.num_scores == 0 and not exact:
            raise ValueError(
                f"The target, a {type(target).__name__}, gives no scores of single examples, from "
                "which the covariance of its gradient noise could be estimated; "
                "MinibatchLogProb, ControlVariate or SVRG is expected."
            )

    def init(self, state: State, chain_ndims: int) -> CovarianceState:
        """The estimator's state before the first step; raises for what does not fit."""
        return self.covariance.init(state, chain_ndims, self._target.num_scores)

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any,
        own: CovarianceState,
        system: Any = None,
        multiple: Callable[[Any], Any] | None = None,
    ) -> tuple[GradientEstimate, NoiseCovariance, CovarianceState]:
        """Returns the estimate at `state`, Sigma, and the estimator's next state.

        A function `multiple` of c gives `multiple(c) V` in the place of Sigma = c V.

        In a chain in which the minibatch has scores that are not finite, the gradient is zero and
        Sigma learns nothing from it; `CovarianceState.num_skipped` counts these minibatches.
        """
        estimate = self._target.estimate(state, seed, target_state)
        chain_ndims = estimate.log_prob.shape.rank
        scale = estimate.noise_scale if multiple is None else multiple(estimate.noise_scale)
        sigma, after = self.covariance.evaluate(
            own, estimate.scores, scale, state, chain_ndims, system
        )
        taken = after.num_skipped == own.num_skipped
        gradient = tf.nest.map_structure(
            lambda g: tf.where(append_dims(taken, g), g, 0), estimate.gradient
        )
        return estimate._replace(gradient=gradient), sigma, after
