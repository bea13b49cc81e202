"""Monitors the gradient noise in `fit`, which can end the burn-in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics import gradient_noise_share, sampling_threshold
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.kernels import SGLD, ModifiedSGLD
from tfp_sgmcmc.preconditioners import GradientInfo, as_preconditioner

_EVERY = 100
_HOT = 0.1  # largest alpha of good samples, if no threshold is given


class NoiseMonitor:
    r"""Compares the noise of the gradient with the injected noise at regular steps of SGLD.

    Attributes:
      alpha: the last sampling threshold \( \alpha \), the largest of all chains.
      share: the last share of gradient noise in a step's variance, the mean over chains.

    Args:
      every: steps from one comparison to the next.
      threshold: burn-in ends when alpha falls below it. None never ends burn-in.
      num_burnin_steps: smallest number of steps before burn-in can end.
    """

    def __init__(self, every: int, threshold: float | None, num_burnin_steps: int):
        self._every, self._threshold, self._burnin = every, threshold, num_burnin_steps
        self.alpha = tf.Variable(math.nan, trainable=False)
        self.share = tf.Variable(math.nan, trainable=False)

    def update(
        self,
        target: ModelLogProb,
        kernel: tfp.mcmc.TransitionKernel,
        state: list[tf.Tensor],
        results: Any,
        seed: tf.Tensor,
        first: tf.Tensor,
    ) -> tf.Tensor:
        """Compares the noise at the `state` before a step, if due; returns the first step to keep.

        `results` are the kernel's results after the step. `first` is the first step to keep as far
        as it was known before.

        Raises:
          ValueError: the sampling threshold is not defined for the kernel.
        """
        if not isinstance(kernel, SGLD | ModifiedSGLD):
            raise ValueError(
                "kernel must return SGLD or ModifiedSGLD with noise_every or "
                "sampling_threshold, because the threshold is defined for Langevin dynamics. "
                f"Received: {type(kernel).__name__}."
            )
        step = results.step - 1

        def compare() -> tuple[tf.Tensor, tf.Tensor]:
            estimate = target.estimate(state, seed, with_scores=True)
            chain_ndims = estimate.log_prob.shape.rank
            matrix = kernel.parameters.get("preconditioner")
            if matrix is not None:  # without one, sampling_threshold takes less time
                matrix, _ = as_preconditioner(matrix).evaluate(
                    state,
                    chain_ndims,
                    getattr(results, "preconditioner_state", ()),
                    GradientInfo(estimate.gradient, target.num_examples),
                )
            temperature = tf.reduce_max(results.temperature)
            heat = tf.nest.map_structure(  # both figures depend on epsilon / T alone
                lambda s: s / tf.cast(temperature, s.dtype), results.step_size
            )
            alpha = tf.reduce_max(sampling_threshold(estimate, heat, matrix, seed=seed))
            share = tf.reduce_mean(gradient_noise_share(estimate, heat, matrix))
            return tf.cast(alpha, tf.float32), tf.cast(share, tf.float32)

        old = self.alpha.read_value(), self.share.read_value()
        alpha, share = tf.cond(step % self._every == 0, compare, lambda: old)
        self.alpha.assign(alpha)
        self.share.assign(share)
        if self._threshold is None:
            return first
        is_over = (alpha < self._threshold) & (step + 1 >= self._burnin)
        return tf.where(is_over, tf.minimum(first, step + 1), first)

    def has_failed(self, logs: Mapping[str, Any]) -> bool | None:
        """Returns whether alpha of kept samples was too large in the last comparison, by the logs.

        Returns None without samples, or if alpha is unknown.
        """
        alpha = float(logs.get("sampling_threshold", math.nan))
        if math.isnan(alpha) or not logs.get("samples"):
            return None
        return alpha > (self._threshold or _HOT)

    def logs(self) -> dict[str, tf.Tensor]:
        return {
            "sampling_threshold": self.alpha.read_value(),
            "gradient_noise_share": self.share.read_value(),
        }


def noise_monitor(
    every: int | None, threshold: float | None, num_burnin_steps: int
) -> NoiseMonitor | None:
    """Returns the monitor for options of `Collect`, or None."""
    if threshold is None and every is None:
        return None
    return NoiseMonitor(_EVERY if every is None else every, threshold, num_burnin_steps)
