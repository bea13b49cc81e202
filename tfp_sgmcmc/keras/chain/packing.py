"""Many small tensors packed into few variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_SMALL = 4096  # entries; copying a smaller tensor costs less than another variable


class Part(NamedTuple):
    """One of the tensors that others are packed into.

    Attributes:
      members: numbers of the tensors packed into it; a large tensor has a part to itself.
      shape: `[number of entries]`, or the shape of the large tensor.
      dtype: the dtype of all members.
    """

    members: list[int]
    shape: tuple[int, ...]
    dtype: tf.DType


class Packing:
    """Packs tensors of the shapes and dtypes of `like` (tensors or specifications) into fewer.

    Each variable that a compiled step reads and writes costs some 17 microseconds on a CPU, however
    small it is. So small tensors of one dtype are laid end to end. Large ones stay as they are.

    >>> tensors = [tf.zeros([2, 3]), tf.zeros([], tf.int64), tf.ones([])]
    >>> [part.shape for part in Packing(tensors).parts]
    [(7,), (1,)]
    """

    def __init__(self, like: Sequence[tf.Tensor]):
        self._shapes = [tuple(x.shape) for x in like]
        self._sizes = [math.prod(shape) for shape in self._shapes]
        rows: dict[tf.DType, list[int]] = {}
        self.parts = []
        for i, (x, size) in enumerate(zip(like, self._sizes, strict=True)):
            if size > _SMALL:
                self.parts.append(Part([i], self._shapes[i], x.dtype))
            else:
                rows.setdefault(x.dtype, []).append(i)
        for dtype, members in rows.items():
            self.parts.append(Part(members, (sum(self._sizes[i] for i in members),), dtype))

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors laid out as `parts`."""
        return [
            tensors[part.members[0]]
            if self._is_large(part)
            else tf.concat([tf.reshape(tensors[i], [-1]) for i in part.members], axis=0)
            for part in self.parts
        ]

    def unpack(self, packed: Sequence[Any], lead: tuple[int, ...] = ()) -> list[Any]:
        """Returns the tensors or arrays that were packed into parts `[*lead, ...]`."""
        found: dict[int, Any] = {}
        for part, row in zip(self.parts, packed, strict=True):
            if self._is_large(part):
                found[part.members[0]] = row
                continue
            reshape = np.reshape if isinstance(row, np.ndarray) else tf.reshape
            start = 0
            for i in part.members:
                piece = row[..., start : start + self._sizes[i]]
                found[i] = reshape(piece, [*lead, *self._shapes[i]])
                start += self._sizes[i]
        return [found[i] for i in range(len(found))]

    def _is_large(self, part: Part) -> bool:
        return self._sizes[part.members[0]] > _SMALL


class PackedVariables:
    """Variables that hold a nest of tensors of known shapes."""

    def __init__(self, nest: Any):
        leaves = [tf.convert_to_tensor(x) for x in tf.nest.flatten(nest)]
        # The structure alone: the tensors would stay in memory beside the variables.
        self._like = tf.nest.map_structure(lambda x: 0, nest)
        self._packing = Packing(leaves)
        self._variables = [tf.Variable(x, trainable=False) for x in self._packing.pack(leaves)]

    def read(self) -> Any:
        return self._nest([v.read_value() for v in self._variables])

    def numpy(self) -> Any:
        return self._nest([v.numpy() for v in self._variables])

    def assign(self, nest: Any) -> None:
        leaves = [tf.convert_to_tensor(x) for x in tf.nest.flatten(nest)]
        for variable, value in zip(self._variables, self._packing.pack(leaves), strict=True):
            variable.assign(value)

    def _nest(self, packed: Sequence[Any]) -> Any:
        return tf.nest.pack_sequence_as(self._like, self._packing.unpack(packed))
