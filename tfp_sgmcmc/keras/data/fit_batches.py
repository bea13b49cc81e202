"""Batches of arrays for `fit`: drawn independently, kept on the device, or shared by workers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.targets.data import as_tensor, leading_axis

_MOST = 10_000_000  # sizes that are kept

_NAME = "num_resident_steps"  # the name of the only array of x that comes through Keras begins so


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
        arrays = internals.map_arrays(lambda a: a.numpy(), tensors)
        self.arrays = keras.tree.lists_to_tuples(arrays)  # tf.data has no batches that are lists
        self.sizes = BatchSizes(batch_size, growth, self.num_examples, steps_per_epoch)
        self.batch_size, self.steps_per_epoch = self.sizes.first, self.sizes.steps_per_epoch
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
        rows = self.rows(index)
        return packed(
            *internals.map_arrays(lambda a: internals.text_as_tensor(a[rows]), self.arrays)
        )

    def rows(self, index: int) -> np.ndarray:
        """Returns the numbers of the examples of a batch, `[B]`."""
        step = self._first_step + index
        generator, size = np.random.default_rng([*self._words, step]), self.sizes.at(step)
        return generator.choice(self.num_examples, size, replace=False, shuffle=False)


def packed(x: Any, y: Any, sample_weight: Any) -> tuple[Any, ...]:
    """Returns a batch as `fit` takes it, without what is None at its end."""
    if sample_weight is not None:
        return x, y, sample_weight
    return (x,) if y is None else (x, y)


class BatchSizes:
    r"""The number of rows of the batch of each step of a chain, as `GrowingBatch` has them.

    \[
    n_1 = \text{batch\_size}, \qquad n_k = \min(\text{growth} \cdot n_{k-1}, N), \qquad
    B_k = \lceil n_k \rceil
    \]

    Attributes:
      growth: the factor from one step to the next.
      distinct: the different numbers of rows, in increasing order.
      steps_per_epoch: the number of batches of an epoch.

    Args:
      batch_size: the first number of rows.
      growth: the factor, at least 1.
      num_examples: N.
      steps_per_epoch: as the data were given it; None is one pass, and is refused if batches grow.

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
        steps = num_examples // self.first if steps_per_epoch is None else steps_per_epoch
        self.steps_per_epoch = checks.integer("steps_per_epoch", steps, 1)

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
    their nests. Inputs may be strings.

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
        if not internals.array_leaves(nest) and (name == "x" or nest is not None):
            raise ValueError(
                f"{name} must be an array [N, ...], or a nest of such arrays. Received: {nest!r}."
            )
        as_leaf = functools.partial(
            as_tensor, dtype=keras.config.floatx(), name=name, text=name == "x"
        )
        nests.append(internals.map_arrays(as_leaf, nest))
    for weights in internals.array_leaves(nests[2]):
        if not np.all(np.isfinite(tf.cast(weights, tf.float64))):
            raise ValueError("sample_weight must have finite entries. Received: NaN or infinity.")
    return tuple(nests), leading_axis(internals.array_leaves(nests))


