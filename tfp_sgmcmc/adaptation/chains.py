"""Chains in whitened coordinates, run and timed before the draws that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.sampling.loop import Loop, Position, start_of

_TIMED_SECONDS = 0.02  # short, so that other work on the machine misses one of five
_ROWS = 50  # of draws at which gradients are taken at a time


class Chains:
    """A compiled chain whose settings are given when it runs.

    Args:
      kernel_fn: settings -> kernel.
      settings: a nest of tensors, such as the step size, to begin with.
      start: z of all chains, `[chains, D]`.
      seed: the seed of all steps.
      jit_compile: whether XLA compiles the steps.
    """

    def __init__(
        self,
        kernel_fn: Callable[[Any], Any],
        settings: Any,
        start: tf.Tensor,
        seed: tf.Tensor,
        jit_compile: bool,
    ):
        self._kernel_fn, self._dtype = kernel_fn, start.dtype
        self.restart(settings, start, seed)
        self._loop = Loop(kernel_fn, None, self.position, jit_compile)

    def restart(self, settings: Any, start: tf.Tensor, seed: tf.Tensor) -> None:
        """Puts all chains back to a start, with other settings and another seed."""
        self._seed = seed
        self.settings = tf.nest.map_structure(lambda x: tf.constant(x, self._dtype), settings)
        self.position = start_of(self._kernel_fn(self.settings), start)

    def seconds_per_step(self) -> float:
        """Returns the time of a step of all chains. The chains stay where they are.

        It is the time that more steps take in one call, as a call takes milliseconds by itself.
        """
        self._advance(self.position, 1, 1)  # compiles
        one, steps, more = self._least(1), 1, 0.0
        if one > 10 * _TIMED_SECONDS:
            return one
        while more < _TIMED_SECONDS:
            steps *= 4
            more = self._least(steps) - one
        return more / (steps - 1)

    def _least(self, steps: int) -> float:
        """Returns the seconds of a call of some steps, the least of five, or of two slow ones."""
        times: list[float] = []
        while len(times) < 2 or (len(times) < 5 and sum(times) < 50 * _TIMED_SECONDS):
            began = time.perf_counter()
            self._advance(self.position, 1, steps)
            times.append(time.perf_counter() - began)
        return min(times)

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
        position, kept, health = self._loop(position, rows, stride, step, self._seed, self.settings)
        return position, kept[0].numpy(), health.is_good


class Gradients:
    """Estimates gradients at draws, in blocks of one shape, so that it is compiled once.

    Args:
      target: the target of z.
      jit_compile: whether XLA compiles it.
    """

    def __init__(self, target: Any, jit_compile: bool):
        def at(states: tf.Tensor, seed: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
            def one(pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
                fresh = random.fold_in(seed, pair[1])
                return target.estimate(pair[0], fresh, with_scores=False).gradient

            return tf.map_fn(
                one,
                (states, first + tf.range(_ROWS)),
                fn_output_signature=tf.TensorSpec(states.shape[1:], states.dtype),
            )

        self._at = traced(at, jit_compile)

    def __call__(self, z: np.ndarray, seed: tf.Tensor) -> np.ndarray:
        """Returns gradients at draws `[results, chains, D]`.

        Each result has a fresh minibatch, so that products with the draws have no bias.
        """
        found = []
        for first in range(0, len(z), _ROWS):
            block = z[first : first + _ROWS]
            block = np.pad(block, [(0, _ROWS - len(block)), (0, 0), (0, 0)], mode="edge")
            found.append(self._at(tf.constant(block), seed, tf.constant(first)).numpy())
        return np.concatenate(found)[: len(z)]
