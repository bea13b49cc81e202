"""Seeds, each two 32-bit integers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.checks import integer


def fresh_seed() -> int:
    """Returns an unused seed, drawn from Python's generator as Keras draws its default seeds.

    `keras.utils.set_random_seed` seeds that generator, so that a program that calls it gets the
    same seeds each time it runs. Otherwise the system has seeded it.

    >>> import keras
    >>> keras.utils.set_random_seed(1)
    >>> first, second = fresh_seed(), fresh_seed()
    >>> keras.utils.set_random_seed(1)
    >>> first == fresh_seed(), first == second
    (True, False)
    """
    return random.getrandbits(63)


def as_seed(seed: Any) -> tf.Tensor:
    """Returns `seed`, an integer or two integers, as an `int32` tensor of shape `[2]`.

    Raises ValueError for anything else, and for None, because no hidden global state is used.
    """
    if seed is None:
        raise ValueError(
            "seed must be an integer or a pair of integers. Received: None. A step draws all of "
            "its random numbers from its seed. Pass one, as in tfp.mcmc.sample_chain(..., seed=0)."
        )
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        words = np.array([int(seed) >> shift & 0xFFFFFFFF for shift in (32, 0)], np.uint32)
        return tf.constant(words.astype(np.int32))
    try:
        seed = tf.convert_to_tensor(seed)
    except (TypeError, ValueError) as error:
        raise ValueError(f"seed must be an integer or two integers. Received: {seed!r}.") from error
    if seed.dtype.is_integer and seed.shape.rank == 0:
        wide = tf.cast(seed, tf.int64)
        seed = tf.stack([tf.bitwise.right_shift(wide, tf.constant(32, tf.int64)), wide])
    if not seed.dtype.is_integer or not seed.shape.is_compatible_with([2]):
        raise ValueError(
            "seed must be an integer or two integers (shape [2]). "
            f"Received: dtype {seed.dtype.name}, shape {seed.shape}."
        )
    return tf.cast(seed, tf.int32)


def integers_of(seed: tf.Tensor) -> tuple[int, int]:
    """Returns the two integers of a seed."""
    first, second = seed.numpy().tolist()
    return first, second


def split(seed: tf.Tensor, num: int) -> list[tf.Tensor]:
    """Returns `num` seeds that are independent of each other, made from `seed`."""
    integer("num", num, least=1)
    return tf.unstack(tf.random.split(as_seed(seed), num=num, alg=xla.random_algorithm()))


def fold_in(seed: tf.Tensor, data: Any) -> tf.Tensor:
    """Returns the seed of number `data` in the sequence that `seed` starts."""
    return tf.random.fold_in(as_seed(seed), tf.cast(data, tf.int32), alg=xla.random_algorithm())


def numbered_seed(seed: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Returns a seed `[..., 2]` for each of the `int32` numbers, the same in every mode.

    Use it for indices, whose functions hash their seeds. Everything else takes `fold_in`.
    """
    high = seed[0] + tf.zeros_like(numbers)
    return tf.stack([high, tf.bitwise.bitwise_xor(seed[1], numbers)], axis=-1)
