"""Batches of arrays for `fit` that are drawn independently of one another."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.data.growing_batches import BatchSizes
from tfp_sgmcmc.keras.model.internals import map_arrays
from tfp_sgmcmc.targets.data import as_tensor, leading_axis


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
