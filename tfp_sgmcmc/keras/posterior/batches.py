"""Data in the forms that `model.predict` takes, as blocks of batches, with a progress bar."""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import a_type, integer, nonnegative_weights, optional
from tfp_sgmcmc.internal.checks import array as checked_array
from tfp_sgmcmc.keras.model.internals import array_leaves, map_arrays
from tfp_sgmcmc.sampling.progress import ProgressLines, progress
from tfp_sgmcmc.targets.data import rows_not_finite, untuned

_BLOCK_ENTRIES = 2**24  # entries of the batches that go through all samples side by side
_MOST_BATCHES = 100_000  # of a Python generator that was given without steps
_ROWS = 32  # Keras' default batch size
_LINES = -1  # what "auto" is where nobody watches: a line every ten seconds
_WIDGET = -2  # what "auto" is in a notebook, whose exports show the bars of Keras as boxes
_GENERATOR = "a generator"
Batch = tuple[Any, Any, Any]  # x, y, sample_weight
Tick = Callable[[float], None]  # takes the share of a block that is done


class Batches:
    """The batches `(x, y, sample_weight)` of data, once through.

    Takes the arguments of `model.evaluate`. Batches come in blocks of bounded size, so that samples
    on a disk are read once for each block.

    Raises:
      TypeError: the data are of an unknown kind, or entries are not numbers.
      ValueError: data have no end and `steps` is None; `batch_size`, y or weights are given with
        data that come in batches; lengths differ; there are no rows.
    """

    def __init__(
        self,
        model: keras.Model,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        verbose: Any = "auto",
        has_labels: bool = False,
    ):
        self._model, self._has_labels = model, has_labels
        self._steps = optional(integer, "steps", steps, 1)
        optional(integer, "batch_size", batch_size, 1)
        self._verbose = _verbosity(verbose)
        self._kind = _kind_of_data(x)
        if self._kind is None:
            self._batches, length = self._of_arrays(x, y, sample_weight, batch_size)
        else:
            given = {"batch_size": batch_size, "y": y, "sample_weight": sample_weight}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(
                        f"{name} must be None with {self._kind}, whose elements are batches (x,), "
                        f"(x, y) or (x, y, sample_weight). Received: {a_type(value)}."
                    )
            self._batches, length = self._of_stream(x)
        known = (n for n in (length, self._steps) if n is not None)
        self.num_batches = min(known, default=None)
        if self._verbose == _WIDGET and self.num_batches is None:
            self._verbose = 1

    def blocks(self) -> Iterator[tuple[list[Batch], Tick]]:
        """Yields blocks of batches, each with a function that reports the share of it that is done.

        Raises:
          ValueError: the data are empty, a batch does not fit the model, or a Python generator
            without `steps` does not end.
        """
        bar = keras.utils.Progbar(self.num_batches, verbose=max(self._verbose, 0))
        lines = ProgressLines(self.num_batches or 0, 0, "batch")
        wanted, done = None if self._verbose == _WIDGET else False, 0
        with progress(wanted, self.num_batches or 0, unit="batch") as show:
            for block in self._blocks():
                start, size = done, len(block)

                def tick(share: float, start: int = start, size: int = size) -> None:
                    now = start + share * size
                    if self._verbose == 1:
                        bar.update(int(now), finalize=False)
                    elif self._verbose == _LINES:
                        lines.update(now)
                    else:
                        show(int(now), None)

                yield block, tick
                done += size
            show(done, None)
        if not done:
            raise ValueError(f"x must have at least one batch. Received: {self._kind} without any.")
        if self._verbose > 0:
            bar.target = done  # known only now if the data have no length
            bar.update(done, finalize=True)
        if self._steps is not None and done < self._steps:
            warnings.warn(f"The data ended after {done} of {self._steps} batches.", stacklevel=4)

    def _blocks(self) -> Iterator[list[Batch]]:
        block, size = [], 0
        for number, element in enumerate(itertools.islice(self._batches, self._steps)):
            if number == _MOST_BATCHES and self._kind == _GENERATOR and self._steps is None:
                raise ValueError(
                    f"x, {self._kind} without steps, must end within {_MOST_BATCHES} batches. "
                    "Received: more. Pass steps=, the number of batches to take."
                )
            batch = self._checked(element)
            more = sum(math.prod(leaf.shape) for leaf in array_leaves(batch))
            if block and size + more > _BLOCK_ENTRIES:
                yield block
                block, size = [], 0
            block.append(batch)
            size += more
        if block:
            yield block

    def _of_arrays(
        self, x: Any, y: Any, sample_weight: Any, batch_size: int | None
    ) -> tuple[Iterator[Batch], int]:
        rows = self._checked_rows(x, y)
        if sample_weight is not None:
            sample_weight = row_weight(sample_weight, rows)
            nonnegative_weights("sample_weight", sample_weight)
        if batch_size is None:
            batch_size = _ROWS if self._steps is None else math.ceil(rows / self._steps)
        data = (x, y if self._has_labels else None, sample_weight)

        def batch(start: int) -> Batch:
            return map_arrays(lambda leaf: leaf[start : start + batch_size], data)

        return map(batch, range(0, rows, batch_size)), math.ceil(rows / batch_size)

    def _of_stream(self, x: Any) -> tuple[Iterator[Any], int | None]:
        if isinstance(x, tf.data.Dataset):
            length = int(x.cardinality())
            self._check_end(length != tf.data.INFINITE_CARDINALITY)
            return iter(untuned(x)), length if length >= 0 else None
        if isinstance(x, keras.utils.PyDataset):
            length = x.num_batches
            self._check_end(length is not None)
            return _items(x, length), length
        return iter(x), None

    def _check_end(self, has_end: bool) -> None:
        if not has_end and self._steps is None:
            raise ValueError(
                f"steps must be given with {self._kind} that has no end: the number of batches to "
                "take. Received: steps=None."
            )

    def _checked(self, element: Any) -> Batch:
        """Returns an element of the data as `(x, y, sample_weight)` if it fits the model."""
        if self._kind is None:
            return element
        x, y, weight = keras.utils.unpack_x_y_sample_weight(element)
        if not self._has_labels:
            y = weight = None
        elif y is None:
            raise ValueError(
                f"x must have labels: {self._kind} of batches (x, y) or (x, y, sample_weight). "
                "Received: batches without y."
            )
        self._checked_rows(x, y)
        return x, y, weight

    def _checked_rows(self, x: Any, y: Any) -> int:
        """Returns the number of rows of inputs, and of labels if there are any, that are valid."""
        checked_inputs(self._model, x)
        if not self._has_labels:
            return num_rows(x)
        check_arrays("y", y)
        check_numbers(y)
        return num_rows((x, y))


