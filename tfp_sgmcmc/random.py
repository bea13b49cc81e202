"""Seeds, normals and minibatch indices: every random number of the library is drawn here.

Measured facts shape this module. Under XLA the generators of `tf.random` cost 4 to 100 ns a normal:
their words are not vectorised or only half used, and the inverse error function alone takes 5 ns.
So 32-bit normals are made by Threefry-2x32 and Box-Muller, written in operations that XLA fuses
into one vectorised loop with what uses them: 2 to 3 ns. Elsewhere small draws come from Philox,
which has a kernel there, and large ones (on a CPU) from a compiled call of their own. The same
seed gives the same chain in the same mode on the same device, and another one across modes.
Indices are integer hashes of the seed and are the same everywhere.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc import xla

_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive counters over the 32-bit words
_MAX_EXAMPLES = 2**31 - 1
_WORTH_COMPILING = 10_000  # normals, from which on a compiled call by itself is faster on a CPU
# -2 log(1 + f) / f in powers of f, and sin(pi w) / w in powers of w^2.
_MINUS_2_LOG1P = (
    *(-1.99999989, 1.0000073, -0.666701178, 0.49939818),
    *(-0.398003322, 0.345016628, -0.324451516, 0.202137682),
)
_SIN_PI = (3.14159264, -5.16770968, 2.55006973, -0.598242126, 0.0775603869)


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
    return tf.unstack(tf.random.split(seed, num=num, alg=xla.random_algorithm()))


def fold_in(seed: tf.Tensor, data: Any) -> tf.Tensor:
    """Returns the seed of number `data` in the sequence that `seed` starts."""
    return tf.random.fold_in(seed, tf.cast(data, tf.int32), alg=xla.random_algorithm())


def normal(shape: Any, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    """Draws standard normals of the given shape."""
    if not xla.in_xla_context():
        static = tf.get_static_value(tf.convert_to_tensor(shape, tf.int32))
        is_large = static is not None and math.prod(static) >= _WORTH_COMPILING
        if is_large and not xla.has_accelerator():
            return _compiled_normal(tuple(static.tolist()), dtype)(seed)
        return tf.random.stateless_normal(shape, seed, dtype=dtype, alg="philox")
    if dtype == tf.float64:
        low = np.nextafter(-1.0, 0.0)  # erfinv(-1) = -inf
        uniform = tf.random.stateless_uniform(shape, seed, low, 1, dtype, alg="threefry")
        return tf.math.erfinv(uniform) * tf.constant(math.sqrt(2.0), dtype)
    # Counters (row, column): a whole array of them would be folded into the program as a constant.
    shape = tf.convert_to_tensor(shape, tf.int32)
    rows, columns = (tf.range(tf.math.reduce_prod(n)) for n in (shape[:-1], shape[-1:]))
    words = _threefry(
        tf.bitcast(seed, tf.uint32),
        tf.cast(rows[:, tf.newaxis], tf.uint32),
        tf.cast(columns, tf.uint32),
    )
    return tf.cast(tf.reshape(_box_muller(*words), shape), dtype)


@functools.lru_cache(maxsize=64)
def _compiled_normal(shape: tuple[int, ...], dtype: tf.DType) -> Any:
    def draw(seed: tf.Tensor) -> tf.Tensor:
        return normal(shape, dtype, seed)

    return tf.function(draw, autograph=False, jit_compile=True)


def _threefry(
    key: tf.Tensor, x: tf.Tensor, y: tf.Tensor, num_rounds: int = 13
) -> tuple[tf.Tensor, tf.Tensor]:
    """Threefry-2x32 of counters (x, y): two random words for each, in `uint32` arithmetic.

    From 13 rounds on no statistical flaw is known (Salmon et al. 2011; BigCrush).
    """
    keys = [key[0], key[1], _xor(_xor(key[0], key[1]), _word(0x1BD11BDA))]
    x, y = x + keys[0], y + keys[1]
    for i in range(num_rounds):
        x = x + y
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[i % 8]
        y = tf.bitwise.bitwise_or(
            tf.bitwise.left_shift(y, _word(turn)), tf.bitwise.right_shift(y, _word(32 - turn))
        )
        y = _xor(x, y)
        if i % 4 == 3:
            block = i // 4 + 1
            x, y = x + keys[block % 3], y + (keys[(block + 1) % 3] + _word(block))
    return x, y


def _box_muller(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Turns two `uint32` words into a `float32` normal, sqrt(-2 log u) sin(pi w).

    u is uniform in (0, 1] and w in [-1/2, 1/2]: over that half turn the sine has the law that it
    has over a whole one. The polynomials are minimax; the logarithm's is off by less than 2e-7
    and the sine's by 6e-9 of the value.
    """
    shifted = tf.bitcast(tf.bitwise.right_shift(x, _word(1)), tf.int32)
    u = tf.cast(shifted, tf.float32) * 2.0**-31 + 2.0**-32
    # u = 2^exponent (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), read off its bits.
    root_half = tf.constant(0x3F3504F3)
    bits = tf.bitcast(u, tf.int32) - root_half
    exponent = tf.cast(tf.bitwise.right_shift(bits, 23), tf.float32)
    f = tf.bitcast(tf.bitwise.bitwise_and(bits, 0x7FFFFF) + root_half, tf.float32) - 1.0
    minus_2_log = exponent * (-2.0 * math.log(2.0)) + f * _polynomial(f, _MINUS_2_LOG1P)
    w = tf.cast(tf.bitcast(y, tf.int32), tf.float32) * 2.0**-32
    return tf.sqrt(minus_2_log) * (w * _polynomial(w * w, _SIN_PI))


