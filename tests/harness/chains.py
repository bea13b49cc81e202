"""Runs of many parallel chains, or of one long chain, as arrays of independent rows.

`sample_chain` traces and compiles a kernel twice, for the burn-in and for the kept steps. `sample`
is a single loop. Other tests, and the examples in docstrings, run the kernels in `sample_chain`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def run_chains(
    kernel: Any, state: Any, num_results: int, num_burnin: int, seed: int, jit: bool = True
) -> np.ndarray:
    """Returns samples, `[chains, num_results, D]`, with the parts of the state concatenated."""
    return by_chain(compiled(kernel, num_results, num_burnin, jit)(state, tf.constant(seed)))


def by_chain(samples: Any) -> np.ndarray:
    """Concatenates parts `[num_results, chains, ...]` into `[chains, num_results, D]`."""
    parts = [np.asarray(x) for x in tf.nest.flatten(samples)]
    parts = [x.reshape(*x.shape[:2], -1) for x in parts]
    return np.moveaxis(np.concatenate(parts, axis=-1), 0, 1)


def run_blocks(kernel: Any, state: Any, num_blocks: int, length: int, seed: int) -> np.ndarray:
    """Cuts one long run into blocks, `[num_blocks, length, ...]`, with gaps of `length` steps.

    The blocks are independent if the chain forgets its state within `length` steps.
    """
    num_results = 2 * num_blocks * length
    samples = compiled(kernel, num_results, length, True)(state, tf.constant(seed)).numpy()
    return samples.reshape(num_blocks, 2, length, *samples.shape[1:])[:, 1]


def compiled(
    kernel: Any,
    num_results: int,
    num_burnin: int,
    jit: bool,
    kept: Callable[[Any, Any], Any] = lambda state, _: state,
    prepare: Callable[[Any], Any] = lambda results: results,
) -> Any:
    """Returns a function of (state, seed) that bootstraps, prepares the results, and samples."""

    @tf.function(jit_compile=jit, autograph=False)
    def run(state: Any, seed: tf.Tensor) -> Any:
        results = prepare(kernel.bootstrap_results(state))
        return sample(kernel, state, results, num_results, num_burnin, seed, kept)

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
    """Stacks `kept(state, results)` of all steps after the burn-in; step t has the seed (s, t)."""

    def body(t: tf.Tensor, state: Any, results: Any, arrays: Any) -> Any:
        state, results = kernel.one_step(state, results, seed=tf.stack([seed, t]))
        at = tf.maximum(t - num_burnin, 0)  # the first kept step overwrites the burn-in
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
