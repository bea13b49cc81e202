"""Chains in whitened coordinates, run and timed before the draws that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.sampling.loop import Loop, Position, start_of

_TIMED_SECONDS = 0.1


class Chains:
    """A compiled chain whose step size is given when it runs.

    Args:
      kernel_fn: step size -> kernel.
      step_size: the step size to begin with.
      start: z of all chains, `[chains, D]`.
      seed: the seed of all steps.
      jit_compile: whether XLA compiles the steps.
    """

    def __init__(
        self,
        kernel_fn: Callable[[Any], Any],
        step_size: float,
        start: tf.Tensor,
        seed: tf.Tensor,
        jit_compile: bool,
    ):
        self._kernel_fn, self._seed = kernel_fn, seed
        self.position = start_of(kernel_fn(step_size), start)
        self._loop = Loop(kernel_fn, None, self.position, jit_compile)
        self.step_size = tf.constant(step_size, start.dtype)

    def restart(self, step_size: float, start: tf.Tensor, seed: tf.Tensor) -> None:
        """Puts all chains back to a start, with another step size and seed."""
        self._seed = seed
        self.position = start_of(self._kernel_fn(step_size), start)
        self.step_size = tf.constant(step_size, start.dtype)

    def seconds_per_step(self) -> float:
        """Returns the time of a step of all chains. The chains stay where they are."""
        steps, best = 4, np.inf
        self._advance(self.position, 1, 1)  # compiles
        while True:
            began = time.perf_counter()
            self._advance(self.position, 1, steps)
            taken = time.perf_counter() - began
            best = min(best, taken / steps) if steps > 4 else np.inf
            if taken > _TIMED_SECONDS:
                return min(best, taken / steps)
            steps = int(steps * min(8.0, 1.5 * _TIMED_SECONDS / taken + 1))

    def burn_in(self, steps: int) -> bool:
        """Takes steps; returns whether the chains are finite."""
        self.position, _, good = self._advance(self.position, 1, steps)
        return good

    def draw(self, num_draws: int, stride: int) -> np.ndarray | None:
        """Returns draws `[num_draws, chains, D]`, or None if a chain broke down."""
        parts = []
        while num_draws > 0:
            rows = min(num_draws, self._loop.slots)
            self.position, kept, good = self._advance(self.position, rows, stride)
            if not good:
                return None
            parts.append(kept[:rows])
            num_draws -= rows
        return np.concatenate(parts)

    def _advance(self, position: Position, rows: int, stride: int) -> tuple[Any, np.ndarray, bool]:
        step = tf.constant(stride, tf.int64)
        position, kept, health = self._loop(
            position, rows, stride, step, self._seed, self.step_size
        )
        return position, kept[0].numpy(), health.is_good


def gradients_at(target: Any, z: np.ndarray, seed: tf.Tensor) -> np.ndarray:
    """Returns estimates of the gradient at draws `[results, chains, D]`, one result at a time.

    Each has a fresh minibatch, so that products with the draws have no bias.
    """

    @tf.function(autograph=False, jit_compile=True)
    def at(states: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        numbers = tf.range(states.shape[0])
        return tf.map_fn(
            lambda pair: (
                target.estimate(pair[0], random.fold_in(seed, pair[1]), with_scores=False).gradient
            ),
            (states, numbers),
            fn_output_signature=tf.TensorSpec(states.shape[1:], states.dtype),
        )

    states = tf.constant(z)
    # Not called as a function, which would warn of many traces after some pilots.
    return at.get_concrete_function(states, seed)(states, seed).numpy()
