"""Compiled loops over samples of a model's variables, in bounded memory.

Samples come in chunks and rows in batches. Samples are arrays `[num_kept, ...]`, with chains
`[num_kept, num_chains, ...]`, of which only `shape`, `dtype` and slices are used, so that they may
lie on a disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.checks import integer

_CHUNK_BYTES = 2**26  # samples handed to a compiled function at once


class Fold:
    """Carries a state through all samples, for each batch of rows.

    Args:
      model: compiled functions are compiled as it is.
      update: state, values of the variables, batch -> state; of the state None it makes the first
        one, which counts no sample.
    """

    def __init__(self, model: keras.Model, update: Callable[[Any, list[tf.Tensor], Any], Any]):
        self._update = update
        self._add = _compiled(model, self._add_chunk)

    def __call__(
        self, samples: Sequence[Any], num_chains: int | None, data: Any, batch_size: int
    ) -> list[Any]:
        """The last state of each batch of the rows of `data`."""
        parts = batches(data, batch_size)
        states: list[Any] = [None] * len(parts)
        for chunk in chunks(samples, num_chains):
            states = [
                self._add(state, chunk, _tensors(batch))
                for state, batch in zip(states, parts, strict=True)
            ]
        return states

    def _add_chunk(self, state: Any, chunk: list[tf.Tensor], batch: Any) -> Any:
        if state is None:
            state = self._update(None, [v[0] for v in chunk], batch)

        def add(i: tf.Tensor, old: Any) -> tuple[tf.Tensor, Any]:
            return i + 1, self._update(old, [v[i] for v in chunk], batch)

        size = tf.shape(chunk[0])[0]
        return tf.while_loop(lambda i, _: i < size, add, (tf.constant(0), state))[1]


class Each:
    """Evaluates a function for each sample and each batch of rows.

    Args:
      model: compiled functions are compiled as it is.
      fn: values of the variables, batch -> nest of tensors `[rows, ...]`.
    """

    def __init__(self, model: keras.Model, fn: Callable[[list[tf.Tensor], Any], Any]):
        self._fn = fn
        self._map = _compiled(model, self._of_chunk)

    def __call__(
        self, samples: Sequence[Any], num_chains: int | None, data: Any, batch_size: int
    ) -> Any:
        """Values `[num_kept, rows, ...]`, with chains `[num_kept, num_chains, rows, ...]`."""
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
    """Rows of a nest of arrays, `batch_size` at a time.

    Raises:
      ValueError: arrays of different lengths, or empty; `batch_size` below 1.
      TypeError: what is no array; `batch_size` is no integer.
    """
    integer("batch_size", batch_size, 1)
    return [
        keras.tree.map_structure(lambda leaf, start=start: leaf[start : start + batch_size], data)
        for start in range(0, num_rows(data), batch_size)
    ]


def num_rows(data: Any) -> int:
    """Rows of a nest of arrays.

    Raises:
      TypeError: what is no array.
      ValueError: arrays of different lengths, or empty.
    """
    leaves = keras.tree.flatten(data)
    for leaf in leaves:
        if not getattr(leaf, "shape", ()):
            raise TypeError(
                f"The data hold a {type(leaf).__name__}; an array [rows, ...], or a nest of such "
                "arrays, is expected."
            )
    rows = {leaf.shape[0] for leaf in leaves}
    if len(rows) != 1 or 0 in rows:
        raise ValueError(f"The data have {sorted(rows)} rows; one number, at least 1, is expected.")
    return rows.pop()


def chunks(samples: Sequence[Any], num_chains: int | None) -> Iterator[list[tf.Tensor]]:
    """Samples `[n * num_chains, ...]`, some n at a time, as many as a chunk holds."""
    size = max(1, _CHUNK_BYTES // sum(bytes_of_one(s) for s in samples))
    for start in range(0, samples[0].shape[0], size):
        parts = [np.asarray(s[start : start + size]) for s in samples]
        if num_chains is not None:
            parts = [p.reshape(-1, *p.shape[2:]) for p in parts]
        yield [tf.convert_to_tensor(p) for p in parts]


def bytes_of_one(samples: Any) -> int:
    """Size of one entry along the first axis."""
    return math.prod(samples.shape[1:]) * np.dtype(samples.dtype).itemsize


def running_mean(old: Any, new: Any, count: tf.Tensor) -> Any:
    """Mean of `count` nests, of which `new` is the last and `old` the mean of those before."""
    return tf.nest.map_structure(lambda m, y: m + (y - m) / tf.cast(count, y.dtype), old, new)


def wide(values: Any) -> Any:
    """A nest in at least single precision, as means over many samples need it."""
    return tf.nest.map_structure(
        lambda y: y if y.dtype == tf.float64 else tf.cast(y, tf.float32), values
    )


def joined(parts: list[Any], axis: int) -> Any:
    """Nests of tensors, concatenated leaf by leaf."""
    return tf.nest.map_structure(lambda *p: np.concatenate([*map(np.asarray, p)], axis), *parts)


def _compiled(model: keras.Model, fn: Callable[..., Any]) -> Callable[..., Any]:
    if model.run_eagerly:
        return fn
    functions: dict[Any, Any] = {}

    def call(*arguments: Any) -> Any:
        # One for each combination of ranks: of two ranks a single function would make none.
        key = tuple(len(x.shape) for x in tf.nest.flatten(arguments) if x is not None)
        if key not in functions:
            functions[key] = tf.function(
                fn, autograph=False, jit_compile=model.jit_compile, reduce_retracing=True
            )
        return functions[key](*arguments)

    return call


def _tensors(batch: Any) -> Any:
    return keras.tree.map_structure(tf.convert_to_tensor, batch)
