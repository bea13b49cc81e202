"""Sums over all examples, taken in chunks so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, append_dims
from tfp_sgmcmc.targets.base import value_and_gradient


def sum_over_chunks(
    fn: Callable[[State, Any, int], tf.Tensor],
    state: State,
    num_examples: int,
    size: int,
    probe: State = None,
) -> tuple[tf.Tensor, State, State]:
    """Returns a sum over all examples, its gradient, and its Hessian times `probe`, in one pass.

    `fn(state, start, size)` returns the sum over `size` examples from `start` on, `[chains...]`.
    Chunks have `size` examples; the first one may have fewer. Without a probe the product is `()`.
    """
    first = num_examples % size or size

    def chunk(start: Any, size: int) -> tuple[tf.Tensor, State, State]:
        return value_and_gradient(lambda s: fn(s, start, size), state, probe, connected=False)

    def body(start: tf.Tensor, total: Any) -> tuple[tf.Tensor, Any]:
        return start + size, tf.nest.map_structure(tf.add, total, chunk(start, size))

    _, total = tf.while_loop(
        lambda start, _: start < num_examples,
        body,
        (tf.constant(first), chunk(0, first)),
        parallel_iterations=1,
    )
    return total


def with_given_gradient(fn: Callable[[State], tuple[tf.Tensor, State]], state: State) -> tf.Tensor:
    """Returns the value of `fn(state)`, which returns a value `[chains...]` and its gradient.

    Tapes of the caller see that gradient, and raise NotImplementedError for a second derivative.
    """

    @tf.custom_gradient
    def value(*leaves: tf.Tensor) -> Any:
        # Hidden from the caller's tape, which would otherwise keep every chunk in eager mode.
        hidden = [tf.stop_gradient(x) for x in leaves]
        result, gradient = fn(tf.nest.pack_sequence_as(state, hidden))

        def vjp(upstream: tf.Tensor) -> list[tf.Tensor]:
            pairs = zip(tf.nest.flatten(gradient), leaves, strict=True)
            return [append_dims(upstream, g) * _of_first_order(g, x) for g, x in pairs]

        return result, vjp

    return value(*tf.nest.flatten(state))


@tf.custom_gradient
def _of_first_order(gradient: tf.Tensor, leaf: tf.Tensor) -> Any:
    """Returns `gradient`, taken with respect to `leaf`. Its derivative raises, and is not zero."""

    def second_order(_: tf.Tensor) -> Any:
        raise NotImplementedError(
            "A log posterior that is evaluated in chunks has first derivatives only. A "
            "MinibatchLogProb with chunk_size=num_examples evaluates all examples at once, with "
            "derivatives of every order."
        )

    del leaf
    return tf.identity(gradient), second_order
