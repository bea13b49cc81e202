"""Log posteriors and their gradients at many flat states, by one compiled program for a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.nest import State, call_with_state, flatten_events, unflatten_events
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import Target, kept_program

BLOCK_SIZE = 100  # states that are evaluated at once


def log_prob_of_vectors(
    target: Target, like: State, jit_compile: bool = False
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function of flat unconstrained states, `[S, D]`, that gives log posteriors.

    It evaluates blocks of 100 states, so it is traced once. For a small target XLA takes longer to
    compile it than the calls of a fit.
    """

    def of_states(theta: tf.Tensor) -> tf.Tensor:
        return target.log_prob_of_many(unflatten_events(theta, like, 0))

    name = f"log posterior of many, jit_compile={jit_compile}"
    evaluate = kept_program(target, name, like, lambda: traced(of_states, jit_compile))
    return lambda x: _in_blocks(lambda block: [evaluate(block)], x, like)[0]


def value_and_gradient_of_vectors(
    target: Target, like: State, jit_compile: bool = False, in_blocks: bool = True
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns the function of flat unconstrained states, `[S, D]`, that gives `[S]` and `[S, D]`.

    These are log posteriors and their gradients. `in_blocks` evaluates blocks of 100 states;
    otherwise there is a trace for each S.
    """

    def of_states(theta: tf.Tensor) -> Any:
        return tfp.math.value_and_gradient(
            lambda theta: call_with_state(target, unflatten_events(theta, like, 0)), theta
        )

    name = f"value and gradient of many, jit_compile={jit_compile}"
    evaluate = kept_program(target, name, like, lambda: traced(of_states, jit_compile))
    dtype = tf.nest.flatten(like)[0].dtype

    def value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if in_blocks:
            value, gradient = _in_blocks(evaluate, x, like)
        else:
            value, gradient = (y.numpy() for y in evaluate(tf.constant(x, dtype)))
        return value.astype(np.float64), gradient.astype(np.float64)

    return value_and_gradient


def _in_blocks(evaluate: Callable[[tf.Tensor], Any], x: np.ndarray, like: State) -> list[Any]:
    """Returns the results of `evaluate` at blocks of the rows of x, put together."""
    dtype, dim = tf.nest.flatten(like)[0].dtype, flatten_events(like, 0).shape[0]
    num_blocks = -(-len(x) // BLOCK_SIZE)
    padded = np.zeros([num_blocks * BLOCK_SIZE, dim])
    padded[: len(x)] = x
    found = [evaluate(tf.constant(block, dtype)) for block in np.split(padded, num_blocks)]
    return [np.concatenate([y.numpy() for y in ys])[: len(x)] for ys in zip(*found, strict=True)]
