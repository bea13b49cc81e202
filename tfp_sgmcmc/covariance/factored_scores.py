"""Scores of a layer's weights as factors, so that variances need no score in memory."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_CHUNK = 2**21  # numbers of single scores that may be in memory at once
_PASSES = 20  # over the scores, which their Gram matrix saves


class FactoredScores(abc.ABC):
    """Scores of one state part, `[chains..., n, event...]`, that no tensor holds.

    A leaf of `GradientEstimate.scores`. `Diag` uses `variances`; other estimators use `rows`.

    Args:
      inputs: the inputs of the layer, `[chains..., n, positions, ...]`.
      gradients: gradients of the log likelihood with respect to the layer's pre-activation,
        `[chains..., n, positions, outputs]`.
      event_shape: shape of the weights; the outputs are its last axis.
      scale: a number that multiplies the scores.
    """

    def __init__(self, inputs: tf.Tensor, gradients: tf.Tensor, event_shape: Any, scale: Any = 1.0):
        self._inputs, self._gradients, self._scale = inputs, gradients, scale
        self._event_shape = tf.TensorShape(event_shape).as_list()
        self._axis = gradients.shape.rank - 3  # axis of the examples

    @property
    def num_rows(self) -> Any:
        """n: an integer if it is known, otherwise a tensor."""
        return self._gradients.shape[self._axis] or tf.shape(self._gradients)[self._axis]

    def rows(self) -> tf.Tensor:
        """Returns the scores, `[chains..., n, event...]`."""
        x = self._scale * self._rows(self._inputs, self._gradients)
        return tf.reshape(x, tf.concat([tf.shape(x)[:-2], self._event_shape], axis=0))

    def variances(self) -> tf.Tensor:
        r"""Returns the sample variances of the scores, `[chains..., D]`.

        \[
        \frac{1}{n-1} \Bigl( \sum_i s_i^2 - n \bar s^2 \Bigr)
        \]

        Their relative error in single precision is about 1e-7 (1 + mean^2 / variance).
        """
        n = tf.cast(self.num_rows, self._gradients.dtype)
        total = self._scale**2 * self._sum_of_squares()
        variances = (total - n * self._mean() ** 2) / (n - 1)
        # Rounding may make some negative. NaN must stay.
        variances = tf.where(variances < 0, tf.zeros_like(variances), variances)
        size = math.prod(self._event_shape)
        return tf.reshape(variances, tf.concat([tf.shape(variances)[:-2], [size]], axis=0))

    @abc.abstractmethod
    def _rows(self, inputs: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
        """Returns scores of a chunk before scaling, `[chains..., n, inputs, outputs]`."""

    @abc.abstractmethod
    def _sum(self) -> tf.Tensor:
        """Returns the sum over all examples before scaling, `[chains..., inputs, outputs]`."""

    @abc.abstractmethod
    def _sum_of_squares(self) -> tf.Tensor:
        """Returns the sum of squares before scaling, `[chains..., inputs, outputs]`."""

    def _mean(self) -> tf.Tensor:
        return self._scale * self._sum() / tf.cast(self.num_rows, self._gradients.dtype)

    def _sum_over_chunks(
        self, fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], numbers: int
    ) -> tf.Tensor:
        """Sums `fn(inputs, gradients)` over chunks; each example takes `numbers` in memory."""
        chains = math.prod(n or 1 for n in self._gradients.shape[: self._axis])
        size, n = max(1, _CHUNK // (chains * numbers)), self.num_rows
        if isinstance(n, int) and n <= size:
            return fn(self._inputs, self._gradients)
        if not isinstance(n, int):
            size = tf.minimum(size, n)  # XLA compiles the loop's body even if it never runs
        first = (n - 1) % size + 1

        def chunk(start: Any, size: Any) -> tf.Tensor:
            return fn(*(self._slice(x, start, size) for x in (self._inputs, self._gradients)))

        _, total = tf.while_loop(
            lambda start, _: start < n,
            lambda start, total: (start + size, total + chunk(start, size)),
            (tf.convert_to_tensor(first), chunk(0, first)),
            parallel_iterations=1,
        )
        return total

    def _slice(self, x: tf.Tensor, start: Any, size: Any) -> tf.Tensor:
        shape, begin = tf.unstack(tf.shape(x)), [0] * x.shape.rank
        shape[self._axis], begin[self._axis] = size, start
        sliced = tf.slice(x, begin, shape)
        size = size if isinstance(size, int) else None
        return tf.ensure_shape(sliced, [*x.shape[: self._axis], size, *x.shape[self._axis + 1 :]])


class OuterProducts(FactoredScores):
    r"""Scores of a matrix of weights, \( s_i = \sum_p a_{ip} d_{ip}^T \).

    a are the inputs, `[chains..., n, positions, inputs]`, and d the gradients. A dense layer has
    one position, and its sum of squares is \( (a^2)^T d^2 \). With more positions (a dense layer
    along a sequence; a convolution, whose inputs are patches) the sum is taken over chunks of
    examples. Arguments are those of `FactoredScores`.

    Examples:
      >>> import tensorflow as tf
      >>> a, d = tf.constant([[[1., 2.]], [[3., 5.]]]), tf.constant([[[1.]], [[-1.]]])
      >>> scores = OuterProducts(a, d, [2, 1])
      >>> scores.rows()[..., 0].numpy().tolist(), scores.variances().numpy().tolist()
      ([[1.0, 2.0], [-3.0, -5.0]], [8.0, 24.5])
    """

    def _rows(self, inputs: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matmul(inputs, gradients, transpose_a=True)

    def _sum(self) -> tf.Tensor:
        a, d = self._merged(self._inputs), self._merged(self._gradients)
        return tf.linalg.matmul(a, d, transpose_a=True)

    def _sum_of_squares(self) -> tf.Tensor:
        if self._gradients.shape[-2] == 1:
            squares = (tf.square(self._merged(x)) for x in (self._inputs, self._gradients))
            return tf.linalg.matmul(*squares, transpose_a=True)
        return self._sum_over_chunks(
            lambda a, d: tf.reduce_sum(tf.square(self._rows(a, d)), axis=self._axis),
            math.prod(self._event_shape),
        )

    def gram(self) -> tf.Tensor | None:
        r"""Returns the products of all pairs of scores, `[chains..., n, n]`, or None.

        With one position \( s_i \cdot s_j = (a_i \cdot a_j)(d_i \cdot d_j) \), so that no score is
        in memory. Returns None for more positions, and where some passes over the scores take less
        time.
        """
        n, (height, width) = self._gradients.shape[self._axis] or 1, self._event_shape
        if self._gradients.shape[-2] != 1 or n * (height + width) > _PASSES * height * width:
            return None
        parts = (self._merged(x) for x in (self._inputs, self._gradients))
        inputs, gradients = (tf.linalg.matmul(x, x, transpose_b=True) for x in parts)
        return self._scale**2 * inputs * gradients

    def _merged(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `x` with examples and positions on one axis."""
        return tf.reshape(x, tf.concat([tf.shape(x)[: self._axis], [-1, x.shape[-1]]], axis=0))