def _items(data: keras.utils.PyDataset, length: int | None) -> Iterator[Any]:
    data.on_epoch_begin()
    for i in itertools.count() if length is None else range(length):
        yield data[i]
    data.on_epoch_end()


def no_tick(share: float) -> None:
    """Shows nothing."""


def tensors(nest: Any) -> Any:
    """Returns a nest of arrays as one of tensors."""
    return keras.tree.map_structure(tf.convert_to_tensor, nest)


def _kind_of_data(x: Any) -> str | None:
    """Returns the kind of data that come in batches, in words, or None for arrays."""
    if isinstance(x, tf.data.Dataset):
        return "a tf.data.Dataset"
    if isinstance(x, keras.utils.PyDataset):
        return "a PyDataset"
    return _GENERATOR if isinstance(x, Iterator) else None


def _verbosity(verbose: Any) -> int:
    """Returns 0, 1 or 2; "auto" is 1 in a terminal, `_WIDGET` in a notebook, and else `_LINES`."""
    if isinstance(verbose, str) and verbose == "auto":
        if "ipykernel" in sys.modules:
            return _WIDGET
        return 1 if getattr(sys.stdout, "isatty", bool)() else _LINES
    if not isinstance(verbose, int) or verbose not in (0, 1, 2):
        raise ValueError(f"verbose must be 'auto', 0, 1 or 2. Received: {verbose!r}.")
    return int(verbose)


