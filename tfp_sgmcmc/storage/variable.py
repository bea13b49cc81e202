"""Shape and dtype of an array of draws on disk."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Variable(NamedTuple):
    """Shape and dtype of one draw of an array.

    Attributes:
      shape: `[chains..., event...]`.
      dtype: NumPy's name of the dtype.
      chain_ndims: number of leading axes of `shape` that count chains; None if chains share draws.
    """

    shape: tuple[int, ...]
    dtype: str
    chain_ndims: int | None = 0

    @property
    def chain_shape(self) -> tuple[int, ...] | None:
        return None if self.chain_ndims is None else self.shape[: self.chain_ndims]

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.shape[self.chain_ndims or 0 :]

    @property
    def stored_dtype(self) -> np.dtype:
        """The dtype on disk: `float32` for dtypes that zarr does not know, such as `bfloat16`."""
        is_known = self.dtype in np.sctypeDict and np.dtype(self.dtype).kind != "V"
        return np.dtype(self.dtype if is_known else np.float32)

    @property
    def draw_bytes(self) -> int:
        """The bytes of a draw on disk."""
        return self.stored_dtype.itemsize * math.prod(self.shape)
