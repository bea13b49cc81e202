"""Conversion and checks of a target's data, checksums, and sums over rows in any order."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.internal.checks import a_type, eager
from tfp_sgmcmc.internal.nest import flatten_named, named_parts, path_name

_MOST_BYTES = 2**26  # of the examples that enter a checksum
_SEED = 0  # of the weights of `RowSums`
_MOST_ROWS = 2**16  # that set the scale of columns
_FAR = 100.0  # standard deviations of a column from zero


def as_tensors(data: Any, dtype: Any, called: str = "data") -> Any:
    """Returns the arrays of `data` as tensors, with floating ones cast to `dtype` if it is given.

    A data frame becomes a dict of its columns.
    """
    if dtype is not None:
        try:
            # tf.as_dtype accepts integers, as members of its enumeration.
            found = None if isinstance(dtype, int) else tf.as_dtype(dtype)
        except TypeError:
            found = None
        if found is None or not found.is_floating:
            raise TypeError(f"dtype must be floating, or None. Received: {dtype!r}.")
    data = _without_frames(data)
    flatten_named(data, called)  # which raises for names that have no order
    return tree.map_structure_with_path(
        lambda path, x: as_tensor(x, dtype, path_name(called, path)), data
    )


def _without_frames(data: Any) -> Any:
    """Replaces each data frame in `data` by a dict of its columns."""
    if _is_frame(data):
        names = [*data.columns]
        if len({*names}) != len(names):
            raise ValueError(f"data must have columns of different names. Received: {names}.")
        return {name: data[name].to_numpy() for name in names}
    if isinstance(data, Mapping):
        return {name: _without_frames(x) for name, x in data.items()}
    if isinstance(data, list | tuple):
        parts = [_without_frames(x) for x in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    return data


def _is_frame(x: Any) -> bool:
    # Checks methods, because pandas need not be installed.
    return hasattr(x, "columns") and hasattr(x, "to_numpy") and hasattr(x, "__getitem__")


def as_tensor(x: Any, dtype: Any, name: str = "data", text: bool = False) -> tf.Tensor:
    """Returns `x` as a tensor, cast to `dtype` if it is floating and `dtype` is not None.

    It must hold numbers, or strings if `text`.
    """
    if isinstance(x, tf.data.Dataset):
        raise TypeError(
            f"{name} must hold arrays. Received: a tf.data.Dataset. "
            "StreamedLogProb(log_prior_fn, log_likelihood_fn, dataset, num_examples) samples with "
            "minibatches from a dataset."
        )
    x = x.to_numpy() if hasattr(x, "to_numpy") else x  # a column of a data frame
    if isinstance(x, tf.SparseTensor) or (hasattr(x, "toarray") and hasattr(x, "nnz")):
        raise TypeError(
            f"{name} must hold dense arrays, whose rows are drawn at random. Received: a sparse "
            f"{type(x).__name__}. Give x.toarray(), or tf.sparse.to_dense(x), if memory allows; or "
            "arrays of the indices and values of each row's entries, padded to one length."
        )
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{name} must hold no masked arrays, whose masks would be lost. Received: "
            f"{a_type(x)}. Give x.filled(value), or leave the rows with masked entries out, "
            "or give the mask as an array of its own."
        )
    try:
        tensor = tf.convert_to_tensor(x)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeError(f"{name} must hold arrays. Received: {a_type(x)}: {error}") from error
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
    if not is_number and not (text and tensor.dtype == tf.string):
        found, advice = tensor.dtype.name, ""
        if tensor.dtype == tf.string:
            advice = (
                " Encode them as numbers 0, 1, ..., for example by names, codes = "
                "np.unique(strings, return_inverse=True), or leave them out."
            )
        raise TypeError(f"{name} must hold numbers. Received: an array of dtype {found}.{advice}")
    return tf.cast(tensor, dtype) if dtype is not None and tensor.dtype.is_floating else tensor


def leading_axis(data: Any, called: str = "data") -> int:
    """Returns N, the size of the leading axis of all leaves of `data`."""
    shapes = [tuple(leaf.shape) for leaf in tf.nest.flatten(data)]
    sizes = {shape[:1] for shape in shapes}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            f"{called} must have arrays with leading axes of N examples, which must be equal. "
            f"Received: shapes {shapes[:10]}{' ...' if len(shapes) > 10 else ''}. A list or tuple "
            "holds several arrays; make one array of it by np.array."
        )
    ((size,),) = sizes
    if size == 0:
        raise ValueError(f"{called} must not be empty. Received: shapes {shapes}.")
    return size


def form_of(data: Any) -> tuple[str, int]:
    """Returns names, dtypes and shapes of the arrays of an example, and their bytes."""
    leaves = named_parts(data, "")
    form = ", ".join(f"{name} {x.dtype.name} {[*x.shape[1:]]}" for name, x in leaves)
    return form.strip(), sum(x.dtype.size * x.shape[1:].num_elements() for _, x in leaves)


def evenly_spread(size: int, most: int) -> np.ndarray:
    """Returns at most `most` of the indices 0 .. size - 1, spread from the first to the last."""
    return np.linspace(0, size - 1, min(size, most)).astype(np.int64)


def checksum(data: Any) -> str:
    """Returns a checksum of `data`, or of evenly spread examples if the data are large."""
    size, (_, row_bytes) = leading_axis(data), form_of(data)
    spread = tf.constant(evenly_spread(size, max(1, _MOST_BYTES // max(1, row_bytes))))
    found = 0
    for x in tree.flatten(data):
        found = zlib.crc32(tf.gather(x, spread).numpy().tobytes(), found)
    return f"{found:08x}"


def assert_finite(x: tf.Tensor, called: str = "data") -> None:
    """Raises ValueError for NaN or infinity, in slices to save memory."""
    if not x.dtype.is_floating:
        return
    eager("The constructor of a target")
    rows = max(1, 2**22 // max(1, x.shape[1:].num_elements()))
    for start in range(0, x.shape[0], rows):
        finite = tf.math.is_finite(x[start : start + rows])
        if not tf.reduce_all(finite):
            row = start + int(tf.where(~finite)[0, 0])
            raise ValueError(
                f"{called} must be finite. Received: an array of shape {tuple(x.shape)} with a NaN "
                f"or infinite entry, first in example {row}. Remove or impute it."
            )


def rows_not_finite(x: Any) -> np.ndarray:
    """Returns the numbers of the rows of an array of floats that have NaN or infinite entries."""
    array = np.asarray(x)
    if array.dtype.itemsize >= 4:
        flat = array.ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(flat @ flat):  # which takes no memory
                return np.zeros([0], np.int64)
    return np.flatnonzero(~np.isfinite(array).all(axis=tuple(range(1, array.ndim))))


def assert_finite_rows(rows: Any, first: int, epoch: int = 0) -> None:
    """Raises ValueError for NaN or infinity in rows of a dataset; `first` is the number of one."""
    for x in tf.nest.flatten(rows):
        wrong = rows_not_finite(x) if x.dtype.is_floating else ()
        if len(wrong):
            raise ValueError(
                "dataset must be finite. Received: a NaN or infinite entry, first in example "
                f"{first + wrong[0]} of epoch {epoch}. Remove or impute it."
            )


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset whose iterators end at once, unless its options choose otherwise.

    By default TensorFlow tunes each iterator in a thread that wakes after 10, 30, 70, 150, ... ms.
    One that ends between two of these times often waits for the thread, so that a pass can take
    twice as long. Without the thread, `tf.data.AUTOTUNE` stands for the number of cores.
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


class RowSums:
    r"""The sums \( \sum_i \sin r_i \) and \( \sum_i \cos r_i \), \( r_i = w^T (x_i - m) - c \).

    They change if a row does, or if the entries of a column are given to other rows, but not with
    the order of the rows. Unlike a checksum of bytes, they bear rounding: a function of a block
    gives a row other last digits at another place of the block or on another processor. The
    functions are bounded, so that no row hides the others.

    Args:
      weights: w, one array for each leaf of the rows.
      centers: m, which is zero but for columns far from zero, such as times, which hide the others.
      offset: c.
    """

    def __init__(self, weights: list[np.ndarray], centers: list[np.ndarray], offset: float):
        self.weights, self.centers, self.offset = weights, centers, offset

    @classmethod
    def scaled_to(cls, rows: Any) -> Self:
        """Returns sums in which each column of some rows counts by its standard deviation."""
        rng = np.random.default_rng(_SEED)
        columns = [_flat(x)[:_MOST_ROWS].astype(np.float64) for x in tf.nest.flatten(rows)]
        total, weights, centers, offset = sum(x.shape[1] for x in columns), [], [], 0.0
        for x in columns:
            mean, scale = x.mean(axis=0), x.std(axis=0)
            # Later rows may differ where the first ones are all 0, as in files sorted by label.
            scale = np.where(scale > 0, scale, np.where(np.abs(mean) > 1e-30, np.abs(mean), 1))
            signed = rng.uniform(0.5, 1.5, x.shape[1]) * rng.choice([-1, 1], x.shape[1])
            weights.append(signed / scale / total**0.5)
            centers.append(np.where(np.abs(mean) > _FAR * scale, mean, 0.0))
            offset += float(weights[-1] @ (mean - centers[-1]))
        return cls(weights, centers, offset)

    def __call__(self, rows: Any) -> np.ndarray:
        """Returns the sums over rows, `[2]`."""
        r = np.float32(-self.offset)
        with np.errstate(invalid="ignore", over="ignore"):  # of rows that are not finite
            leaves = map(_flat, tf.nest.flatten(rows))
            for x, w, m in zip(leaves, self.weights, self.centers, strict=True):
                w, x = w.astype(x.dtype), x - m.astype(x.dtype) if m.any() else x
                r = r + (x[:, 0] * w if len(w) == 1 else x @ w)  # which is faster for one column
            return np.array([f(r).sum(dtype=np.float64) for f in (np.sin, np.cos)])

    def equals(self, other: RowSums) -> bool:
        """Returns whether another object computes the same sums."""
        own, others = [*self.weights, *self.centers], [*other.weights, *other.centers]
        pairs = zip(own, others, strict=True)
        return self.offset == other.offset and all(np.array_equal(x, y) for x, y in pairs)

    def differ(self, one: np.ndarray, other: np.ndarray, count: int) -> bool:
        """Returns whether two sums over `count` rows differ by more than rounding explains."""
        # Rounding moves r by about this much, in each row by chance or in all rows alike.
        rounding = 1e-6 * (1 + abs(self.offset))
        most = rounding * count + 1e-4 * count**0.5
        are_same = (np.abs(one - other) <= most) | (np.isnan(one) & np.isnan(other))
        return not bool(np.all(are_same))


def _flat(x: Any) -> np.ndarray:
    """Returns a leaf as floats, `[rows, entries]`."""
    array = np.asarray(x)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    return array.reshape(len(array), -1)