def checked_inputs(model: keras.Model, x: Any) -> Any:
    """Returns x if it can be the inputs of the model; raises TypeError or ValueError otherwise."""
    check_arrays("x", x)
    inputs = getattr(model, "inputs", None) or []  # unknown for subclassed models
    leaves = _taken(model, inputs, x) if inputs else keras.tree.flatten(x)
    if inputs and len(leaves) != len(inputs):
        raise ValueError(
            f"x must have an array for each of the {len(inputs)} inputs of the model. Received: "
            f"{len(leaves)} arrays."
        )
    for symbol, leaf in zip(inputs, leaves, strict=False):
        if _kind(leaf) == "U" and symbol.dtype != "string":
            raise TypeError("x must have real numbers as entries. Received: strings.")
    if len(inputs) == 1:
        expected, found = tf.TensorShape(inputs[0].shape[1:]), tf.TensorShape(leaves[0].shape[1:])
        taken = [found]
        taken += [found + [1]] if expected[-1:] == [1] else []  # as Keras adds the last axis,
        taken += [found[:-1]] if found[-1:] == [1] else []  # or drops it
        if not any(map(expected.is_compatible_with, taken)):
            raise ValueError(
                f"x must have shape {['rows', *expected]}, as the model's input. Received: shape "
                f"{[*leaves[0].shape]}."
            )
    return x


def _taken(model: keras.Model, inputs: list[Any], x: Any) -> list[Any]:
    """Returns the leaves of x that Keras takes for the inputs of a model, in their order.

    It takes entries of a dict by the names of inputs, and others may stand beside them. But if the
    inputs are a dict, too, it takes the first entries in the order of the names, whatever these
    are: all leaves are returned if they are not those of the inputs.
    """
    if not isinstance(x, dict):
        return keras.tree.flatten(x)
    nest = inputs if isinstance(model, keras.Sequential) else model.input
    if isinstance(nest, dict):
        names = sorted(nest)
        is_right = sorted(x)[: len(names)] == names
    else:
        names = [symbol.name for symbol in inputs]
        is_right = set(names) <= set(x)
    return keras.tree.flatten([x[name] for name in names] if is_right else x)


def check_finite(values: Any, block: list[Batch], first_row: int) -> None:
    """Raises ValueError for NaN among the results `values` if the block's data are not finite.

    `first_row` is the number of the block's first row.
    """
    leaves = [np.asarray(x) for x in tf.nest.flatten(values)]
    if not any(np.isnan(x).any() for x in leaves if x.dtype.kind == "f"):
        return
    for batch in block:
        for name, nest in zip("xy", batch, strict=False):
            if len(bad := bad_rows(nest)):
                raise ValueError(
                    f"{name} must have finite entries. Received: NaN or infinity in row "
                    f"{first_row + bad[0]}."
                )
        first_row += num_rows(batch[0])


def bad_rows(nest: Any) -> np.ndarray:
    """Returns the numbers of the rows of a nest of arrays that have NaN or infinite entries."""
    bad = [np.zeros([0], np.int64)]
    for leaf in keras.tree.flatten(nest):
        array = np.asarray(leaf)
        if array.dtype.kind == "f":
            bad.append(rows_not_finite(array))
    return np.unique(np.concatenate(bad))


def check_arrays(name: str, data: Any) -> None:
    """Raises TypeError unless `data` is a nest of arrays `[rows, ...]` of numbers."""
    check_dense(data)
    for leaf in keras.tree.flatten(data) or [data]:
        shape = tuple(getattr(leaf, "shape", ()))
        if not hasattr(leaf, "__array__") or not shape or None in shape:
            is_part = leaf is None and data is not None
            advice = " Leave out what belongs to an output without a loss." if is_part else ""
            raise TypeError(
                f"{name} must be an array [rows, ...], or a nest of such arrays. Received: "
                f"{a_type(leaf)}.{advice}"
            )
        if _kind(leaf) in "OcMm":
            raise TypeError(f"{name} must have real numbers as entries. Received: {leaf!r}.")