class EmbeddingScores(FactoredScores):
    r"""Scores of a table in which each example looks up some rows.

    \[
    (s_i)_v = \sum_{p \,:\, v_{ip} = v} d_{ip}
    \]

    is row v of the score of example i, whose position p looks up the row \( v_{ip} \). The inputs
    are these indices, `[chains..., n, positions]`. Arguments are those of `FactoredScores`.

    Examples:
      >>> import tensorflow as tf
      >>> indices, d = tf.constant([[0, 0], [2, 0]]), tf.constant([[[1.], [2.]], [[4.], [1.]]])
      >>> EmbeddingScores(indices, d, [3, 1]).rows()[..., 0].numpy().tolist()
      [[3.0, 0.0, 0.0], [1.0, 0.0, 4.0]]
    """

    def _rows(self, inputs: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
        return self._added(inputs, gradients, self._axis + 1)

    def _sum(self) -> tf.Tensor:
        return self._added(self._inputs, self._gradients, self._axis)

    def _sum_of_squares(self) -> tf.Tensor:
        positions = self._gradients.shape[-2]
        if positions == 1:
            return self._added(self._inputs, tf.square(self._gradients), self._axis)

        def chunk(indices: tf.Tensor, d: tf.Tensor) -> tf.Tensor:
            same = tf.equal(indices[..., tf.newaxis], indices[..., tf.newaxis, :])
            same = tf.cast(same, d.dtype)
            count = tf.reduce_sum(same, axis=-1, keepdims=True)
            # All `count` positions that look up a row have the score of that row.
            return self._added(indices, tf.square(tf.matmul(same, d)) / count, self._axis)

        numbers = (positions or 1) * (positions or 1) + (positions or 1) * self._event_shape[-1]
        return self._sum_over_chunks(chunk, numbers)

    def _added(self, indices: tf.Tensor, values: tf.Tensor, ndims: int) -> tf.Tensor:
        """Returns a table of the sums of `values` for each index of the `ndims` leading axes."""
        height, width = self._event_shape
        leading = tf.shape(indices)[:ndims]
        count = tf.reduce_prod(leading)
        indices = tf.reshape(indices, [count, -1])
        offsets = height * tf.range(count, dtype=indices.dtype)[:, tf.newaxis]
        table = tf.math.unsorted_segment_sum(
            tf.reshape(values, [-1, width]), tf.reshape(indices + offsets, [-1]), count * height
        )
        return tf.reshape(table, tf.concat([leading, [height, width]], axis=0))


def count_rows(scores: Any, chain_ndims: int) -> Any:
    """Returns n for the scores of a part, `[chains..., n, event...]`: an integer or a tensor."""
    if isinstance(scores, FactoredScores):
        return scores.num_rows
    return scores.shape[chain_ndims] or tf.shape(scores)[chain_ndims]


def pad_rows(rows: tf.Tensor, num_rows: int) -> tf.Tensor:
    """Appends rows of zeros up to `[chains..., num_rows, D]`; raises ValueError for too many."""
    *leading, given, size = rows.shape
    if given == num_rows:
        return rows
    if given is not None and given > num_rows:
        raise ValueError(
            f"A minibatch must have at most {num_rows} scores, the number that "
            f"covariance='low_rank' was started with. Received: {given}."
        )
    padding = [[0, 0]] * len(leading) + [[0, num_rows - tf.shape(rows)[-2]], [0, 0]]
    return tf.ensure_shape(tf.pad(rows, padding), [*leading, num_rows, size])
