"""Where a run keeps its draws: in memory, or in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfp_sgmcmc.sampling.result import Kept
from tfp_sgmcmc.storage.directory import RunDirectory


class MemoryRecords:
    """Draws in arrays that are made once, for all of them."""

    num_draws = 0

    def __init__(self, kept: Sequence[Kept], num_results: int):
        self._arrays = [
            np.empty([num_results, *k.variable.shape], _numpy_dtype(k.variable.dtype)) for k in kept
        ]

    def append(self, rows: Sequence[np.ndarray]) -> None:
        stop = self.num_draws + len(rows[0])
        for array, new in zip(self._arrays, rows, strict=True):
            array[self.num_draws : stop] = new
        self.num_draws = stop

    def commit(self, nests: dict[str, Any], finish: bool = False) -> None:
        """There is nothing to make safe."""

    def draws(self, count: int) -> list[Any]:
        """The first `count` draws of each array."""
        return [array[:count] for array in self._arrays]


class DirectoryRecords:
    """Draws in a run's directory."""

    def __init__(self, kept: Sequence[Kept], run: RunDirectory):
        self._kept, self._run = kept, run

    @property
    def num_draws(self) -> int:
        return self._run.num_draws

    def append(self, rows: Sequence[np.ndarray]) -> None:
        groups: dict[str, dict[str, np.ndarray]] = {}
        for k, x in zip(self._kept, rows, strict=True):
            groups.setdefault(k.group, {})[k.name] = x
        self._run.append(groups)

    def commit(self, nests: dict[str, Any], finish: bool = False) -> None:
        self._run.commit(nests, finish)

    def draws(self, count: int) -> list[Any]:
        return [self._run.draws(k.group, k.name).first(count) for k in self._kept]


def _numpy_dtype(name: str) -> Any:
    import tensorflow as tf  # knows bfloat16

    return tf.as_dtype(name).as_numpy_dtype
