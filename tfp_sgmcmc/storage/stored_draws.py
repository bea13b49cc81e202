"""Draws on disk, as an array that reads only what is indexed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


class StoredDraws:
    """An array `[num_draws, chains..., event...]` on disk.

    An index such as `x[-1]`, `x[1000:2000]` or `x[::10, 0]` reads only the draws that it names, in
    pieces of bounded size. `np.asarray(x)` reads all draws.

    Args:
      array: zarr array `[chain, draw, event...]`, or `[draw, event...]` if chains share draws.
      chain_shape: the shape of the chains; None if there is no axis of chains.
      num_draws: number of draws that are shown.

    Raises:
      ValueError: when draws are read, if the checksum of a piece is wrong.
    """

    def __init__(self, array: Any, chain_shape: tuple[int, ...] | None, num_draws: int):
        self._array, self._chain_shape = array, chain_shape
        self._lead = () if chain_shape is None else (slice(None),)
        self.shape = (num_draws, *(chain_shape or ()), *array.shape[len(self._lead) + 1 :])
        self.dtype, self.ndim = array.dtype, len(self.shape)
        self._block = array.chunks[len(self._lead)]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"StoredDraws(shape={self.shape}, dtype={self.dtype.name})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("copy must be True or None for draws on disk. Received: copy=False.")
        result = np.empty(self.shape, dtype or self.dtype)
        for start in range(0, len(self), self._block):
            stop = min(start + self._block, len(self))
            result[start:stop] = self._rows(start, stop)
        return result

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self), self._block):
            yield from self._rows(start, min(start + self._block, len(self)))

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(first, int | np.integer):
            at = range(len(self))[first]
            return self._rows(at, at + 1)[(0, *rest)]
        if not isinstance(first, slice):
            return np.asarray(self)[index]
        asked = range(len(self))[first]
        upwards = asked if asked.step > 0 else asked[::-1]
        pieces = [self._rows(0, 0)[(slice(None), *rest)]]
        for edge in range(upwards.start - upwards.start % self._block, upwards.stop, self._block):
            start, stop = max(edge, upwards.start), min(edge + self._block, upwards.stop)
            start += (upwards.start - start) % upwards.step
            if start < stop:
                rows = self._rows(start, stop)[:: upwards.step]
                pieces.append(rows[(slice(None), *rest)])
        return np.concatenate(pieces)[:: 1 if asked.step > 0 else -1]

    def first(self, count: int) -> StoredDraws:
        """Returns the first `count` draws."""
        return StoredDraws(self._array, self._chain_shape, min(count, len(self)))

    def _rows(self, start: int, stop: int) -> np.ndarray:
        try:
            rows = self._array[(*self._lead, slice(start, stop))]
        except (ValueError, OSError) as error:
            raise ValueError(
                f"The draws {start} .. {stop - 1} of {self._array.store_path} cannot be read. The "
                f"file is damaged or missing ({error})."
            ) from error
        if self._lead:
            rows = np.moveaxis(rows, 0, 1)
        return rows.reshape(stop - start, *self.shape[1:])


def open_draws(
    store: Path, group: str, name: str, chain_shape: tuple[int, ...] | None
) -> StoredDraws:
    """Returns the draws of an array of a store that was finished."""
    import zarr

    array = zarr.open_array(store / group / name, mode="r")
    return StoredDraws(array, chain_shape, array.shape[0 if chain_shape is None else 1])
