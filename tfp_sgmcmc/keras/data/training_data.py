"""The training data of a `fit`, as far as they are known before the first step.

Keras does not show a callback the data of `fit`, nor the other callbacks. This file alone looks for
both on the call stack. They save the user an argument and allow checks, and no result depends on
them: where they are not found, the data are those that `SamplerCallback.data` returned, or
unknown, and then `num_examples` must be given. The private names used here, and why:

  `fit`: `epoch_iterator`, `validation_data`, `initial_epoch`: names of local variables;
  `ArrayDataAdapter._inputs`: the arrays, after a validation split, with weights of classes;
  `ArrayDataAdapter._batch_size`, `ArrayDataAdapter._shuffle`: how they are batched;
  `GeneratorDataAdapter._first_batches`: batches that Keras took to see their shapes;
  `PyDatasetAdapter._standardize_batch`: a batch as `fit` sees it, with weights of classes;
  `TFDatasetAdapter._dataset`: the data set;
  `Dataset._inputs`, `Dataset._tensors`, `Dataset._batch_size`, `Dataset._buffer_size`,
  `Dataset._count`, `Dataset._drop_remainder`: of `tf.data`: what a data set is made of.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.data.fit_batches import (
    BatchSizes,
    IndependentBatches,
    ResidentData,
    WorkerBatches,
    packed,
)
from tfp_sgmcmc.keras.model.internals import array_leaves, map_arrays
from tfp_sgmcmc.keras.posterior.batches import check_dense, check_numbers
from tfp_sgmcmc.targets.data import evenly_spread, untuned

# A data set of `tf.data` made of these gives each row of its tensors once.
_NUMBERS = ("_batch_size", "_buffer_size", "_count")  # of such a data set
_REPEATED = {"Repeat", "DirectedInterleave"}  # may give a row several times
_ONCE = {"Batch", "ParallelBatch", "Cache", "Map", "ParallelMap", "Options", "Prefetch", "Shuffle"}
_BLOCK = 4096  # rows of arrays that are read at once
_unpacked = keras.utils.unpack_x_y_sample_weight


class Source(NamedTuple):
    """The training data of a `fit`; None is unknown.

    Attributes:
      kind: the kind of data, in words.
      num_examples: N, the number of rows.
      batch_size: rows of all batches but perhaps a last one.
      num_batches: batches of an epoch.
      arrays: `(x, y, sample_weight)`, nests of arrays with N rows.
      dataset: a `PyDataset`.
      order: what determines the order of the rows, as words and numbers by name.
      are_independent: whether batches are drawn independently of one another.
      take_batch: returns `(x, y, sample_weight)` of some batch; None if that would use it up.
      spec: the specification of a batch, where none can be taken.
      sizes: the numbers of rows of batches that grow; `batch_size` is the first.
      has_shares: whether each replica takes its share of a batch (`WorkerBatches`).
      count: returns the sum of the rows of all batches, if all but the last have the same size, or
        if their number is unknown; the latter are all read.
      count_batches: reads all batches and returns their number, if it is unknown.
      counted_batch: returns the first batch that the last two have read, or None.
      read: returns an iterator over batches of data that are not arrays, with each row once; None
        if the data cannot be read beside `fit`.
      is_never_shuffled: whether each epoch has the same batches, which can be read beside `fit`.
    """

    kind: str = "unknown data"
    num_examples: int | None = None
    batch_size: int | None = None
    num_batches: int | None = None
    arrays: Any = None
    dataset: Any = None
    order: dict[str, Any] = {}  # noqa: RUF012
    are_independent: bool | None = None
    take_batch: Callable[[], Any] | None = None
    spec: Any = None
    sizes: BatchSizes | None = None
    has_shares: bool = False
    count: Callable[[], int | None] | None = None
    count_batches: Callable[[], int] | None = None
    counted_batch: Callable[[], Any] | None = None
    read: Callable[[], Iterator[Any]] | None = None
    is_never_shuffled: bool = False

    @property
    def passes(self) -> Callable[[], Iterator[Any]] | None:
        """Returns an iterator over batches `(x, y, sample_weight)` that have each row once.

        None if the data cannot be read beside `fit`.
        """
        return self.read if self.arrays is None else self._blocks

    def _blocks(self) -> Iterator[Any]:
        """Yields the rows of arrays in their order, in blocks, as `fit` converts them."""
        assert self.num_examples is not None  # known of arrays
        for start in range(0, self.num_examples, _BLOCK):
            yield self.rows(np.arange(start, min(start + _BLOCK, self.num_examples)))

    @property
    def is_whole(self) -> bool:
        """Whether each batch is known to hold all examples, so that gradients have no noise."""
        if self.num_examples is None or self.batch_size is None:
            return self.num_batches == 1  # and the epoch must have N examples
        return self.batch_size >= self.num_examples

    def batch(self, most: int) -> Any:
        """Returns `(x, y, sample_weight)` of at most so many examples, or None.

        These are rows spread over arrays, and otherwise those of a batch.
        """
        if self.arrays is None:
            first = self.take_batch() if self.take_batch else None
            return first if first is None else map_arrays(lambda a: _floatx(a[:most]), first)
        return self.rows(evenly_spread(self.num_examples or most, most))

    def rows(self, chosen: np.ndarray) -> Any:
        """Returns `(x, y, sample_weight)` of rows of arrays."""
        return map_arrays(lambda a: _floatx(taken(a, chosen)), self.arrays)


def training_source(model: keras.Model, made: Sequence[Any] = ()) -> Source:
    """Returns the data of a model's `fit`: from the call stack, or those of `made` that it reads.

    Raises:
      TypeError: y has strings, or data are ragged.
      ValueError: `steps_per_epoch` was given to `fit` beside `IndependentBatches`, there is no y,
        or a data set is not batched.
    """
    iterator = _names_of_fit(model).get("epoch_iterator")
    if iterator is None:
        read = next((data for data in made if data.was_read), None)
        return Source() if read is None else _of_py_dataset(read, {}, lambda batch: batch)
    found, steps = _of_adapter(iterator.data_adapter), iterator.steps_per_epoch
    check_targets(found)
    if not steps or isinstance(found.dataset, ResidentData):
        return found
    if isinstance(found.dataset, IndependentBatches):
        raise ValueError(
            "steps_per_epoch must be given to IndependentBatches, not to fit, so that each step "
            f"has its batch. Received: steps_per_epoch={steps} in fit."
        )
    if found.count_batches is not None:  # the data may have no end
        found = found._replace(count=None, count_batches=None, read=None)
    return found._replace(num_batches=steps)


def check_targets(source: Source) -> None:
    """Raises unless the data have y, which are numbers."""
    batch = source.arrays or source.spec
    if batch is None and source.take_batch is not None:
        batch = source.take_batch()
    if batch is None:
        return
    y = batch[1]
    if not array_leaves(y):
        raise ValueError(
            "y must be given to fit, because the compiled loss compares it with the outputs. "
            f"Received: {source.kind} without y."
        )
    check_numbers(y)


def initial_epoch_of_fit(model: keras.Model) -> int:
    """Returns the `initial_epoch` of the model's `fit` on the call stack, or 0."""
    return _names_of_fit(model).get("initial_epoch") or 0


