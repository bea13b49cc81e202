"""Small tensors side by side in larger ones, because each tensor of a compiled step costs time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import flatten_events, unflatten_events

SMALL = 4096  # entries: copying a smaller tensor costs less than one more variable


class Part(NamedTuple):
    """A tensor that holds several packed tensors.

    Attributes:
      members: indices of the tensors packed into it; a large tensor has a part to itself.
      shape: `[number of entries]`, or the shape of the large tensor.
      dtype: the dtype of all members.
    """

    members: list[int]
    shape: tuple[int, ...]
    dtype: tf.DType


class Packing:
    """Packs tensors with the shapes and dtypes of `like` (tensors or specifications) into fewer.

    Each variable that a compiled step reads and writes costs about 17 microseconds on a CPU,
    whatever its size, and XLA compiles an operation of its own for each tensor. So small tensors of
    one dtype are concatenated. Large ones stay separate. The first `lead_ndims` axes, which all
    tensors share, stay in front.

    >>> tensors = [tf.zeros([2, 3]), tf.zeros([], tf.int64), tf.ones([])]
    >>> [part.shape for part in Packing(tensors).parts]
    [(7,), (1,)]
    >>> chains = [tf.zeros([4, 3]), tf.zeros([4, 2, 2])]
    >>> [x.shape for x in Packing(chains, lead_ndims=1).pack(chains)]
    [TensorShape([4, 7])]

    Args:
      like: the tensors, or their specifications.
      lead_ndims: number of leading axes, which the shapes of `parts` leave out.
      small: the most entries of a tensor that is packed, without leading axes.
      fewest: the least number of small tensors of one dtype that are packed.
    """

    def __init__(
        self, like: Sequence[Any], lead_ndims: int = 0, small: int = SMALL, fewest: int = 1
    ):
        self._shapes = [tuple(x.shape[lead_ndims:]) for x in like]
        self._sizes = [x.shape[lead_ndims:].num_elements() for x in like]
        groups: dict[tf.DType, list[int]] = {}
        for i, (x, size) in enumerate(zip(like, self._sizes, strict=True)):
            if size is not None and size <= small:
                groups.setdefault(x.dtype, []).append(i)
        packed = {dtype: group for dtype, group in groups.items() if len(group) >= fewest}
        alone = sorted(set(range(len(like))).difference(*packed.values()))
        self._num_alone, self._lead_ndims = len(alone), lead_ndims
        self.parts = [Part([i], self._shapes[i], like[i].dtype) for i in alone]
        for dtype, members in packed.items():
            self.parts.append(Part(members, (sum(self._sizes[i] for i in members),), dtype))

    @property
    def joins(self) -> bool:
        """Whether tensors are packed together."""
        return len(self.parts) < len(self._sizes)

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors laid out as `parts`, behind their leading axes."""
        return self._laid_out(tensors, self._lead_ndims)

    def pack_settings(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns values that broadcast with the tensors, laid out to broadcast with `parts`."""
        together = [i for part in self.parts[self._num_alone :] for i in part.members]
        ranks = {i: len(self._shapes[i]) for i in together}
        leads = [values[i].shape[: max(0, values[i].shape.rank - ranks[i])] for i in together]
        lead = functools.reduce(tf.broadcast_static_shape, leads, tf.TensorShape([]))
        full = dict(enumerate(values))
        full |= {i: tf.broadcast_to(values[i], lead + self._shapes[i]) for i in together}
        return self._laid_out(full, lead.rank)

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """Returns the tensors or arrays that were packed, behind any leading axes."""
        found: dict[int, Any] = {}
        for place, (part, row) in enumerate(zip(self.parts, packed, strict=True)):
            if place < self._num_alone:
                found[part.members[0]] = row
                continue
            shapes = [self._shapes[i] for i in part.members]
            if isinstance(row, np.ndarray):  # which stays one
                ends = np.cumsum([self._sizes[i] for i in part.members])
                pieces = np.split(row, ends[:-1], axis=-1)
                pairs = zip(pieces, shapes, strict=True)
                pieces = [x.reshape([*row.shape[:-1], *shape]) for x, shape in pairs]
            else:
                like = [tf.TensorSpec(shape, part.dtype) for shape in shapes]
                pieces = unflatten_events(row, like, 0)
            found |= dict(zip(part.members, pieces, strict=True))
        return [found[i] for i in range(len(found))]

    def means(self, packed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns parts in which each entry is the mean over the tensor that it belongs to."""
        found = []
        for part, x in zip(self.parts, packed, strict=True):
            if len(part.members) == 1:
                mean = tf.reduce_mean(x, [*range(self._lead_ndims, x.shape.rank)], keepdims=True)
                found.append(tf.broadcast_to(mean, tf.shape(x)))
                continue
            sizes = np.array([self._sizes[i] for i in part.members])
            tensor = np.repeat(np.arange(len(sizes)), sizes)
            by_entry = tf.reshape(tf.transpose(x), [len(tensor), -1])
            sums = tf.math.unsorted_segment_sum(by_entry, tensor, len(sizes))
            means = tf.transpose(sums / tf.cast(sizes[:, np.newaxis], x.dtype))
            found.append(tf.reshape(tf.gather(means, tensor, axis=-1), tf.shape(x)))
        return found

    def _laid_out(self, tensors: Any, lead_ndims: int) -> list[tf.Tensor]:
        alone, together = self.parts[: self._num_alone], self.parts[self._num_alone :]
        return [
            *(tensors[part.members[0]] for part in alone),
            *(flatten_events([tensors[i] for i in part.members], lead_ndims) for part in together),
        ]