def check_dense(data: Any) -> None:
    """Raises TypeError for ragged, sparse and masked arrays; leaves may be specifications."""
    for leaf in keras.tree.flatten(data):
        advice = ""
        if isinstance(leaf, tf.RaggedTensor | tf.RaggedTensorSpec):
            advice = "Pad it by .to_tensor(), in Dataset.map for a data set."
        elif isinstance(leaf, tf.SparseTensor | tf.SparseTensorSpec):
            advice = "Convert it by tf.sparse.to_dense, in Dataset.map for a data set."
        elif hasattr(leaf, "toarray") and hasattr(leaf, "nnz"):  # of SciPy
            advice = "Convert it by .toarray()."
        elif isinstance(leaf, np.ma.MaskedArray):
            advice = (
                "Keras reads masked entries as numbers. Replace them by .filled(value), or leave "
                "their rows out."
            )
        if advice:
            kind = type(leaf).__name__.removesuffix("Spec")
            raise TypeError(f"x and y must be dense. Received: a {kind}. {advice}")


def check_numbers(y: Any) -> None:
    """Raises TypeError if there are strings among the targets; leaves may be specifications."""
    for leaf in array_leaves(y):
        if _kind(leaf) == "U":
            raise TypeError(
                "y must hold numbers. Received: strings. Encode class labels as numbers 0, 1, ..., "
                "for example by classes, y = np.unique(labels, return_inverse=True)."
            )


def _kind(array: Any) -> str:
    """Returns the kind of NumPy dtype of an array, "U" for strings of any dtype."""
    if tf.is_tensor(array) or isinstance(array, tf.TensorSpec):
        return "U" if array.dtype == tf.string else np.dtype(array.dtype.as_numpy_dtype).kind
    if not hasattr(array, "dtype"):  # a table of pandas
        array = np.asarray(array)
    first = np.asarray(array).flat[:1]
    is_text = array.dtype.kind == "O" and all(isinstance(x, str | bytes) for x in first)
    return "U" if is_text or array.dtype.kind == "S" else array.dtype.kind


def num_rows(data: Any) -> int:
    """Returns the number of rows of a nest of arrays, which must be the same in all of them."""
    leaves = keras.tree.flatten(data)
    rows = {leaf.shape[0] for leaf in leaves}
    if len(rows) != 1 or 0 in rows:
        raise ValueError(
            "The arrays x and y must have the same number of rows, at least 1. Received: "
            f"{sorted(rows)} rows."
        )
    return rows.pop()


def row_weight(sample_weight: Any, rows: int) -> np.ndarray:
    """Returns weights `[rows]` of examples in double precision; None weights all by 1.

    A dict must hold the weights of one output alone.

    Raises:
      TypeError: they are not numbers, or a dict of other weights.
      ValueError: they have another shape, are not finite, or are negative.
    """
    if sample_weight is None:
        return np.ones([rows])
    if isinstance(sample_weight, dict):
        parts = array_leaves(sample_weight)
        if len(parts) != 1:
            raise TypeError(
                "sample_weight must be one array, as the scores are averages over examples. "
                f"Received: weights of {len(parts)} outputs, {sorted(sample_weight)}."
            )
        sample_weight = parts[0]
    weight = checked_array("sample_weight", sample_weight, 0, finite=False).astype(np.float64)
    if weight.shape != (rows,):
        raise ValueError(
            f"sample_weight must have one weight for each example, shape [{rows}]. Received: shape "
            f"{weight.shape}. Weights of single time steps or pixels, which fit takes, cannot "
            "weight these averages. To leave entries out, compile the crossentropy with "
            "ignore_class, or give the model a mask, as by Embedding(mask_zero=True)."
        )
    nonnegative_weights("sample_weight", weight, some=False)
    return weight
