"""Noise that takes three values and has the moments of a normal up to the fifth.

Weak schemes of first and second order need no more of their noise than these moments (Kloeden &
Platen 1992, section 14.2). A number costs a hash of its position and two comparisons. Under XLA on
a CPU that takes 0.6 to 1 ns, a normal 2 to 3, and a word of Threefry alone 1 to 2. Several numbers
from one word would cost more there, because XLA computes the word anew for each number.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal.nest import static_or_dynamic_shape
from tfp_sgmcmc.random.normals import map_with_seeds, row_and_column
from tfp_sgmcmc.random.seeds import as_seed, hashed_words

_SIXTH = 715_827_883  # 2^32 / 6 = 715,827,882.67, rounded


def three_point(shape: Any, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    r"""Draws 0 with probability 2/3, and \( \pm\sqrt3 \) with probability 1/6 each.

    The moments 1 to 6 are 0, 1, 0, 3, 0 and 9; a normal's sixth is 15. Of the 2^32 words,
    715,827,883 give each sign. The odd moments are therefore exactly 0, and the even ones are
    larger by a factor of 1 + 2^-31, less than `float32` resolves. The numbers are the same in every
    mode, on every device.
    """
    rows, columns = row_and_column(shape)
    key = tf.unstack(tf.bitcast(as_seed(seed), tf.uint32))
    counters = rows * tf.cast(tf.size(columns), tf.uint32) + columns
    return tf.reshape(_values(hashed_words((key[0], key[1]), counters), dtype), shape)


def three_point_like(state: Any, seed: tf.Tensor) -> Any:
    """Draws three-point numbers in the structure, shapes and dtypes of `state`."""
    return map_with_seeds(
        lambda x, s: three_point(static_or_dynamic_shape(x), x.dtype, s), state, seed
    )


def _values(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Maps the lowest sixth of the words, as signed integers, to -sqrt 3, the highest to sqrt 3."""
    signed, root = tf.bitcast(words, tf.int32), tf.constant(math.sqrt(3), dtype)
    positive = tf.where(signed >= 2**31 - _SIXTH, root, tf.zeros([], dtype))
    return tf.where(signed < _SIXTH - 2**31, -root, positive)
