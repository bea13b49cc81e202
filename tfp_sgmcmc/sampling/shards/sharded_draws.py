"""The draws of all shards as one array that reads only what is indexed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class ShardedDraws:
    """An array `[num_draws, chains, event...]` of which each shard holds some chains.

    Nothing is copied before it is indexed: `x[-1]`, `x[100:200]` and `x[:, 3]` read only the draws
    and the shards that they name. `np.asarray(x)` reads all draws.

    >>> x = ShardedDraws([np.zeros([5, 2, 3]), np.ones([5, 1, 3])])
    >>> x.shape, x[-1].shape, x[:2, 2].tolist()
    ((5, 3, 3), (3, 3), [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])

    Args:
      parts: arrays or `StoredDraws`, `[num_draws, chains of the shard, event...]`.
    """

    def __init__(self, parts: Sequence[Any]):
        self._parts = list(parts)
        self._edges = np.cumsum([0, *(part.shape[1] for part in parts)])
        first = self._parts[0]
        self.shape = (min(map(len, parts)), int(self._edges[-1]), *first.shape[2:])
        self.dtype, self.ndim = first.dtype, len(first.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"ShardedDraws(shape={self.shape}, dtype={np.dtype(self.dtype).name})"

    def verify(self) -> None:
        """Raises ValueError unless the files of all draws are those that the run wrote."""
        for part in self._parts:
            part.verify()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("copy must be True or None for draws of shards. Received: copy=False.")
        return np.asarray(self[:], dtype)

    def __getitem__(self, index: Any) -> Any:
        draws, *rest = index if isinstance(index, tuple) else (index,)
        if not isinstance(draws, int | np.integer | slice):
            return np.asarray(self)[index]
        draws = _within(draws, len(self))
        if rest and isinstance(rest[0], int | np.integer):
            chain = range(self.shape[1])[rest[0]]
            shard = int(np.searchsorted(self._edges, chain, side="right")) - 1
            return self._parts[shard][(draws, chain - int(self._edges[shard]), *rest[1:])]
        axis = 0 if isinstance(draws, int) else 1
        read = np.concatenate([np.asarray(part[draws]) for part in self._parts], axis=axis)
        return read[(slice(None),) * axis + tuple(rest)] if rest else read


def _within(index: Any, length: int) -> Any:
    """Returns an index of the first `length` draws, of which shards that run may hold more."""
    if isinstance(index, slice):
        chosen = range(length)[index]
        stop = chosen.stop if chosen.stop >= 0 else None
        return slice(chosen.start, stop, chosen.step)
    return range(length)[index]
