"""The base of samplers without momenta: step size and temperature, one for each state part."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.kernels.base import StochasticGradientKernel
from tfp_sgmcmc.kernels.hyperparameters import value_at
from tfp_sgmcmc.kernels.stability import overdamped_limit


class OverdampedKernel(StochasticGradientKernel):
    """A kernel that moves theta along its gradient, at the state where the step begins.

    `parameters` also has `temperature`. Step size and temperature are numbers or tensors that
    broadcast with the state parts, schedules, or nests of these in the structure of the state. The
    results are about the state that the step left.
    """

    def largest_stable_step(
        self, largest_curvature: Any, step: int = 0, results: Any = None
    ) -> float | np.ndarray:
        r"""Returns \( 4 / \lambda \): a step multiplies by \( 1 - \epsilon \lambda / 2 \).

        If entries of the state have different steps, this is a limit of the largest of them, where
        \( \lambda \) is of E M H with E the diagonal matrix of the steps divided by the largest.
        """
        del step, results
        return overdamped_limit(largest_curvature)

    def _settings(self, step: tf.Tensor, state: State) -> tuple[State, State]:
        """Returns epsilon and T at `step`, one for each part of the state."""
        return (
            value_at(self.step_size, step, state),
            value_at(self._parameters["temperature"], step, state, "temperature"),
        )

    def _start(self, state: State) -> dict[str, Any]:
        """Returns the fields that all results have, before the first step."""
        settings = self._settings(tf.zeros([], tf.int64), state)
        return self._first_figures(state, self._zeros(state), *settings)
