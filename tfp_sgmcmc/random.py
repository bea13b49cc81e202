"""Seeds, normals and minibatch indices: every random number of the library is drawn here.

Measured facts shape this module. Under XLA the default generator of `tf.random` costs ten times
what ThreeFry costs; outside XLA ThreeFry has no kernel. XLA makes 32-bit ThreeFry words as two
halves joined end to end, and a loop that they are fused into recomputes them without vectors, at
60 ns to 1 us a word; 64-bit words have no halves to join. So 32-bit normals come from 64-bit
ThreeFry words and the inverse error function inside an XLA-compiled function, and from Philox
elsewhere: the same seed gives the same chain in the same mode on the same device, and
another one across modes. Indices are integer hashes of the seed and are the same everywhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive counters over the 32-bit words
_MAX_EXAMPLES = 2**31 - 1


def in_xla_context() -> bool:
    """Whether the code being traced right now will be compiled by XLA."""
    if tf.executing_eagerly():
        return False
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _algorithm() -> str:
    return "threefry" if in_xla_context() else "philox"


def as_seed(seed: Any) -> tf.Tensor:
    """Returns `seed`, an integer or two integers, as an `int32` tensor of shape `[2]`.

    Raises:
      ValueError: if `seed` is None (no hidden global state is used) or not one or two integers.
    """
    if seed is None:
        raise ValueError(
            "seed is None, but an integer or a pair of integers is expected: "
            "a step draws all of its random numbers from the seed it is given."
        )
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        words = np.array([int(seed) >> 32, int(seed)], np.int64) & 0xFFFFFFFF
        return tf.constant(words.astype(np.uint32).astype(np.int32))
    seed = tf.convert_to_tensor(seed)
    if not seed.dtype.is_integer or not seed.shape.is_compatible_with([2]):
        raise ValueError(
            f"seed has dtype {seed.dtype.name} and shape {seed.shape}; "
            "an integer or two integers (shape [2]) are expected."
        )
    return tf.cast(seed, tf.int32)


def split(seed: tf.Tensor, num: int) -> list[tf.Tensor]:
    """Returns `num` seeds that are independent of each other, made from `seed`."""
    return tf.unstack(tf.random.split(seed, num=num, alg=_algorithm()))


def fold_in(seed: tf.Tensor, data: Any) -> tf.Tensor:
    """Returns the seed of number `data` in the sequence that `seed` starts."""
    return tf.random.fold_in(seed, tf.cast(data, tf.int32), alg=_algorithm())


def normal(shape: Any, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    """Draws standard normals of the given shape."""
    if not in_xla_context():
        return tf.random.stateless_normal(shape, seed, dtype=dtype, alg="philox")
    return tf.math.erfinv(_open_uniform(shape, dtype, seed)) * tf.constant(math.sqrt(2.0), dtype)


def _open_uniform(shape: Any, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    """Draws uniforms in (-1, 1), without the ends: erfinv(-1) = -inf. XLA only."""
    if dtype != tf.float32:
        low = np.nextafter(dtype.as_numpy_dtype(-1), dtype.as_numpy_dtype(0))
        return tf.random.stateless_uniform(shape, seed, low, 1, dtype, alg="threefry")
    words = tf.random.stateless_uniform(shape, seed, None, None, tf.uint64, alg="threefry")
    cells = tf.cast(tf.bitwise.right_shift(words, tf.constant(41, tf.uint64)), tf.int32)
    return (tf.cast(cells, dtype) + 0.5) * 2.0**-22 - 1.0  # centres of 2^23 cells, all exact


def normal_like(state: Any, seed: tf.Tensor) -> Any:
    """Draws standard normals in the structure, shapes and dtypes of `state`."""
    parts = tf.nest.flatten(state)
    seeds = split(seed, len(parts)) if len(parts) > 1 else [seed]
    draws = [normal(_shape(x), x.dtype, s) for x, s in zip(parts, seeds, strict=True)]
    return tf.nest.pack_sequence_as(state, draws)


def rademacher_like(state: Any, seed: tf.Tensor) -> Any:
    """Draws -1 and +1 with equal probability, in the structure of `state`."""
    parts = tf.nest.flatten(state)
    seeds = split(seed, len(parts)) if len(parts) > 1 else [seed]
    draws = [
        tf.cast(tf.reshape(uniform_indices(s, tf.range(tf.size(x)), 2), _shape(x)), x.dtype) * 2 - 1
        for x, s in zip(parts, seeds, strict=True)
    ]
    return tf.nest.pack_sequence_as(state, draws)


def uniform_indices(
    seed: tf.Tensor, positions: tf.Tensor, num_examples: int, chain_shape: Any = ()
) -> tf.Tensor:
    """Returns the entries at `positions` of random sequences drawn with replacement.

    Arguments and result are those of `permuted_indices`.
    """
    high, low = _chain_key(seed, chain_shape)
    counter = _word(_GOLDEN) * tf.cast(positions, tf.uint32)
    words = tf.cast(_mix(_mix(counter + _mix(high)) + low), tf.uint64)
    scaled = words * tf.constant(num_examples, tf.uint64)
    return tf.cast(tf.bitwise.right_shift(scaled, tf.constant(32, tf.uint64)), tf.int32)


def permuted_indices(
    seed: tf.Tensor, positions: tf.Tensor, num_examples: int, chain_shape: Any = ()
) -> tf.Tensor:
    """Returns the entries at `positions` of random permutations of `0 .. num_examples - 1`.

    A permutation is never stored: it is a keyed Feistel network on pairs (l, r) in Z_a x Z_b with
    a b >= N, in which each round adds to one half a hash of the other and of the round's key,

      l <- (l + F_k(r)) mod a,   r <- (r + F_k'(l)) mod b,

    and results outside `0 .. N - 1` are put through it again (cycle walking; Black & Rogaway
    2002). All is `uint32` arithmetic, so eager and compiled code give the same indices.

    Args:
      seed: `int32` tensor of shape `[2]` (or `[n, 2]`: a seed for each position); names the
        permutation.
      positions: integer tensor of shape `[n]`, entries in `0 .. num_examples - 1`.
      num_examples: N, at most 2^31 - 1.
      chain_shape: leading shape; each of its entries gets a permutation of its own.

    Returns:
      `int32` tensor of shape `[*chain_shape, n]`.
    """
    a, b = _grid(num_examples)
    # Few cells a side leave few round functions: more rounds (5 there miss uniformity visibly).
    num_rounds = 5 if min(a, b) >= 16 else 12
    high, low = _chain_key(seed, chain_shape)
    keys = [
        _mix(high + _word(_GOLDEN * (2 * i + 1))) + _mix(low + _word(_GOLDEN * (2 * i + 2)))
        for i in range(2 * num_rounds)
    ]

    def permute(x: tf.Tensor) -> tf.Tensor:
        left, right = x // _word(b), x % _word(b)
        for i in range(num_rounds):
            left = _add_mod(left, _hash_below(right, keys[2 * i], a), a)
            right = _add_mod(right, _hash_below(left, keys[2 * i + 1], b), b)
        return left * _word(b) + right

    result = permute(tf.cast(positions, tf.uint32) + tf.zeros_like(keys[0]))
    # Run even where a b = N and nothing is outside: what leaves a loop is stored, while XLA would
    # compute a plain expression anew for every array that is gathered by it.
    outside = _word(num_examples)
    (result,) = tf.while_loop(
        lambda x: tf.reduce_any(x >= outside),
        lambda x: (tf.where(x >= outside, permute(x), x),),
        (result,),
    )
    return tf.cast(result, tf.int32)


def _grid(num_examples: int) -> tuple[int, int]:
    """Returns sides a <= b of the nearly square grid with the fewest cells beyond N."""
    if not 1 <= num_examples <= _MAX_EXAMPLES:
        raise ValueError(f"num_examples is {num_examples}; 1 .. {_MAX_EXAMPLES} is expected.")
    root = math.isqrt(num_examples - 1) + 1
    sides = np.arange(max(1, min(2, num_examples), root // 4), root + 1)
    cells = sides * -(-num_examples // sides)
    a = int(sides[len(sides) - 1 - np.argmin(cells[::-1])])  # of equals the squarest
    return a, -(-num_examples // a)


def _shape(x: tf.Tensor) -> Any:
    return x.shape if x.shape.is_fully_defined() else tf.shape(x)


def _word(value: int) -> tf.Tensor:
    return tf.constant(value & 0xFFFFFFFF, tf.uint32)


def _chain_key(seed: tf.Tensor, chain_shape: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Two words of key for each chain: shapes `[...]` and `[*chain_shape, 1]` (or wider)."""
    shape = tf.cast(chain_shape, tf.int32)
    chains = tf.range(tf.math.reduce_prod(shape))
    chains = tf.cast(tf.reshape(chains, tf.concat([shape, [1]], axis=0)), tf.uint32)
    words = tf.bitcast(seed, tf.uint32)
    return words[..., 0], _mix(words[..., 1] + _word(_GOLDEN) * chains)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """The finaliser of MurmurHash3: a bijection of 32-bit words that spreads every bit."""
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _word(16))) * _word(0x85EBCA6B)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _word(13))) * _word(0xC2B2AE35)
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _word(16)))


def _hash_below(x: tf.Tensor, key: tf.Tensor, bound: int) -> tf.Tensor:
    """floor(hash bound / 2^32), with a 16-bit `bound`, in 32-bit arithmetic."""
    word = _mix(tf.bitwise.bitwise_xor(x, key))
    high = tf.bitwise.right_shift(word, _word(16)) * _word(bound)
    low = tf.bitwise.bitwise_and(word, _word(0xFFFF)) * _word(bound)
    return tf.bitwise.right_shift(high + tf.bitwise.right_shift(low, _word(16)), _word(16))


def _add_mod(x: tf.Tensor, y: tf.Tensor, modulus: int) -> tf.Tensor:
    total = x + y
    return tf.where(total >= _word(modulus), total - _word(modulus), total)
