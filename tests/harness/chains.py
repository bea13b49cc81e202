"""Runs of many parallel chains, or of one long one, as arrays of independent rows.

`sample_chain` traces and compiles a kernel for its burn-in and again for what it keeps; `sample` is
a single loop. That kernels run in `sample_chain` is tested where it is named, and by the
examples of their docstrings.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def run_chains(
    kernel: Any, state: Any, num_results: int, num_burnin: int, seed: int, jit: bool = True
) -> np.ndarray:
    """Samples of all chains: `[chains, num_results, D]`, parts of the state concatenated."""
    return by_chain(_compiled(kernel, num_results, num_burnin, jit)(state, tf.constant(seed)))


def by_chain(samples: Any) -> np.ndarray:
    """Parts `[num_results, chains, ...]` as one array `[chains, num_results, D]`."""
    parts = [np.asarray(x) for x in tf.nest.flatten(samples)]
    parts = [x.reshape(*x.shape[:2], -1) for x in parts]
    return np.moveaxis(np.concatenate(parts, axis=-1), 0, 1)


def run_blocks(kernel: Any, state: Any, num_blocks: int, length: int, seed: int) -> np.ndarray:
    """One long run, cut into `[num_blocks, length, ...]` with gaps of `length` steps between.

    Blocks are independent when chains forget within `length` steps.
    """
    num_results = 2 * num_blocks * length
    samples = _compiled(kernel, num_results, length, True)(state, tf.constant(seed)).numpy()
    return samples.reshape(num_blocks, 2, length, *samples.shape[1:])[:, 1]


def _compiled(kernel: Any, num_results: int, num_burnin: int, jit: bool) -> Any:
    @tf.function(jit_compile=jit, autograph=False)
    def run(state: Any, seed: tf.Tensor) -> Any:
        results = kernel.bootstrap_results(state)
        return sample(kernel, state, results, num_results, num_burnin, seed)

    return run


def sample(
    kernel: Any,
    state: Any,
    results: Any,
    num_results: int,
    num_burnin: int,
    seed: tf.Tensor,
    kept: Callable[[Any, Any], Any] = lambda state, _: state,
) -> Any:
    """`kept(state, results)` of all steps after the burn-in; step t has the seed (s, t)."""

    def body(t: tf.Tensor, state: Any, results: Any, arrays: Any) -> Any:
        state, results = kernel.one_step(state, results, seed=tf.stack([seed, t]))
        at = tf.maximum(t - num_burnin, 0)  # which the first kept one overwrites
        values = kept(state, results)
        arrays = tf.nest.map_structure(lambda array, x: array.write(at, x), arrays, values)
        return t + 1, state, results, arrays

    arrays = tf.nest.map_structure(
        lambda x: tf.TensorArray(x.dtype, num_results, element_shape=x.shape), kept(state, results)
    )
    num_steps = num_burnin + num_results
    start = (tf.constant(0), state, results, arrays)
    *_, arrays = tf.while_loop(lambda t, *_: t < num_steps, body, start)
    return tf.nest.map_structure(lambda array: array.stack(), arrays)
