"""Arithmetic of 32-bit words: the parts that generators of normals and of indices share."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive counters over the 32-bit words


def word(value: int) -> tf.Tensor:
    """Returns an integer, reduced modulo 2^32, as a `uint32` tensor."""
    return tf.constant(value & 0xFFFFFFFF, tf.uint32)


def xor(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the bitwise exclusive or."""
    return tf.bitwise.bitwise_xor(x, y)


def mix(x: tf.Tensor, constant: Callable[[int], tf.Tensor] = word) -> tf.Tensor:
    """Returns the finaliser of MurmurHash3, a bijection of words that spreads every bit."""
    x = xor(x, tf.bitwise.right_shift(x, constant(16))) * constant(0x85EBCA6B)
    x = xor(x, tf.bitwise.right_shift(x, constant(13))) * constant(0xC2B2AE35)
    return xor(x, tf.bitwise.right_shift(x, constant(16)))
