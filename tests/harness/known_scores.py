"""A target whose scores have a known covariance, which every estimator of V then returns."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.targets.base import GradientEstimate, Target


class KnownScores(Target):
    """Wraps a target whose state has one or more parts with events of rank one.

    Minibatches and gradients are the wrapped target's. The scores of each minibatch are 2 D rows
    with the sample covariance V.

    Args:
      target: the wrapped target.
      covariance: V, `[D, D]`, for all parts in the order of `tf.nest.flatten`.
      noise_scale: c, a number or one for each chain; by default the target's.
    """

    def __init__(self, target: Target, covariance: Any, noise_scale: Any = None):
        size = len(covariance)
        root = np.linalg.cholesky(covariance).T * np.sqrt((2 * size - 1) / 2)
        self._rows = np.concatenate([root, -root])  # mean zero, R^T R / (2 D - 1) = V
        self._target, self.num_examples = target, target.num_examples
        self.num_scores = 2 * size
        self.noise_scale = target.noise_scale if noise_scale is None else noise_scale

    def __call__(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return self._target(*args, **kwargs)

    def chain_shape(self, state: State) -> Any:
        return self._target.chain_shape(state)

    def bootstrap(self, state: State) -> Any:
        return self._target.bootstrap(state)

    def estimate(
        self,
        state: State,
        seed: tf.Tensor,
        target_state: Any = (),
        probe: State = None,
        with_scores: bool = True,
    ) -> GradientEstimate:
        found = self._target.estimate(state, seed, target_state, probe, with_scores=False)
        parts = tf.nest.flatten(state)
        pieces = np.split(self._rows, np.cumsum([x.shape[-1] for x in parts])[:-1], axis=1)
        scores = [
            tf.constant(piece, x.dtype) + tf.zeros_like(x)[..., tf.newaxis, :]
            for piece, x in zip(pieces, parts, strict=True)
        ]
        return found._replace(
            scores=tf.nest.pack_sequence_as(state, scores),
            noise_scale=tf.constant(self.noise_scale, parts[0].dtype),
        )