class ResidentData(keras.utils.PyDataset):
    r"""Batches that are drawn on the device, inside the compiled step; goes to `fit` as x.

    What passes through Keras are numbers of steps: one compiled call takes `steps_per_call` steps.
    `SamplerCallback.resident` makes these data.

    With `reshuffle="step"`, step t of the chain takes the first B examples of a permutation of its
    own. With `"epoch"` it takes the examples at positions tB, ..., tB + B - 1 of one permutation of
    all N after the other, and with `"symmetric"` each permutation is taken forward and then
    backward. All depend on (seed, t) alone, so interruptions do not change them.

    Attributes:
      arrays: `(x, y, sample_weight)` on the device.
      sizes: the number of rows of each step's batch.
      was_read: whether Keras has asked for a batch; a fit resets it when it ends.

    Args:
      arrays: `(x, y, sample_weight)`, each a nest of arrays `[N, ...]` or None.
      batch_size, reshuffle, steps_per_call, steps_per_epoch, growth: see
        `SamplerCallback.resident`.
      seed: names the order of the examples.
      num_examples: N as the callback was given it, or None.

    Raises:
      ValueError: unequal leading axes, no data, or numbers out of range.
      TypeError: a leaf is not an array of numbers.
    """

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        reshuffle: str,
        steps_per_call: int,
        steps_per_epoch: int | None,
        seed: tf.Tensor,
        num_examples: int | None = None,
        growth: float = 1.0,
    ):
        super().__init__()
        _check_alone()
        self.arrays, self.num_examples = training_arrays(*arrays)
        if num_examples not in (None, self.num_examples):
            raise ValueError(
                f"x must have num_examples = {num_examples} rows. Received: {self.num_examples}."
            )
        self.sizes = BatchSizes(batch_size, growth, self.num_examples, steps_per_epoch)
        self.batch_size, self.steps_per_epoch = self.sizes.first, self.sizes.steps_per_epoch
        self.reshuffle = checks.one_of("reshuffle", reshuffle, ("step", "epoch", "symmetric"))
        if reshuffle != "step" and not self.sizes.is_constant:
            raise ValueError(
                "reshuffle must be 'step' with growth, because a growing batch is drawn anew at "
                f"each step. Received: reshuffle={reshuffle!r}."
            )
        steps_per_call = checks.integer("steps_per_call", steps_per_call, 1)
        self.steps_per_call = min(steps_per_call, self.steps_per_epoch)
        self._seed, self.was_read = seed, False

    def __len__(self) -> int:
        """Returns the number of calls of an epoch."""
        return -(-self.steps_per_epoch // self.steps_per_call)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        self.was_read = True
        left = self.steps_per_epoch - index * self.steps_per_call
        num_steps = np.array([min(left, self.steps_per_call)], np.int64)
        return {self.name: num_steps}, np.zeros([1], np.int64)  # y, which Keras may weigh

    @property
    def name(self) -> str:
        """The name of the array of steps; a unique name gives each data set its own trace."""
        return f"{_NAME}_{id(self)}"

    @property
    def batch_spec(self) -> tuple[Any, Any, Any]:
        """The specification of what `batch` returns."""
        size = self.batch_size if self.sizes.is_constant else None
        return internals.map_arrays(
            lambda a: tf.TensorSpec([size, *a.shape[1:]], a.dtype), self.arrays
        )

    def num_steps(self, batch: tuple[Any, Any, Any]) -> tf.Tensor:
        """Returns the number of steps that a batch of `__getitem__` asks for."""
        return batch[0][self.name][0]

    def batch(self, step: tf.Tensor) -> tuple[Any, Any, Any]:
        """Returns `(x, y, sample_weight)` of a step of the chain, leaves `[B, ...]`."""
        total = self.num_examples
        size = self.batch_size if self.sizes.is_constant else self.sizes.tensor_at(step)
        if self.reshuffle == "step":
            seed = random.numbered_seed(self._seed, tf.cast(step, tf.int32))
            indices = random.permuted_indices(seed, tf.range(size), total)
        else:
            is_symmetric = self.reshuffle == "symmetric"
            indices = random.epoch_indices(self._seed, step, size, total, (), is_symmetric)
        return internals.map_arrays(lambda a: tf.gather(a, indices), self.arrays)


def _check_alone() -> None:
    """Raises ValueError if TF_CONFIG makes this process one of several workers."""
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec()
    count = sum(map(cluster.num_tasks, cluster.jobs))
    if count > 1:
        raise ValueError(
            "Resident data need a model on one device. Received: a process that TF_CONFIG makes "
            f"one of {count} workers. Give fit WorkerBatches(IndependentBatches(x, y, batch_size)) "
            "instead."
        )


def data_asked(batch: tuple[Any, Any, Any], made: Sequence[ResidentData]) -> ResidentData | None:
    """Returns which of the data that the callback `made` a batch of `fit` belongs to, or None.

    Raises:
      ValueError: resident data of another callback, or weights that Keras cannot apply to them.
    """
    x, _, sample_weight = batch
    name = next(iter(x), "") if isinstance(x, dict) else ""
    if not str(name).startswith(_NAME):
        return None
    data = next((d for d in made if d.name == name), None)
    if data is None:
        raise ValueError(
            "x must be what `resident` of the SamplerCallback in callbacks returned. Received: "
            "resident data of another SamplerCallback."
        )
    if sample_weight is not None:
        raise ValueError(
            "class_weight must be None, since it does not reach resident data. Pass each example's "
            "weight to `resident`, as sample_weight."
        )
    return data


class WorkerBatches(internals.DataAdapter):
    r"""Batches for `fit` under `tf.distribute.MultiWorkerMirroredStrategy`.

    Keras 3 fails there with data of any other kind, before it calls a callback ("Attempt to convert
    a value (PerReplica...) with an unsupported type"). These data go to `fit` and to its
    `validation_data` in place of arrays. Every worker makes the same batches, and of the B rows of
    a batch replica r of R takes the rows \( \lfloor r B / R \rfloor, \dots, \lfloor (r + 1) B / R
    \rfloor - 1 \). So the chain equals that of one process, up to the rounding of sums. Workers do
    not ask each other at each step whether rows are left, as those of `tf.data` do.

    In one process, `fit` takes the whole batches, so that the same script runs there as well.

    Examples:
      >>> import numpy as np
      >>> x, y = np.arange(100.0), np.arange(100.0) > 50
      >>> batches = WorkerBatches(IndependentBatches(x, y, batch_size=20, seed=0))
      >>> batches.num_batches
      5

      On each of several hosts, with the variable TF_CONFIG that TensorFlow's tutorials describe:

      `strategy = tf.distribute.MultiWorkerMirroredStrategy()`, the model in `strategy.scope()`, and
      `model.fit(WorkerBatches(IndependentBatches(x, y, batch_size=500)), callbacks=[sampler])`.

    Args:
      data: `IndependentBatches`, or another `keras.utils.PyDataset` with a length. Batch i must be
        the same on all workers. Batches of a `PyDataset` come in their order, without shuffling.

    Raises:
      TypeError: other data.
      ValueError: resident data, or data without a length.
    """

    def __init__(self, data: keras.utils.PyDataset):
        if isinstance(data, ResidentData):
            raise ValueError(
                "data must come in batches, because a model on several replicas cannot take "
                "resident data. Received: resident data. Pass IndependentBatches(x, y, batch_size)."
            )
        if not isinstance(data, keras.utils.PyDataset):
            raise TypeError(
                "data must be IndependentBatches or another keras.utils.PyDataset. Received: "
                f"{checks.a_type(data)}."
            )
        try:
            found = data.num_batches
        except NotImplementedError:
            found = None
        if found is None:
            raise ValueError(
                "data must have a length, the number of batches of an epoch. Received: "
                f"{checks.a_type(data)} without one."
            )
        self.data = data

    # What Keras asks of data that it takes as they are.

    def get_tf_dataset(self) -> Epoch:
        return Epoch(self)

    @property
    def num_batches(self) -> int:
        """The number of batches of an epoch."""
        return self.data.num_batches

    @property
    def batch_size(self) -> int | None:
        """The number of rows of all batches, or None if it is not known."""
        is_known = isinstance(self.data, IndependentBatches) and self.data.sizes.is_constant
        return self.data.batch_size if is_known else None

    def on_epoch_begin(self) -> None:
        self.data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.data.on_epoch_end()

    def shares(
        self, index: int, replicas: Sequence[int], num_replicas: int
    ) -> tuple[list[tuple[Any, Any, Any]], int]:
        """Returns the shares `(x, y, sample_weight)` of some replicas, and the rows of the batch.

        Args:
          index: the number of the batch in its epoch.
          replicas: numbers of the replicas whose shares are returned.
          num_replicas: R.
        """
        if isinstance(self.data, IndependentBatches):
            batch, rows = self.data.arrays, self.data.rows(index)
            total = len(rows)
        else:
            batch, rows = self.data[index], None
            batch = keras.utils.unpack_x_y_sample_weight(batch)
            total = len(internals.array_leaves(batch)[0])
        shares = []
        for r in replicas:
            part: Any = slice(total * r // num_replicas, total * (r + 1) // num_replicas)
            part = part if rows is None else rows[part]  # only the shares are copied
            shares.append(internals.map_arrays(lambda a, part=part: np.asarray(a)[part], batch))
        return shares, total

    def spec_of(self, share: Any, num_replicas: int) -> Any:
        """Returns the specification that a share has in common with all others."""
        size = self.batch_size
        rows = None if size is None or size % num_replicas else size // num_replicas
        return internals.map_arrays(
            lambda a: tf.TensorSpec([rows, *a.shape[1:]], tf.as_dtype(a.dtype)), share
        )


class Epoch(tf.distribute.DistributedDataset):
    """The batches of an epoch in the form in which Keras leaves them alone."""

    def __init__(self, batches: WorkerBatches):
        self._batches = batches

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self._batches)


class BatchIterator(Iterator[Any]):
    """The batches of an epoch, one after the other: whole, or as shares."""

    def __init__(self, batches: WorkerBatches):
        self.batches, self._index = batches, 0

    @property
    def is_at_end(self) -> bool:
        """Whether all batches of the epoch were taken."""
        return self._index >= self.batches.num_batches

    def shares(self, replicas: Sequence[int], num_replicas: int) -> tuple[list[Any], int]:
        """Returns the shares of the next batch; see `WorkerBatches.shares`."""
        if self.is_at_end:
            raise StopIteration
        self._index += 1
        return self.batches.shares(self._index - 1, replicas, num_replicas)

    def spec(self, num_replicas: int) -> tuple[Any, Any, Any]:
        """Returns the specification of the shares of an epoch."""
        (first, *_), _ = self.batches.shares(0, [0], num_replicas)
        return self.batches.spec_of(first, num_replicas)

    def __next__(self) -> tuple[Any, ...]:
        (whole,), _ = self.shares([0], 1)
        return keras.utils.pack_x_y_sample_weight(*internals.map_arrays(tf.constant, whole))
