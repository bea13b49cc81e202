"""Rows of the data that some chains never see, told by a hash of a row's inputs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.random.indices import hashed_words, mix, word


class RowsOfChains:
    r"""Decides by a hash of a row's inputs which chains see the row.

    A row with a hash below the `bound` belongs to the pool. A second hash gives it a fold f, and
    the chains f and f + 1 (modulo C) never see it. A row is known by its inputs alone, so the
    chains miss the same rows whatever the order, the batches and the replicas are, and copies of
    a row are missed with it. Inputs must reach the model unchanged: rows that are augmented before
    have no identity.

    Attributes:
      bound: hashes below belong to the pool, in 0 .. 2^32.
      num_chains: C, at least 3.
      key: one of 2^32 ways to choose the rows.
      num_seen: the number of rows that each chain sees in an epoch, `[C]`.
      mean_weight: the mean of the rows' weights, by which they are divided: weights count relative
        to their mean.
    """

    def __init__(
        self,
        bound: int,
        num_chains: int,
        key: int,
        num_seen: np.ndarray,
        mean_weight: float = 1.0,
    ):
        self.bound, self.num_chains, self.key = bound, num_chains, key
        self.num_seen = np.asarray(num_seen, np.float32)
        self.mean_weight = mean_weight

    def seen(self, x: Any) -> tf.Tensor:
        """Returns 1 for rows of a batch that a chain sees and 0 for the others, `[C, rows]`."""
        hashes = row_hashes(x, self.key)
        is_missed = _misses(folds(hashes, self.num_chains), self.num_chains)
        return tf.where(is_missed & (hashes < self.bound), 0.0, 1.0)


def row_hashes(x: Any, key: int) -> tf.Tensor:
    """Returns a hash of each row of a nest of inputs, integers in 0 .. 2^32 - 1, `[rows]`.

    Floats are hashed in single precision. Zeros at the end of a row, such as the padding of a
    sequence, do not count.
    """
    total = mix(word(key))
    for place, leaf in enumerate(keras.tree.flatten(x)):
        words = _words(tf.convert_to_tensor(leaf))
        columns = tf.cast(tf.range(tf.shape(words)[1]), tf.uint32)
        factors = tf.bitwise.bitwise_or(hashed_words((word(place), word(0)), columns), word(1))
        # Sums of integers wrap around in two's complement.
        parts = tf.bitcast(mix(words) * factors, tf.int32)
        total += tf.bitcast(tf.reduce_sum(parts, axis=1), tf.uint32)
    return tf.cast(mix(total), tf.int64)


def folds(hashes: tf.Tensor, num_chains: int) -> tf.Tensor:
    """Returns the folds of rows, in 0 .. C - 1, `[rows]`."""
    words = mix(tf.cast(hashes, tf.uint32) + word(1))
    return tf.cast(words, tf.int64) % num_chains


def num_missed(fold: np.ndarray, num_chains: int) -> np.ndarray:
    """Returns how many rows of a pool each chain never sees, `[C]`."""
    return np.asarray(_misses(tf.constant(fold, tf.int64), num_chains)).sum(axis=1)


def _misses(fold: tf.Tensor, num_chains: int) -> tf.Tensor:
    """Returns whether a chain misses the pool's rows of these folds, `[C, rows]`."""
    chains = tf.range(num_chains, dtype=tf.int64)[:, tf.newaxis]
    return (chains - fold) % num_chains < 2


def _words(leaf: tf.Tensor) -> tf.Tensor:
    """Returns a tensor `[rows, ...]` as words of 32 bits, `[rows, entries]`."""
    if leaf.dtype == tf.string:
        words = tf.cast(tf.strings.to_hash_bucket_fast(leaf, 2**31 - 1), tf.uint32)
    elif leaf.dtype.is_floating:
        words = tf.bitcast(tf.cast(leaf, tf.float32), tf.uint32)
    else:
        words = tf.cast(tf.cast(leaf, tf.int64), tf.uint32)
    return tf.reshape(words, [tf.shape(words)[0], -1])