def source_of(x: Any, y: Any, batch_size: int, steps_per_epoch: int | None) -> Source:
    """Returns what is known of data that `fit` is going to be called with.

    Raises:
      ValueError: a number is out of range.
    """
    checks.integer("batch_size", batch_size, 1)
    checks.optional(checks.integer, "steps_per_epoch", steps_per_epoch, 1)
    if isinstance(x, WorkerBatches):
        return _of_adapter(x)
    if isinstance(x, keras.utils.PyDataset):
        found = _of_py_dataset(x, {}, lambda batch: batch)
    elif isinstance(x, tf.data.Dataset):
        count = int(x.cardinality())
        found = _of_tf_data(x, count if count >= 0 else None)
    elif not keras.tree.is_nested(x) and not hasattr(x, "shape"):
        found = Source("a generator")
    else:
        check_dense((x, y))
        arrays = map_arrays(np.asarray, (x, y, None))
        rows = array_leaves(arrays)[0].shape[0]
        found = Source("arrays", rows, batch_size, -(-rows // batch_size), arrays)
    if steps_per_epoch is None or isinstance(x, ResidentData | IndependentBatches):
        return found
    return found._replace(num_batches=steps_per_epoch)


def validation_of_fit(model: keras.Model) -> Any:
    """Returns the `validation_data` of the model's `fit` on the call stack, or None."""
    return _names_of_fit(model).get("validation_data")


def calling_list() -> keras.callbacks.CallbackList | None:
    """Returns the CallbackList whose method is on the call stack, or None."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), keras.callbacks.CallbackList):
            return found
        frame = frame.f_back
    return None


def _names_of_fit(model: keras.Model) -> dict[str, Any]:
    """Returns the local names of the model's `fit` on the call stack; empty if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "fit":
            names = frame.f_locals
            if names.get("self") is model and "epoch_iterator" in names:
                return names
        frame = frame.f_back
    return {}


def _of_adapter(adapter: Any) -> Source:
    if getattr(adapter, "_inputs", None) is not None:
        arrays = _unpacked(adapter._inputs)
        check_dense(arrays)
        rows = array_leaves(arrays)[0].shape[0]
        size = adapter._batch_size
        order = {"shuffle": bool(adapter._shuffle)}
        return Source("arrays", rows, size, adapter.num_batches, arrays, order=order)
    if isinstance(adapter, WorkerBatches):
        order = {"shuffle": False}
        found = _of_py_dataset(adapter.data, order, lambda batch: batch)
        return found._replace(has_shares=True)
    dataset = getattr(adapter, "py_dataset", None)
    if isinstance(dataset, keras.utils.PyDataset):
        if isinstance(dataset, IndependentBatches):
            adapter.shuffle = False  # the batch of a step depends on the step
            if adapter.enqueuer is not None:
                adapter.enqueuer.shuffle = False
        order = {"shuffle": bool(adapter.shuffle)}
        return _of_py_dataset(dataset, order, adapter._standardize_batch)
    if isinstance(batches := getattr(adapter, "_first_batches", None), list) and batches:
        batch = _unpacked(batches[0])
        return Source("a generator", take_batch=lambda: batch)
    if isinstance(given := getattr(adapter, "_dataset", None), tf.data.Dataset):
        return _of_tf_data(given, adapter.num_batches)
    return Source()


def _of_py_dataset(
    dataset: keras.utils.PyDataset, order: dict[str, Any], standardized: Callable[[Any], Any]
) -> Source:
    if isinstance(dataset, ResidentData | IndependentBatches):
        return _of_drawn_batches(dataset, standardized)

    @functools.cache
    def take() -> Any:
        return _unpacked(standardized(dataset[0]))

    def count() -> int | None:
        number = dataset.num_batches
        if not number:
            return None
        first, between, last = (
            len(array_leaves(_unpacked(standardized(dataset[i])) if i else take())[0])
            for i in (0, (number - 1) // 2, number - 1)
        )
        return (number - 1) * first + last if between == first else None  # of other lengths

    kind, number = f"a PyDataset, {type(dataset).__name__}", dataset.num_batches

    def read() -> Iterator[Any]:
        return (_unpacked(standardized(dataset[i])) for i in range(number or 0))

    return Source(
        kind, num_batches=number, dataset=dataset, order=order, take_batch=take, count=count,
        read=read if number else None,
    )  # fmt: skip


def _of_drawn_batches(
    dataset: ResidentData | IndependentBatches, standardized: Callable[[Any], Any]
) -> Source:
    """Returns what is known of arrays of which the library draws batches."""
    order: dict[str, Any]
    if isinstance(dataset, ResidentData):
        kind, arrays, is_fresh = "resident data", dataset.arrays, dataset.reshuffle == "step"
        order = {"reshuffle": dataset.reshuffle}
    else:
        kind, is_fresh = "IndependentBatches", True
        arrays = _unpacked(standardized(packed(*dataset.arrays)))  # with weights of classes
        order = {"seed of the batches": dataset.seed} if dataset.has_seed else {}
    found = Source(
        kind, dataset.num_examples, dataset.batch_size, dataset.steps_per_epoch, arrays, dataset,
        order, is_fresh,
    )  # fmt: skip
    if dataset.sizes.is_constant:
        return found
    return found._replace(sizes=dataset.sizes, order={**order, "growth": dataset.sizes.growth})


def _of_tf_data(dataset: tf.data.Dataset, num_batches: int | None) -> Source:
    """Returns what is known of a data set from the data sets that it is made of."""
    check_dense(dataset.element_spec)
    _check_batched(dataset.element_spec)
    steps: list[tuple[str, list[int]]] = []
    tensors: list[tf.Tensor] = []
    left, is_slices, repeats, has_remainder_dropped = [(dataset, False)], False, False, False
    while left:
        one, is_endless = left.pop()
        name = type(one).__name__.removeprefix("_").removesuffix("Dataset")
        numbers: list[Any] = [getattr(one, n, None) for n in _NUMBERS]
        steps.append((name, [int(n) for n in numbers if isinstance(n, tf.Tensor)]))
        has_remainder_dropped |= bool(getattr(one, "_drop_remainder", False))
        if name in ("TensorSlice", "Tensor"):
            tensors += one._tensors
            is_slices = is_slices or name == "TensorSlice"
        repeats |= name in _REPEATED and not is_endless
        for part in one._inputs():  # an endless part of a finite zip, as of timeseries, has no rows
            ends = name != "Zip" or int(part.cardinality()) != tf.data.INFINITE_CARDINALITY
            left.append((part, is_endless or not ends))
    kinds = {name for name, _ in steps}
    sizes = [numbers[0] for name, numbers in steps if name.endswith("Batch") and numbers]
    rows = None
    if is_slices and kinds <= {*_ONCE, "TensorSlice"} and len(sizes) == 1:
        rows = int(tensors[0].shape[0])
        if has_remainder_dropped:
            rows -= rows % sizes[0]
    chain = " < ".join(f"{name} {numbers[0]}" if numbers else name for name, numbers in steps)

    @functools.cache
    def take() -> Any:
        first = next(iter(dataset.take(1)), None)
        return None if first is None else _unpacked(first)

    cardinality = int(dataset.cardinality())
    # Without steps_per_epoch, fit reads such data to their end, too.
    is_uncounted = cardinality == tf.data.UNKNOWN_CARDINALITY and not repeats

    read: list[Any] = []

    @functools.cache
    def all_sizes() -> list[int]:
        sizes = []
        for batch in map(_unpacked, untuned(dataset)):
            read[:] = read or [batch]
            sizes.append(int(tf.shape(array_leaves(batch)[0])[0]))
        return sizes

    names = [name for name, _ in steps]
    batched = next((i for i, name in enumerate(names) if name.endswith("Batch")), 0)
    # The short batch may then be anywhere.
    is_mixed = "Concatenate" in kinds or any("Shuffle" in name for name in names[:batched])

    def count() -> int | None:
        if is_uncounted or (is_mixed and can_pass):
            return sum(all_sizes()) or None
        number = cardinality
        if number < 1 or repeats:
            return None
        sizes = [
            int(tf.shape(array_leaves(batch)[0])[0])
            for part in (dataset.take(1), dataset.skip(number - 1))
            for batch in part
        ]
        return (number - 1) * sizes[0] + sizes[-1]

    # Other data sets, such as those of generators, may be read once only, or slowly.
    in_memory = bool(tensors) and not kinds & {"Generator", "Interleave", "ParallelInterleave"}
    can_pass = is_uncounted or (cardinality > 0 and not repeats)
    # The tensors of a data set stand for its rows: what maps them cannot be seen.
    return Source(
        "a tf.data.Dataset",
        rows,
        sizes[0] if sizes else None,
        num_batches,
        dataset=tensors or None,
        order={"steps of the data set": chain},
        take_batch=take if in_memory else None,
        spec=_unpacked(dataset.element_spec),
        count=count,
        count_batches=(lambda: len(all_sizes())) if is_uncounted else None,
        counted_batch=lambda: read[0] if read else None,
        read=(lambda: map(_unpacked, untuned(dataset))) if can_pass else None,
        is_never_shuffled=in_memory and can_pass and not any("Shuffle" in kind for kind in kinds),
    )


def _check_batched(spec: Any) -> None:
    """Raises ValueError for a data set whose elements are single rows."""
    leaves = keras.tree.flatten(spec)
    shapes = [s.shape for s in leaves if getattr(s, "shape", None) is not None]
    if any(s.rank == 0 for s in shapes) or len({s[0] for s in shapes if s.rank} - {None}) > 1:
        raise ValueError(
            "A tf.data.Dataset must be batched, with rows along the first axis of x and y. "
            f"Received: elements of the shapes {', '.join(map(str, shapes))}. Call "
            "dataset.batch(batch_size)."
        )


def taken(array: Any, rows: np.ndarray) -> Any:
    """Returns rows of an array, a tensor or a table of pandas."""
    if tf.is_tensor(array):
        return tf.gather(array, rows)
    if hasattr(array, "iloc"):  # of pandas
        return array.iloc[rows].to_numpy()
    return np.asarray(array)[rows]


def _floatx(array: Any) -> tf.Tensor:
    array = tf.convert_to_tensor(array)
    return tf.cast(array, keras.config.floatx()) if array.dtype.is_floating else array
