"""Chains of `tfp.mcmc.sample_chain`, compiled by XLA."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp


def compiled(
    kernel: Any,
    num_results: int,
    thinning: int = 1,
    num_burnin_steps: int | None = None,
    trace_fn: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Returns a compiled function `(state, results, seed, *settings) -> StatesAndTrace`.

    Args:
      kernel: the kernel, or a function that makes it from the settings. It starts anew if `results`
        is None. Then the final results are not returned, so that XLA leaves out what only they
        need, such as the norm of each gradient.
      num_results: draws of a call, `thinning` steps apart.
      num_burnin_steps: steps before those that lead to the first draw. None makes the first draw
        `thinning` steps after the start.
      trace_fn: as in `sample_chain`.
    """
    burnin = thinning - 1 if num_burnin_steps is None else num_burnin_steps

    @tf.function(jit_compile=True, autograph=False)
    def run(state: Any, results: Any, seed: tf.Tensor, *settings: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            num_results,
            state,
            previous_kernel_results=results,
            kernel=kernel(*settings) if settings else kernel,
            num_burnin_steps=burnin,
            num_steps_between_results=thinning - 1,
            trace_fn=trace_fn or (lambda *_: ()),
            return_final_kernel_results=results is not None,
            seed=seed,
        )

    return run


def draws(
    kernel: Any,
    state: Any,
    seed: Any,
    num_results: int,
    thinning: int = 1,
    num_burnin_steps: int | None = None,
) -> Any:
    """Returns the draws of one compiled call as arrays; see `compiled`."""
    run = compiled(kernel, num_results, thinning, num_burnin_steps)
    return tf.nest.map_structure(np.asarray, run(state, None, tf.constant(seed)).all_states)


def timed(
    run: Callable[..., Any],
    state: Any,
    results: Any,
    seed: int,
    num_burnin_calls: int,
    num_calls: int,
) -> tuple[np.ndarray, Any, float]:
    """Returns the draws, the traces and the seconds of consecutive calls of a compiled function."""
    blocks, begin = [], 0.0
    for i in range(num_burnin_calls + num_calls):
        if i == num_burnin_calls:
            blocks, begin = [], time.perf_counter()
        last = run(state, results, tf.constant([seed, i]))
        state, results = last.all_states[-1], last.final_kernel_results
        blocks.append(tf.nest.map_structure(np.asarray, (last.all_states, last.trace)))
    seconds = time.perf_counter() - begin
    states, traces = zip(*blocks, strict=True)
    return np.concatenate(states), traces, seconds


def effective_sizes(samples: np.ndarray, **options: Any) -> np.ndarray:
    """Returns the effective sample size of each coordinate; the first axis counts draws."""
    return tfp.mcmc.effective_sample_size(
        samples.astype(np.float64), filter_beyond_positive_pairs=True, **options
    ).numpy()
