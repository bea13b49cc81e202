"""Posterior predictive mean and standard deviation of a model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras import losses

_CHUNK_BYTES = 2**26  # samples handed to the compiled function at once


class Prediction(NamedTuple):
    """Posterior average of a model's outputs, and their spread from sample to sample.

    Attributes:
      mean: average over samples, in the structure of the outputs, `[rows, ...]`.
      standard_deviation: over samples (divisor: their number); the uncertainty about the weights,
        not the noise of an observation.
    """

    mean: Any
    standard_deviation: Any


class Moments(NamedTuple):
    """Running count, mean and sum of squared deviations (Welford 1962)."""

    count: tf.Tensor
    mean: Any
    squares: Any


class Predictor:
    """Averages `activation(model(x))` over samples of the model's variables.

    Args:
      model: compiled, built.
      variables: those that are sampled.
      activation: "auto", None or a callable on the outputs; see `SamplerCallback.predict`.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: list[keras.Variable],
        activation: Callable[[Any], Any] | str | None,
    ):
        if isinstance(activation, str) and activation != "auto":
            raise ValueError(
                f"activation is {activation!r}; 'auto', None or a callable is expected."
            )
        self._model, self._variables, self._activation = model, variables, activation
        self._add, self._each = self._add_samples, self._outputs_of_samples
        if not model.run_eagerly:
            compiled = {"jit_compile": model.jit_compile, "reduce_retracing": True}
            self._add = tf.function(self._add, autograph=False, **compiled)
            self._each = tf.function(self._each, autograph=False, **compiled)

    def __call__(self, samples: list[np.ndarray], x: Any, batch_size: int) -> Prediction:
        """Predicts from samples `[num_samples, ...]` for inputs `[rows, ...]`."""
        batches = _batches(x, batch_size)
        moments: list[Any] = [None] * len(batches)  # then Moments
        for chunk in _chunks(samples):
            for b, batch in enumerate(batches):
                moments[b] = self._add(moments[b], chunk, _tensors(batch))
        mean = _joined([m.mean for m in moments], axis=0)
        squares = _joined([m.squares for m in moments], axis=0)
        num_samples = len(samples[0])
        deviation = tf.nest.map_structure(lambda s: np.sqrt(s / num_samples), squares)
        return Prediction(mean, deviation)

    def outputs(self, samples: list[np.ndarray], x: Any, batch_size: int) -> Any:
        """The outputs of each sample, `[num_samples, rows, ...]`."""
        batches = _batches(x, batch_size)
        chunks = [
            _joined([self._each(chunk, _tensors(batch)) for batch in batches], axis=1)
            for chunk in _chunks(samples)
        ]
        return _joined(chunks, axis=0)

    def _output(self, values: list[tf.Tensor], batch: Any) -> Any:
        forward = losses.forward(self._model, self._variables, values, batch, training=False)
        if self._activation == "auto":
            return losses.activate(self._model, forward.outputs)
        return self._activation(forward.outputs) if callable(self._activation) else forward.outputs

    def _outputs_of_samples(self, chunk: list[tf.Tensor], batch: Any) -> Any:
        first = self._output([v[0] for v in chunk], batch)
        return tf.map_fn(
            lambda values: self._output(values, batch),
            chunk,
            fn_output_signature=tf.nest.map_structure(tf.TensorSpec.from_tensor, first),
            parallel_iterations=1,
        )

    def _add_samples(self, moments: Moments | None, chunk: list[tf.Tensor], batch: Any) -> Moments:
        if moments is None:
            first = self._output([v[0] for v in chunk], batch)
            zeros = tf.nest.map_structure(tf.zeros_like, first)
            moments = Moments(tf.zeros([], tf.int32), zeros, zeros)

        def add(i: tf.Tensor, old: Moments) -> tuple[tf.Tensor, Moments]:
            y = self._output([v[i] for v in chunk], batch)
            count = old.count + 1
            mean = tf.nest.map_structure(
                lambda m, v: m + (v - m) / tf.cast(count, v.dtype), old.mean, y
            )
            squares = tf.nest.map_structure(
                lambda s, v, m, n: s + (v - m) * (v - n), old.squares, y, old.mean, mean
            )
            return i + 1, Moments(count, mean, squares)

        size = tf.shape(chunk[0])[0]
        return tf.while_loop(lambda i, _: i < size, add, (tf.constant(0), moments))[1]


def _batches(x: Any, batch_size: int) -> list[Any]:
    rows = {len(leaf) for leaf in keras.tree.flatten(x)}
    if len(rows) != 1 or 0 in rows:
        raise ValueError(f"x has {sorted(rows)} rows; one number, at least 1, is expected.")
    return [
        keras.tree.map_structure(lambda leaf, start=start: leaf[start : start + batch_size], x)
        for start in range(0, *rows, batch_size)
    ]


def _chunks(samples: list[np.ndarray]) -> Iterator[list[tf.Tensor]]:
    size = max(1, _CHUNK_BYTES // sum(s[0].nbytes for s in samples))
    for start in range(0, len(samples[0]), size):
        yield [tf.convert_to_tensor(s[start : start + size]) for s in samples]


def _tensors(batch: Any) -> Any:
    return keras.tree.map_structure(tf.convert_to_tensor, batch)


def _joined(parts: list[Any], axis: int) -> Any:
    """Nests of tensors, concatenated leaf by leaf."""
    return tf.nest.map_structure(lambda *p: np.concatenate([*map(np.asarray, p)], axis), *parts)
