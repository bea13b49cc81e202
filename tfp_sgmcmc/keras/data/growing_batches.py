"""The sizes of batches that grow in the course of a chain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks

_MOST = 10_000_000  # sizes that are kept


class BatchSizes:
    r"""The number of rows of the batch of each step of a chain, as `GrowingBatch` has them.

    \[
    n_1 = \text{batch\_size}, \qquad n_k = \min(\text{growth} \cdot n_{k-1}, N), \qquad
    B_k = \lceil n_k \rceil
    \]

    Attributes:
      growth: the factor from one step to the next.
      distinct: the different numbers of rows, in increasing order.

    Args:
      batch_size: the first number of rows.
      growth: the factor, at least 1.
      num_examples: N.
      steps_per_epoch: as the data were given it; None is refused if batches grow.

    Raises:
      ValueError: a number is out of range, or no `steps_per_epoch` for batches that grow.
      TypeError: a number is of a wrong type.
    """

    def __init__(
        self, batch_size: Any, growth: Any, num_examples: int, steps_per_epoch: int | None
    ):
        first = checks.count_of_examples("batch_size", batch_size, num_examples)
        self.growth = checks.number("growth", growth, "a factor of at least 1", lambda x: x >= 1)
        num_grown = 0.0
        if self.growth > 1:
            num_grown = math.ceil(math.log(num_examples / first) / math.log(self.growth)) + 1
        if num_grown > _MOST:
            raise ValueError(
                f"growth must be 1, or reach all {num_examples} examples within {_MOST} steps. "
                f"Received: {growth}, which takes {num_grown} steps."
            )
        if self.growth > 1 and steps_per_epoch is None:
            raise ValueError(
                "steps_per_epoch must be given with growth, because growing batches do not add up "
                f"to one pass over the data. Received: steps_per_epoch=None with growth={growth}."
            )
        factors = np.full([int(num_grown) + 1], min(self.growth, num_examples))
        factors[0] = first
        # Cumulative products round as `GrowingBatch` does.
        sizes = np.minimum(np.multiply.accumulate(factors), num_examples)
        self._sizes = np.ceil(sizes).astype(np.int32)
        self.distinct = np.unique(self._sizes)

    @property
    def first(self) -> int:
        """The number of rows of the first batch."""
        return int(self._sizes[0])

    @property
    def is_constant(self) -> bool:
        return len(self.distinct) == 1

    def at(self, step: int) -> int:
        """Returns the number of rows at a step of the chain, counted from 0."""
        return int(self._sizes[min(step, len(self._sizes) - 1)])

    def tensor_at(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the number of rows at a step, an `int64` tensor, as an `int32` tensor."""
        return tf.gather(self._sizes, tf.minimum(step, len(self._sizes) - 1))
