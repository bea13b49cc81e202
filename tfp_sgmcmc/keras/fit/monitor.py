"""What a sampler tells Keras' logs, and when its gradient noise is small enough to sample."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.checks import integer
from tfp_sgmcmc.diagnostics import gradient_noise_share, sampling_threshold
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb
from tfp_sgmcmc.kernels import SGLD, ModifiedSGLD
from tfp_sgmcmc.preconditioners import GradientInfo, as_preconditioner

_EVERY = 100


def scalars(kernel: tfp.mcmc.TransitionKernel, results: Any) -> dict[str, tf.Tensor]:
    """The step size (the largest, of several), the temperature, and the kinetic one of momenta.

    Args:
      kernel: that took the step.
      results: of the step; what they lack is left out.
    """
    logs = {}
    if hasattr(results, "step_size"):
        sizes = [tf.reduce_max(s) for s in tf.nest.flatten(results.step_size)]
        logs["step_size"] = tf.reduce_max(tf.stack(sizes))
    if hasattr(results, "step") and "temperature" in getattr(kernel, "parameters", {}):
        logs["temperature"] = _temperature(kernel, results)
    if hasattr(results, "kinetic_temperature"):
        logs["kinetic_temperature"] = tf.reduce_mean(results.kinetic_temperature)
    return logs


class NoiseMonitor:
    r"""Compares the noise of the gradient with the injected one, now and then, for SGLD.

    Attributes:
      alpha: the sampling threshold \( \alpha \), the largest of all chains, when last looked at.
      share: the share of gradient noise in a step's variance, averaged over chains, likewise.

    Args:
      every: steps from one look to the next.
      threshold: alpha below which burn-in is over; None to look only.
      num_burnin_steps: steps before burn-in can be over.
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
        """Looks at the state before a step that had `results`.

        Returns:
          The first step to keep, which was `first` before.

        Raises:
          ValueError: a kernel that has no such threshold.
        """
        if not isinstance(kernel, SGLD | ModifiedSGLD):
            raise ValueError(
                f"make_kernel_fn returned {type(kernel).__name__}, but the sampling threshold is "
                "that of Langevin dynamics: SGLD or ModifiedSGLD is expected."
            )
        step = results.step - 1

        def look() -> tuple[tf.Tensor, tf.Tensor]:
            estimate = target.estimate(state, seed, with_scores=True)
            chain_ndims = estimate.log_prob.shape.rank
            preconditioner = as_preconditioner(kernel.parameters.get("preconditioner"))
            matrix, _ = preconditioner.evaluate(
                state,
                chain_ndims,
                getattr(results, "preconditioner_state", ()),
                GradientInfo(estimate.gradient, target.num_examples),
            )
            temperature = _temperature(kernel, results)
            heat = tf.nest.map_structure(  # both figures depend on epsilon / T alone
                lambda s: s / tf.cast(temperature, s.dtype), results.step_size
            )
            alpha = sampling_threshold(estimate, heat, matrix, seed=seed)
            share = gradient_noise_share(estimate, heat, matrix)
            return (
                tf.cast(tf.reduce_max(alpha), tf.float32),
                tf.cast(tf.reduce_mean(share), tf.float32),
            )

        old = self.alpha.read_value(), self.share.read_value()
        alpha, share = tf.cond(step % self._every == 0, look, lambda: old)
        self.alpha.assign(alpha)
        self.share.assign(share)
        if self._threshold is None:
            return first
        is_over = (alpha < self._threshold) & (step + 1 >= self._burnin)
        return tf.where(is_over, tf.minimum(first, step + 1), first)

    def logs(self) -> dict[str, tf.Tensor]:
        return {
            "sampling_threshold": self.alpha.read_value(),
            "gradient_noise_share": self.share.read_value(),
        }


def noise_monitor(
    every: int | None, threshold: float | None, num_burnin_steps: int
) -> NoiseMonitor | None:
    """The monitor that is asked for, if any.

    Raises:
      ValueError: numbers out of range.
    """
    if threshold is not None and not threshold > 0:
        raise ValueError(f"sampling_threshold is {threshold}; a positive number is expected.")
    if every is None and threshold is None:
        return None
    every = _EVERY if every is None else integer("noise_every", every, 1)
    return NoiseMonitor(every, threshold, num_burnin_steps)


def _temperature(kernel: tfp.mcmc.TransitionKernel, results: Any) -> tf.Tensor:
    """That of the last step; the largest, of several."""
    own = kernel.parameters["temperature"]
    values = [t(results.step - 1) if callable(t) else t for t in tf.nest.flatten(own)]
    return tf.reduce_max(tf.stack([tf.cast(t, tf.float32) for t in values]))
