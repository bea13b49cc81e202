"""Batches of arrays for `fit` that are drawn independently of one another, and their sizes."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.model.internals import map_arrays
from tfp_sgmcmc.targets.data import as_tensor, leading_axis

_MOST = 10_000_000  # sizes that are kept


class IndependentBatches(keras.utils.PyDataset):
    r"""Batches for `fit`, each drawn anew from all examples, as `MinibatchLogProb` draws them.

    With arrays, `fit` takes each example once an epoch, so the batches of an epoch depend on one
    another. Kernels that correct for the covariance of the gradient noise (`ModifiedSGLD`, `SGFS`,
    `SGHMC`, `CCAdL`, `NOGIN`) expect independent batches. These data give them. They work on any
    number of replicas (on several hosts in `WorkerBatches`) and with `steps_per_execution`; on a
    single device `SamplerCallback.resident` is faster.

    With `growth`, batches grow from a step of the chain to the next, until they hold all examples:
    early steps are cheap and noisy, late ones have the exact gradient. Each step's likelihood is
    scaled by N / B with its own B, as in `sgmcmc.GrowingBatch`. The model must be on one replica.
    With `jit_compile=True` its step is compiled once for each size.

    A batch has B different examples. The batch of step t of a chain depends on (seed, t) alone, so
    a run in a directory goes on with the same batches.

    Examples:
      >>> import numpy as np
      >>> x, y = np.arange(100.0), np.arange(100.0) > 50
      >>> data = IndependentBatches(x, y, batch_size=20, seed=0)
      >>> len(data), [a.shape for a in data[0]]
      (5, [(20,), (20,)])

      In `fit` they take the place of x:

      `model.fit(IndependentBatches(x, y, batch_size=500), epochs=10, callbacks=[sampler])`

    Args:
      x: inputs, a nest of arrays `[N, ...]`.
      y: targets, a nest of arrays `[N, ...]`.
      sample_weight: weights, a nest of arrays `[N, ...]`.
      batch_size: B, the number of examples of every batch; of the first one if batches grow.
      seed: one or two integers. None takes the seed of the `SamplerCallback`, or a fresh one if
        there is no such callback.
      steps_per_epoch: batches of an epoch. None takes floor(N / B), and is refused with `growth`.
      growth: the factor from the size of one step's batch to the next, at least 1 (a real number;
        sizes are rounded up). He & Xin use 1.1.

    Raises:
      ValueError: unequal leading axes, no data, or numbers out of range.
      TypeError: a leaf is not an array of numbers, or a number is of a wrong type.

    References:
      Q. He and J. Xin. Hybrid deterministic-stochastic gradient Langevin dynamics for Bayesian
      learning. Communications in Information and Systems, 2013. Equation 2.5: `growth`.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        seed: Any = None,
        steps_per_epoch: int | None = None,
        growth: float = 1.0,
    ):
        super().__init__()
        tensors, self.num_examples = training_arrays(x, y, sample_weight)
        arrays = map_arrays(lambda a: a.numpy(), tensors)
        self.arrays = keras.tree.lists_to_tuples(arrays)  # tf.data has no batches that are lists
        self.sizes = BatchSizes(batch_size, growth, self.num_examples, steps_per_epoch)
        self.batch_size = self.sizes.first
        if steps_per_epoch is None:
            steps_per_epoch = self.num_examples // self.batch_size
        self.steps_per_epoch = checks.integer("steps_per_epoch", steps_per_epoch, 1)
        self.has_seed = seed is not None
        words = random.as_seed(random.fresh_seed() if seed is None else seed)
        self._words, self._first_step = words.numpy().astype(np.uint32), 0
        self.was_read = False

    @property
    def seed(self) -> list[int]:
        """The seed in use, as two words."""
        return self._words.tolist()

    def begin_epoch(self, first_step: int, seed: Any) -> None:
        """Numbers the batches from a step of the chain on; `seed` takes the place of None."""
        self._first_step = first_step
        if not self.has_seed:
            self._words = np.asarray(seed).astype(np.uint32)

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        self.was_read = True
        x, y, sample_weight = self.at(self.rows(index))
        if sample_weight is not None:
            return x, y, sample_weight
        return (x,) if y is None else (x, y)

    def rows(self, index: int) -> np.ndarray:
        """Returns the numbers of the examples of a batch, `[B]`."""
        step = self._first_step + index
        generator, size = np.random.default_rng([*self._words, step]), self.sizes.at(step)
        return generator.choice(self.num_examples, size, replace=False, shuffle=False)

    def at(self, rows: np.ndarray) -> tuple[Any, Any, Any]:
        """Returns `(x, y, sample_weight)` of some examples."""
        return map_arrays(lambda a: a[rows], self.arrays)


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


def training_arrays(x: Any, y: Any, sample_weight: Any) -> tuple[tuple[Any, Any, Any], int]:
    """Returns `(x, y, sample_weight)` as nests of tensors `[N, ...]`, and N.

    Floating arrays get Keras' `floatx`. y and weights can be None, as a whole or at some places of
    their nests.

    Raises:
      TypeError: a leaf is not an array of numbers.
      ValueError: unequal leading axes, a nest without arrays, or weights that are not finite.
    """
    nests = []
    for name, nest in {"x": x, "y": y, "sample_weight": sample_weight}.items():
        if isinstance(nest, int | float):
            raise TypeError(
                f"{name} must be an array [N, ...], or a nest of such arrays. Received: the number "
                f"{nest}. Give batch_size by its name, as in batch_size={nest}."
            )
        has_arrays = any(a is not None for a in keras.tree.flatten(nest))
        if not has_arrays and (name == "x" or nest is not None):
            raise ValueError(
                f"{name} must be an array [N, ...], or a nest of such arrays. Received: {nest!r}."
            )
        nests.append(map_arrays(lambda a, n=name: as_tensor(a, keras.config.floatx(), n), nest))
    for weights in keras.tree.flatten(nests[2]):
        if weights is not None and not np.all(np.isfinite(tf.cast(weights, tf.float64))):
            raise ValueError("sample_weight must have finite entries. Received: NaN or infinity.")
    found = [a for a in keras.tree.flatten(nests) if a is not None]
    return tuple(nests), leading_axis(found)
