"""Compiled loops over samples of a model's variables, in bounded memory.

The loops take samples in chunks, and rows in the batches that `batches.py` makes. Samples are
arrays `[num_kept, ...]`, or `[num_kept, num_chains, ...]` with chains. Only their `shape`, `dtype`
and slices are used, so that they may be on disk. The model's `run_eagerly` and `jit_compile` decide
how loops are compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.posterior.batches import Tick, tensors

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
        parts: list[Any],
        weights: np.ndarray | None,
        tick: Tick,
    ) -> list[Any]:
        """Returns the final state for each batch of `parts`.

        `weights`, `[num_kept]`, are those of the samples; None weights all by 1.
        """
        states: list[Any] = [None] * len(parts)
        shares, start = running_shares(weights, samples[0].shape[0], num_chains), 0
        for chunk in chunks(samples, num_chains):
            end = start + chunk[0].shape[0]
            share = tf.constant(shares[start:end])
            for i, batch in enumerate(parts):
                states[i] = self._add(states[i], chunk, share, tensors(batch))
                tick((start + (end - start) * (i + 1) / len(parts)) / len(shares))
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
        self, samples: Sequence[Any], num_chains: int | None, parts: list[Any], tick: Tick
    ) -> Any:
        """Returns values `[num_kept, rows, ...]`, or `[num_kept, num_chains, rows, ...]`."""
        values, done = [], 0
        total = samples[0].shape[0] * (num_chains or 1)
        for chunk in chunks(samples, num_chains):
            values.append(joined([self._map(chunk, tensors(batch)) for batch in parts], axis=1))
            done += chunk[0].shape[0]
            tick(done / total)
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


def chunks(samples: Sequence[Any], num_chains: int | None) -> Iterator[list[tf.Tensor]]:
    """Yields samples `[n * num_chains, ...]`, with n as large as a chunk allows."""
    sizes = [math.prod(s.shape[1:]) * np.dtype(s.dtype).itemsize for s in samples]
    size = max(1, _CHUNK_BYTES // sum(sizes))
    for start in range(0, samples[0].shape[0], size):
        parts = [np.asarray(s[start : start + size]) for s in samples]
        if num_chains is not None:
            parts = [p.reshape(-1, *p.shape[2:]) for p in parts]
        yield [tf.convert_to_tensor(p) for p in parts]


def flat_samples(values: np.ndarray, num_chains: int | None) -> np.ndarray:
    """Returns values of all samples, `[S, ...]`, without an axis of chains."""
    return values if num_chains is None else values.reshape(-1, *values.shape[2:])


def sample_shares(weights: np.ndarray | None, num_kept: int, num_chains: int | None) -> np.ndarray:
    """Returns the weights of all samples, `[S]`, which add up to 1."""
    each = np.repeat(np.ones([num_kept]) if weights is None else weights, num_chains or 1)
    return each / each.sum()


def running_mean(old: Any, new: Any, share: tf.Tensor) -> Any:
    """Returns the mean of nests: the last is `new`, and `old` is the mean of the others.

    `share` is the last one's weight over the sum of all weights.
    """
    return tf.nest.map_structure(lambda m, y: m + tf.cast(share, y.dtype) * (y - m), old, new)


def running_shares(weights: np.ndarray | None, num_kept: int, num_chains: int | None) -> np.ndarray:
    """Returns each sample's weight over the sum of the weights up to it, `[S]`."""
    weights = np.repeat(np.ones([num_kept]) if weights is None else weights, num_chains or 1)
    total = np.cumsum(weights)
    return np.divide(weights, total, out=np.zeros_like(total), where=total > 0)


def wide(values: Any) -> Any:
    """Returns a nest in at least single precision, which means over many samples need."""
    return tf.nest.map_structure(
        lambda y: y if y.dtype == tf.float64 else tf.cast(y, tf.float32), values
    )


def joined(parts: list[Any], axis: int) -> Any:
    """Concatenates nests of tensors leaf by leaf.

    Raises:
      ValueError: shapes differ along other axes.
    """
    for leaves in zip(*map(tf.nest.flatten, parts), strict=True):
        shapes = {(*x.shape[:axis], *x.shape[axis + 1 :]): tuple(x.shape) for x in leaves}
        if len(shapes) > 1:
            raise ValueError(
                "All batches must give outputs of one shape, apart from the number of rows. "
                f"Received: {', '.join(map(str, shapes.values()))}. Predict such data batch by "
                "batch, or pad them to one length."
            )
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