def _polynomial(x: tf.Tensor, coefficients: tuple[float, ...]) -> tf.Tensor:
    value = tf.constant(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        value = value * x + c
    return value


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
    return _permuted(_round_keys(seed, num_examples, chain_shape), positions, num_examples)


def _round_keys(seed: tf.Tensor, num_examples: int, chain_shape: Any) -> list[tf.Tensor]:
    """Two keys for each round of the permutations that `seed` names."""
    # Few cells a side leave few round functions: more rounds (5 there miss uniformity visibly).
    num_rounds = 5 if min(_grid(num_examples)) >= 16 else 12
    high, low = _chain_key(seed, chain_shape)
    # All keys at once, and each constant once: a draw is then a third of the nodes to trace.
    words = _GOLDEN * np.arange(1, 4 * num_rounds + 1, dtype=np.uint64) & 0xFFFFFFFF
    words = words.astype(np.uint32).reshape([-1, 2, *[1] * low.shape.rank])
    return tf.unstack(_mix(high + words[:, 0]) + _mix(low + words[:, 1]))


def _permuted(keys: list[tf.Tensor], positions: tf.Tensor, num_examples: int) -> tf.Tensor:
    a, b = _grid(num_examples)

    def permute(x: tf.Tensor) -> tf.Tensor:
        word = functools.cache(_word)  # in the graph that `x` is of
        left, right = x // word(b), x % word(b)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            left = _add_mod(left, _hash_below(right, even, word(a), word), word(a))
            right = _add_mod(right, _hash_below(left, odd, word(b), word), word(b))
        return left * word(b) + right

    result = permute(tf.cast(positions, tf.uint32) + tf.zeros_like(keys[0]))
    outside = _word(num_examples)
    is_full = a * b == num_examples
    # What leaves a loop is stored: on a CPU, XLA else computes an index anew for each number that
    # is gathered by it, which takes four times as long for 64 chains of 100 x 10.
    if not is_full or (xla.compiles_for_cpu()):
        again = (lambda x: x - outside) if is_full else permute  # of a full grid it never runs
        (result,) = tf.while_loop(
            lambda x: tf.reduce_any(x >= outside),
            lambda x: (tf.where(x >= outside, again(x), x),),
            (result,),
        )
    return tf.cast(result, tf.int32)


def numbered_seed(seed: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Returns a seed `[..., 2]` for each of `int32` numbers, the same in every mode.

    For indices, which hash their seeds; `fold_in` is for all else.
    """
    high = seed[0] + tf.zeros_like(numbers)
    return tf.stack([high, tf.bitwise.bitwise_xor(seed[1], numbers)], axis=-1)


def epoch_indices(
    seed: tf.Tensor, step: tf.Tensor, batch_size: int, num_examples: int, chain_shape: Any = ()
) -> tf.Tensor:
    """Returns the indices of minibatch number `step` of one permutation after the other.

    Those are its entries tB, ..., tB + B - 1, so that a minibatch may end one permutation and begin
    the next: a function of (seed, step) alone.

    Args:
      seed: as for `permuted_indices`.
      step: t, an `int64` scalar.
      batch_size: B, at most N.
      num_examples: N.
      chain_shape: leading shape, as for `permuted_indices`.
    """
    start = step * batch_size
    first = tf.cast(start // num_examples, tf.int32)
    position = tf.cast(start % num_examples, tf.uint32) + tf.cast(tf.range(batch_size), tf.uint32)
    # Two sets of keys: a seed for each position would take more time than the permutation.
    is_next = position >= _word(num_examples)
    this, following = (
        _round_keys(numbered_seed(seed, first + i), num_examples, chain_shape) for i in (0, 1)
    )
    keys = [tf.where(is_next, b, a) for a, b in zip(this, following, strict=True)]
    return _permuted(keys, _add_mod(position, _word(0), _word(num_examples)), num_examples)


def _grid(num_examples: int) -> tuple[int, int]:
    """Returns sides a <= b of the nearly square grid with the fewest cells beyond N."""
    if not 1 <= num_examples <= _MAX_EXAMPLES:
        raise ValueError(f"num_examples is {num_examples}; 1 .. {_MAX_EXAMPLES} is expected.")
    root = math.isqrt(num_examples - 1) + 1
    # `_hash_below` is for sides of 16 bits.
    least = max(1, min(2, num_examples), root // 4, -(-num_examples // 2**16))
    sides = np.arange(least, root + 1)
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


def _xor(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, y)


def _mix(x: tf.Tensor, word: Callable[[int], tf.Tensor] = _word) -> tf.Tensor:
    """The finaliser of MurmurHash3: a bijection of 32-bit words that spreads every bit."""
    x = _xor(x, tf.bitwise.right_shift(x, word(16))) * word(0x85EBCA6B)
    x = _xor(x, tf.bitwise.right_shift(x, word(13))) * word(0xC2B2AE35)
    return _xor(x, tf.bitwise.right_shift(x, word(16)))


def _hash_below(
    x: tf.Tensor, key: tf.Tensor, bound: tf.Tensor, word: Callable[[int], tf.Tensor]
) -> tf.Tensor:
    """floor(hash bound / 2^32), with a 16-bit `bound`, in 32-bit arithmetic."""
    hashed = _mix(_xor(x, key), word)
    high = tf.bitwise.right_shift(hashed, word(16)) * bound
    low = tf.bitwise.bitwise_and(hashed, word(0xFFFF)) * bound
    return tf.bitwise.right_shift(high + tf.bitwise.right_shift(low, word(16)), word(16))


def _add_mod(x: tf.Tensor, y: tf.Tensor, modulus: tf.Tensor) -> tf.Tensor:
    """(x + y) mod m of two words below m: a difference below zero wraps around to a large one."""
    total = x + y
    return tf.minimum(total, total - modulus)
