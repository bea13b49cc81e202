"""What `SamplerCallback` adds to `model.fit`: SGLD against plain SGD, step by step.

A 784-100-10 network on MNIST, batches of 128 (469 steps an epoch), equal settings on both sides.
Each side is compiled in a first epoch that is not counted; then epochs are timed in turn. Three
more rows say where the difference comes from: the callback with a kernel that draws no noise, with
one that does not move, and SGD with an empty callback.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp


class Still(tfp.mcmc.TransitionKernel):
    """Estimates the gradient, as any kernel must, and keeps the state."""

    is_calibrated = False

    def __init__(self, target: Any):
        self._target = target

    def bootstrap_results(self, init_state: Any) -> tf.Tensor:
        return tf.zeros([])

    def one_step(
        self, current_state: Any, previous_kernel_results: tf.Tensor, seed: Any = None
    ) -> Any:
        estimate = self._target.estimate(current_state, seed)
        norm = tf.add_n([tf.reduce_sum(g**2) for g in estimate.gradient])
        state = [x + 0.0 * g for x, g in zip(current_state, estimate.gradient, strict=True)]
        return state, norm + previous_kernel_results


class SGDKernel(Still):
    """SGD's arithmetic as a kernel."""

    def __init__(self, target: Any, step_size: float):
        super().__init__(target)
        self._step_size = step_size

    def one_step(
        self, current_state: Any, previous_kernel_results: tf.Tensor, seed: Any = None
    ) -> Any:
        gradient = self._target.estimate(current_state, seed).gradient
        moved = zip(current_state, gradient, strict=True)
        return [x + self._step_size / 2 * g for x, g in moved], previous_kernel_results
