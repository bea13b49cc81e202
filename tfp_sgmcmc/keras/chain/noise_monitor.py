"""What a sampler adds to Keras' logs, and the end of burn-in by the gradient noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.diagnostics import gradient_noise_share, sampling_threshold
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.kernels import SGLD, ModifiedSGLD
from tfp_sgmcmc.preconditioners import GradientInfo, as_preconditioner

_EVERY = 100
_HOT = 0.1  # alpha, the excess temperature of the noisiest direction, if no threshold is given


def scalars(results: Any) -> dict[str, tf.Tensor]:
    """Returns the figures of a kernel's results that the logs show; missing ones are left out.

    These are the largest step size, the largest temperature, and the mean kinetic temperature.
    """
    logs = {}
    if hasattr(results, "step_size"):
        logs["step_size"] = _largest(results.step_size)
    if hasattr(results, "temperature"):
        logs["temperature"] = tf.cast(_largest(results.temperature), tf.float32)
    if hasattr(results, "kinetic_temperature"):
        logs["kinetic_temperature"] = tf.reduce_mean(results.kinetic_temperature)
    return logs


def step_size_of(results: Any) -> tf.Tensor:
    """Returns the largest step size in a kernel's results; NaN if they have none."""
    return _largest(getattr(results, "step_size", math.nan))


def _largest(numbers: Any) -> tf.Tensor:
    return tf.reduce_max(tf.stack([tf.reduce_max(x) for x in tf.nest.flatten(numbers)]))


class NoiseMonitor:
    r"""Compares the noise of the gradient with the injected noise now and then, for SGLD.

    Attributes:
      alpha: the sampling threshold \( \alpha \) at the last look, the largest of all chains.
      share: the share of gradient noise in a step's variance at the last look, the mean over
        chains.

    Args:
      every: steps from one look to the next.
      threshold: burn-in ends when alpha falls below it. None looks without ending burn-in.
      num_burnin_steps: least number of steps before burn-in can end.
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
        """Looks at the `state` before a step if a look is due; `results` are those after the step.

        Returns the first step to keep, given what was known of it before the step as `first`.

        Raises:
          ValueError: the sampling threshold is not defined for the kernel.
        """
        if not isinstance(kernel, SGLD | ModifiedSGLD):
            raise ValueError(
                "make_kernel_fn must return SGLD or ModifiedSGLD, since the sampling threshold is "
                f"one of Langevin dynamics. Received: {type(kernel).__name__}."
            )
        step = results.step - 1

        def look() -> tuple[tf.Tensor, tf.Tensor]:
            estimate = target.estimate(state, seed, with_scores=True)
            chain_ndims = estimate.log_prob.shape.rank
            matrix = kernel.parameters.get("preconditioner")
            if matrix is not None:  # sampling_threshold takes less time without
                matrix, _ = as_preconditioner(matrix).evaluate(
                    state,
                    chain_ndims,
                    getattr(results, "preconditioner_state", ()),
                    GradientInfo(estimate.gradient, target.num_examples),
                )
            temperature = _largest(results.temperature)
            heat = tf.nest.map_structure(  # both figures depend on epsilon / T alone
                lambda s: s / tf.cast(temperature, s.dtype), results.step_size
            )
            alpha = tf.reduce_max(sampling_threshold(estimate, heat, matrix, seed=seed))
            share = tf.reduce_mean(gradient_noise_share(estimate, heat, matrix))
            return tf.cast(alpha, tf.float32), tf.cast(share, tf.float32)

        old = self.alpha.read_value(), self.share.read_value()
        alpha, share = tf.cond(step % self._every == 0, look, lambda: old)
        self.alpha.assign(alpha)
        self.share.assign(share)
        if self._threshold is None:
            return first
        is_over = (alpha < self._threshold) & (step + 1 >= self._burnin)
        return tf.where(is_over, tf.minimum(first, step + 1), first)

    def has_failed(self, logs: Mapping[str, Any]) -> bool | None:
        """Returns whether samples that are kept were too hot at the last look, by the logs.

        None without samples, or if alpha cannot be told.
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
    """Returns the monitor that the callback's arguments ask for, or None.

    Raises:
      ValueError: a number is out of range.
    """
    if threshold is not None:
        checks.positive("sampling_threshold", threshold)
    elif every is None:
        return None
    every = _EVERY if every is None else checks.integer("noise_every", every, 1)
    return NoiseMonitor(every, threshold, num_burnin_steps)
