"""Samples in host memory, and which of a chain's states become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Thinning(NamedTuple):
    """Which steps' states are kept, counted as in `tfp.mcmc.sample_chain`."""

    num_burnin_steps: int
    num_steps_between_results: int

    def num_kept(self, num_steps: Any, maximum: Callable[[Any, int], Any] = max) -> Any:
        """Number of samples that the first `num_steps` steps leave."""
        between = self.num_steps_between_results
        return maximum(num_steps - self.num_burnin_steps + between, 0) // (between + 1)

    def step_of(self, sample: int) -> int:
        """The step that leaves sample number `sample`, both counted from 0."""
        return self.num_burnin_steps + sample * (self.num_steps_between_results + 1)


class Samples:
    """What a chain has left so far: a list of arrays `[num_samples, ...]` in `values`."""

    def __init__(self, thinning: Thinning):
        self._thinning = thinning
        self._num_steps = 0  # that the chain had taken at the last `take`
        self._chunks: list[list[np.ndarray]] = []

    def __len__(self) -> int:
        return sum(len(chunk[0]) for chunk in self._chunks)

    @property
    def values(self) -> list[np.ndarray]:
        if len(self._chunks) > 1:
            self._chunks = [[np.concatenate(parts) for parts in zip(*self._chunks, strict=True)]]
        return self._chunks[0] if self._chunks else []

    def are_due(self, num_steps: int) -> bool:
        """Whether `num_steps` steps since the last `take` leave a sample."""
        num_kept = self._thinning.num_kept
        return num_kept(self._num_steps + num_steps) > num_kept(self._num_steps)

    def take(self, buffers: list[tf.Variable], num_steps: int) -> int | None:
        """Copies what the chain's steps up to `num_steps` left in its ring buffers.

        Returns:
          The step that left the first sample with NaN or infinity, which ends the copy, or None.
        """
        first, last = map(self._thinning.num_kept, (self._num_steps, num_steps))
        self._num_steps = num_steps
        if first == last:
            return None
        rings = [buffer.numpy() for buffer in buffers]
        slots = np.arange(first, last) % len(rings[0])
        chunk = [ring[slots] for ring in rings]
        is_finite = [np.isfinite(x).reshape(len(x), -1).all(axis=1) for x in chunk]
        num_finite = int(np.logical_and.reduce(is_finite).cumprod().sum())
        if num_finite:
            self._chunks.append([x[:num_finite] for x in chunk])
        return None if num_finite == last - first else self._thinning.step_of(first + num_finite)
