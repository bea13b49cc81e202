"""Loops over samples of a model's variables, compiled and in bounded memory.

The loops take samples in chunks, and rows in the batches that `batches.py` makes. Only the `shape`,
`dtype` and slices of the samples' arrays are used, so that they may be on disk. The model's
`run_eagerly` and `jit_compile` decide how loops are compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.posterior.batches import Tick, tensors
from tfp_sgmcmc.keras.posterior.sample_arrays import SampleArrays

_CHUNK_BYTES = 2**26  # size of the samples that a compiled function gets at once


class Terms(NamedTuple):
    """Nests of tensors that a sample gives for a batch, to be averaged over samples.

    Attributes:
      values: tensors whose mean and variance are wanted.
      others: tensors whose mean alone is wanted.
      logs: logarithms of tensors whose mean is wanted.
    """

    values: Any = ()
    others: Any = ()
    logs: Any = ()


class Averages(NamedTuple):
    """Running averages of `Terms` by the samples' weights.

    Attributes:
      mean: the mean of `values`.
      variance: their variance (West 1979), with the sum of the weights as divisor.
      others: the mean of `others`.
      maximum: the largest `logs`.
      scaled: the mean of exp(`logs`), divided by exp(`maximum`).
    """

    mean: Any
    variance: Any
    others: Any
    maximum: Any
    scaled: Any


def averaged(
    evaluate: Callable[[Any], Terms], shares: tf.Tensor, averages: Averages | None = None
) -> Averages:
    """Returns averages over the samples that `averages` holds and n further ones.

    Args:
      evaluate: maps the number of a further sample to its terms.
      shares: each further sample's weight over the sum of the weights up to it, `[n]`.
      averages: the averages over earlier samples; None if there are none.
    """
    start = 0
    if averages is None:
        first, start = evaluate(0), 1
        values, others, logs = tf.nest.map_structure(tf.zeros_like, [*first])
        lowest = tf.nest.map_structure(lambda x: x + x.dtype.min, logs)
        averages = _updated(Averages(values, values, others, lowest, logs), first, shares[0])

    def add(i: tf.Tensor, averages: Averages) -> tuple[tf.Tensor, Averages]:
        return i + 1, _updated(averages, evaluate(i), shares[i])

    count = tf.shape(shares)[0]
    return tf.while_loop(lambda i, _: i < count, add, (tf.constant(start), averages))[1]


def averaged_at_once(terms: Terms, shares: tf.Tensor) -> Averages:
    """Returns the averages of `averaged` from the terms of all n samples, stacked on a first axis.

    `terms.logs` must be empty.
    """
    later = tf.math.cumprod(1 - shares, exclusive=True, reverse=True)
    weights = shares * later  # which add up to 1

    def mean(nest: Any) -> Any:
        return tf.nest.map_structure(
            lambda x: tf.tensordot(tf.cast(weights, x.dtype), x, axes=1), nest
        )

    means = mean(terms.values)
    squares = tf.nest.map_structure(lambda x, m: (x - m) ** 2, terms.values, means)
    return Averages(means, mean(squares), mean(terms.others), (), ())


def _updated(old: Averages, new: Terms, share: tf.Tensor) -> Averages:
    nest = tf.nest.map_structure

    def mean(old: Any, new: Any) -> Any:
        return nest(lambda m, y: m + tf.cast(share, y.dtype) * (y - m), old, new)

    means = mean(old.mean, new.values)
    squares = nest(lambda y, m, n: (y - m) * (y - n), new.values, old.mean, means)
    maximum = nest(tf.maximum, old.maximum, new.logs)
    before = nest(lambda p, m, n: p * tf.exp(m - n), old.scaled, old.maximum, maximum)
    scaled = nest(lambda x, n: tf.exp(x - n), new.logs, maximum)
    return Averages(
        means,
        mean(old.variance, squares),
        mean(old.others, new.others),
        maximum,
        mean(before, scaled),
    )


class AverageSamples:
    """Averages the terms that a function (values of the variables, batch) -> `Terms` returns."""

    def __init__(self, model: keras.Model, fn: Callable[[list[tf.Tensor], Any], Terms]):
        self._fn = fn
        self._add = _compiled(model, self._add_chunk)

    def __call__(self, samples: SampleArrays, parts: list[Any], tick: Tick) -> list[Averages]:
        """Returns the averages over all samples for each batch of `parts`."""
        averages: list[Any] = [None] * len(parts)
        shares, start = samples.running_shares(), 0
        for chunk in chunks(samples):
            end = start + chunk[0].shape[0]
            share = tf.constant(shares[start:end])
            for i, batch in enumerate(parts):
                averages[i] = self._add(averages[i], chunk, share, tensors(batch))
                tick((start + (end - start) * (i + 1) / len(parts)) / len(shares))
            start = end
        return averages

    def _add_chunk(
        self, averages: Averages | None, chunk: list[tf.Tensor], shares: tf.Tensor, batch: Any
    ) -> Averages:
        return averaged(lambda i: self._fn([v[i] for v in chunk], batch), shares, averages)


class MapSamples:
    """Evaluates `fn`, a function (values of the variables, batch) -> nest of `[rows, ...]`."""

    def __init__(self, model: keras.Model, fn: Callable[[list[tf.Tensor], Any], Any]):
        self._fn = fn
        self._map = _compiled(model, self._map_chunk)

    def __call__(self, samples: SampleArrays, parts: list[Any], tick: Tick) -> Any:
        """Returns values `[num_kept, rows, ...]`, or `[num_kept, num_chains, rows, ...]`."""
        values, done = [], 0
        num_chains = samples.num_chains
        total = samples.num_kept * (num_chains or 1)
        for chunk in chunks(samples):
            values.append(joined([self._map(chunk, tensors(batch)) for batch in parts], axis=1))
            done += chunk[0].shape[0]
            tick(done / total)
        flat = joined(values, axis=0)
        if num_chains is None:
            return flat
        return tf.nest.map_structure(lambda y: y.reshape(-1, num_chains, *y.shape[1:]), flat)

    def _map_chunk(self, chunk: list[tf.Tensor], batch: Any) -> Any:
        first = self._fn([v[0] for v in chunk], batch)
        return tf.map_fn(
            lambda values: self._fn(values, batch),
            chunk,
            fn_output_signature=tf.nest.map_structure(tf.TensorSpec.from_tensor, first),
            parallel_iterations=1,
        )


def chunks(samples: SampleArrays) -> Iterator[list[tf.Tensor]]:
    """Yields samples `[n * num_chains, ...]`, with n as large as a chunk allows."""
    sizes = [math.prod(x.shape[1:]) * np.dtype(x.dtype).itemsize for x in samples.arrays]
    size = max(1, _CHUNK_BYTES // sum(sizes))
    for start in range(0, samples.num_kept, size):
        parts = [np.asarray(x[start : start + size]) for x in samples.arrays]
        yield [tf.convert_to_tensor(samples.flat(x)) for x in parts]


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
