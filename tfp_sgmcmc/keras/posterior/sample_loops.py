"""Compiled loops over samples of a model's variables, in bounded memory.

The loops take samples in chunks and rows in batches. Samples are arrays `[num_kept, ...]`, or
`[num_kept, num_chains, ...]` with chains. Only their `shape`, `dtype` and slices are used, so that
they may be on disk. The model's `run_eagerly` and `jit_compile` decide how loops are compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.checks import integer

_CHUNK_BYTES = 2**26  # size of the samples that a compiled function gets at once


class Fold:
    """Carries a state through all samples, for each batch of rows.

    `update` is a function (state, values of the variables, share, batch) -> state. Given the state
    None, it returns the initial state, in which no sample counts. The share of a sample is its
    weight over the sum of all weights so far.
    """

    def __init__(
        self, model: keras.Model, update: Callable[[Any, list[tf.Tensor], tf.Tensor, Any], Any]
    ):
        self._update = update
        self._add = _compiled(model, self._add_chunk)

    def __call__(
        self,
        samples: Sequence[Any],
        num_chains: int | None,
        data: Any,
        batch_size: int,
        weights: np.ndarray | None = None,
    ) -> list[Any]:
        """Returns the final state for each batch of the rows of `data`.

        `weights`, `[num_kept]`, are those of the samples; None weights all by 1.
        """
        parts = batches(data, batch_size)
        states: list[Any] = [None] * len(parts)
        shares, start = _shares(weights, samples[0].shape[0], num_chains or 1), 0
        for chunk in chunks(samples, num_chains):
            end = start + chunk[0].shape[0]
            share = tf.constant(shares[start:end])
            pairs = zip(states, map(_tensors, parts), strict=True)
            states = [self._add(state, chunk, share, batch) for state, batch in pairs]
            start = end
        return states

    def _add_chunk(self, state: Any, chunk: list[tf.Tensor], shares: tf.Tensor, batch: Any) -> Any:
        if state is None:
            state = self._update(None, [v[0] for v in chunk], shares[0], batch)

        def add(i: tf.Tensor, old: Any) -> tuple[tf.Tensor, Any]:
            return i + 1, self._update(old, [v[i] for v in chunk], shares[i], batch)

        size = tf.shape(chunk[0])[0]
        return tf.while_loop(lambda i, _: i < size, add, (tf.constant(0), state))[1]


class Each:
    """Evaluates `fn`, a function (values of the variables, batch) -> nest of `[rows, ...]`."""

    def __init__(self, model: keras.Model, fn: Callable[[list[tf.Tensor], Any], Any]):
        self._fn = fn
        self._map = _compiled(model, self._of_chunk)

    def __call__(
        self, samples: Sequence[Any], num_chains: int | None, data: Any, batch_size: int
    ) -> Any:
        """Returns values `[num_kept, rows, ...]`, or `[num_kept, num_chains, rows, ...]`."""
        parts = batches(data, batch_size)
        values = [
            joined([self._map(chunk, _tensors(batch)) for batch in parts], axis=1)
            for chunk in chunks(samples, num_chains)
        ]
        flat = joined(values, axis=0)
        if num_chains is None:
            return flat
        return tf.nest.map_structure(lambda y: y.reshape(-1, num_chains, *y.shape[1:]), flat)

    def _of_chunk(self, chunk: list[tf.Tensor], batch: Any) -> Any:
        first = self._fn([v[0] for v in chunk], batch)
        return tf.map_fn(
            lambda values: self._fn(values, batch),
            chunk,
            fn_output_signature=tf.nest.map_structure(tf.TensorSpec.from_tensor, first),
            parallel_iterations=1,
        )


def batches(data: Any, batch_size: int) -> list[Any]:
    """Returns the rows of a nest of arrays in batches of `batch_size`."""
    integer("batch_size", batch_size, 1)
    return [
        keras.tree.map_structure(lambda leaf, start=start: leaf[start : start + batch_size], data)
        for start in range(0, num_rows(data), batch_size)
    ]


def checked_inputs(model: keras.Model, x: Any) -> Any:
    """Returns x if it can be the inputs of the model; raises TypeError or ValueError otherwise."""
    check_arrays("x", x)
    inputs = getattr(model, "inputs", None) or []  # models by subclassing do not say
    leaves = keras.tree.flatten(x)
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
        by_one = abs((found.rank or 0) - (expected.rank or 0)) == 1  # Keras adds or drops an axis
        if not by_one and not expected.is_compatible_with(found):
            raise ValueError(
                f"x must have shape {['rows', *expected]}, as the model's input. Received: shape "
                f"{[*leaves[0].shape]}."
            )
    return x


def check_finite(values: Any, **data: Any) -> None:
    """Raises ValueError for NaN among the results `values` if the `data` are not finite."""
    leaves = [np.asarray(x) for x in tf.nest.flatten(values)]
    if not any(np.isnan(x).any() for x in leaves if x.dtype.kind == "f"):
        return
    for name, nest in data.items():
        for leaf in keras.tree.flatten(nest):
            array = np.asarray(leaf)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                bad = int(np.argwhere(~np.isfinite(array))[0][0])
                raise ValueError(
                    f"{name} must have finite entries. Received: NaN or infinity in row {bad}."
                )


def check_arrays(name: str, data: Any) -> None:
    """Raises TypeError unless `data` is a nest of arrays `[rows, ...]` of numbers."""
    for leaf in keras.tree.flatten(data) or [data]:
        shape = tuple(getattr(leaf, "shape", ()))
        if not hasattr(leaf, "__array__") or not shape or None in shape:
            raise TypeError(
                f"{name} must be an array [rows, ...], or a nest of such arrays. Received: a "
                f"{type(leaf).__name__}."
            )
        if _kind(leaf) in "OcMm":
            raise TypeError(f"{name} must have real numbers as entries. Received: {leaf!r}.")


def _kind(array: Any) -> str:
    """Returns the kind of NumPy dtype of an array, "U" for strings of any dtype."""
    if tf.is_tensor(array):
        return "U" if array.dtype == tf.string else np.dtype(array.dtype.as_numpy_dtype).kind
    if not hasattr(array, "dtype"):  # a table of pandas
        array = np.asarray(array)
    is_text = array.dtype.kind == "O" and all(isinstance(x, str | bytes) for x in array.flat[:1])
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


def chunks(samples: Sequence[Any], num_chains: int | None) -> Iterator[list[tf.Tensor]]:
    """Yields samples `[n * num_chains, ...]`, with n as large as a chunk allows."""
    sizes = [math.prod(s.shape[1:]) * np.dtype(s.dtype).itemsize for s in samples]
    size = max(1, _CHUNK_BYTES // sum(sizes))
    for start in range(0, samples[0].shape[0], size):
        parts = [np.asarray(s[start : start + size]) for s in samples]
        if num_chains is not None:
            parts = [p.reshape(-1, *p.shape[2:]) for p in parts]
        yield [tf.convert_to_tensor(p) for p in parts]


def running_mean(old: Any, new: Any, share: tf.Tensor) -> Any:
    """Returns the mean of nests: the last is `new`, and `old` is the mean of the others.

    `share` is the last one's weight over the sum of all weights.
    """
    return tf.nest.map_structure(lambda m, y: m + tf.cast(share, y.dtype) * (y - m), old, new)


def _shares(weights: np.ndarray | None, num_kept: int, num_chains: int) -> np.ndarray:
    """Returns each sample's weight over the sum of the weights up to it."""
    weights = np.repeat(np.ones([num_kept]) if weights is None else weights, num_chains)
    total = np.cumsum(weights)
    return np.divide(weights, total, out=np.zeros_like(total), where=total > 0)


def wide(values: Any) -> Any:
    """Returns a nest in at least single precision, which means over many samples need."""
    return tf.nest.map_structure(
        lambda y: y if y.dtype == tf.float64 else tf.cast(y, tf.float32), values
    )


def joined(parts: list[Any], axis: int) -> Any:
    """Concatenates nests of tensors leaf by leaf."""
    return tf.nest.map_structure(lambda *p: np.concatenate([*map(np.asarray, p)], axis), *parts)


def _compiled(model: keras.Model, fn: Callable[..., Any]) -> Callable[..., Any]:
    if model.run_eagerly:
        return fn
    functions: dict[Any, Any] = {}

    def call(*arguments: Any) -> Any:
        # A single function would relax shapes of different ranks to an unknown rank.
        key = tuple(len(x.shape) for x in tf.nest.flatten(arguments) if x is not None)
        if key not in functions:
            functions[key] = tf.function(
                fn, autograph=False, jit_compile=model.jit_compile, reduce_retracing=True
            )
        return functions[key](*arguments)

    return call


def _tensors(batch: Any) -> Any:
    return keras.tree.map_structure(tf.convert_to_tensor, batch)
