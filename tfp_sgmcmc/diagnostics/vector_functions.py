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

_MOST_TERMS = 5_000_000  # N times the states that are evaluated at once
_FEW = 64  # states of a small block; more blocks take less time than another trace
_FEWER, _MOST_PADDED = 20, 500_000  # states of a block where 64 of them are more terms
_WORTH_COMPILING = 500_000  # N D; XLA takes longer to compile a smaller program than to run it


def log_prob_of_vectors(
    target: Target, like: State, jit_compile: bool = True
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function of flat unconstrained states, `[S, D]`, that gives log posteriors.

    It evaluates blocks of one size, so it is traced once. XLA compiles it for a large target, if
    it may.
    """
    jit_compile = jit_compile and _is_large(target, like)

    def of_states(theta: tf.Tensor) -> tf.Tensor:
        return target.log_prob_of_many(unflatten_events(theta, like, 0))

    name = f"log posterior of many, jit_compile={jit_compile}"
    evaluate = kept_program(target, name, like, lambda: traced(of_states, jit_compile))
    size = block_size(target)
    return lambda x: _in_blocks(lambda block: [evaluate(block)], x, like, size)[0]


def value_and_gradient_of_vectors(
    target: Target, like: State, jit_compile: bool = True, in_blocks: bool = True
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns the function of flat unconstrained states, `[S, D]`, that gives `[S]` and `[S, D]`.

    These are log posteriors and their gradients. `in_blocks` evaluates blocks of one size;
    otherwise those of a small target are smaller, and a large target has a trace for each S. XLA
    compiles it for a large target, if it may.
    """
    is_large = _is_large(target, like)
    jit_compile = jit_compile and is_large

    def of_states(theta: tf.Tensor) -> Any:
        return tfp.math.value_and_gradient(
            lambda theta: call_with_state(target, unflatten_events(theta, like, 0)), theta
        )

    name = f"value and gradient of many, jit_compile={jit_compile}"
    evaluate = kept_program(target, name, like, lambda: traced(of_states, jit_compile))
    few = _FEW if _FEW * target.num_examples <= _MOST_PADDED else _FEWER
    dtype, size = tf.nest.flatten(like)[0].dtype, block_size(target) if in_blocks else few

    def value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if in_blocks or not is_large:
            value, gradient = _in_blocks(evaluate, x, like, size)
        else:
            value, gradient = (y.numpy() for y in evaluate(tf.constant(x, dtype)))
        return value.astype(np.float64), gradient.astype(np.float64)

    return value_and_gradient


def _is_large(target: Target, like: State) -> bool:
    return target.num_examples * flatten_events(like, 0).shape[0] > _WORTH_COMPILING


def block_size(target: Target) -> int:
    """Returns how many states are evaluated at once: 1,000 of small targets, else 100."""
    return 1000 if 1000 * target.num_examples <= _MOST_TERMS else 100


def _in_blocks(
    evaluate: Callable[[tf.Tensor], Any], x: np.ndarray, like: State, size: int
) -> list[Any]:
    """Returns the results of `evaluate` at blocks of `size` rows of x, put together."""
    dtype, dim = tf.nest.flatten(like)[0].dtype, flatten_events(like, 0).shape[0]
    num_blocks = -(-len(x) // size)
    padded = np.zeros([num_blocks * size, dim])
    padded[: len(x)] = x
    found = [evaluate(tf.constant(block, dtype)) for block in np.split(padded, num_blocks)]
    return [np.concatenate([y.numpy() for y in ys])[: len(x)] for ys in zip(*found, strict=True)]
