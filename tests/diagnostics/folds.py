"""Reducers over a compiled chain."""

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp


def fold(kernel: Any, state: Any, num_steps: int, reducers: Any) -> Any:
    """Returns what the reducers find, in their structure."""

    @tf.function(jit_compile=True, autograph=False)
    def run(seed: tf.Tensor) -> Any:
        return tfp.experimental.mcmc.sample_fold(
            num_steps, state, kernel=kernel, reducer=reducers, seed=seed
        )[0]

    return run(tf.constant([0, 1]))


def states(num_steps: int) -> Any:
    """Returns a reducer that keeps all states."""
    return tfp.experimental.mcmc.TracingReducer(lambda x, _: x, num_steps)
