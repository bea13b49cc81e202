"""Runs of many parallel chains, or of one long one, as arrays of independent rows."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp


def run_chains(
    kernel: Any, state: Any, num_results: int, num_burnin: int, seed: int, jit: bool = True
) -> np.ndarray:
    """Samples of all chains: `[chains, num_results, D]`, parts of the state concatenated."""
    samples = _compiled(kernel, num_results, num_burnin, jit)(state, tf.constant([0, seed]))
    parts = [x.numpy() for x in tf.nest.flatten(samples)]
    parts = [x.reshape(*x.shape[:2], -1) for x in parts]
    return np.moveaxis(np.concatenate(parts, axis=-1), 0, 1)


def run_blocks(kernel: Any, state: Any, num_blocks: int, length: int, seed: int) -> np.ndarray:
    """One long run, cut into `[num_blocks, length, ...]` with gaps of `length` steps between.

    Blocks are independent when chains forget within `length` steps.
    """
    num_results = 2 * num_blocks * length
    samples = _compiled(kernel, num_results, length, True)(state, tf.constant([0, seed])).numpy()
    return samples.reshape(num_blocks, 2, length, *samples.shape[1:])[:, 1]


def _compiled(kernel: Any, num_results: int, num_burnin: int, jit: bool) -> Any:
    @tf.function(jit_compile=jit, autograph=False)
    def run(state: Any, seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            num_results,
            current_state=state,
            kernel=kernel,
            num_burnin_steps=num_burnin,
            trace_fn=None,
            seed=seed,
        )

    return run
