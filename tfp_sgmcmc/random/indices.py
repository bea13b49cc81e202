"""Indices of examples, by hashing: uniform, from a table, or by permutations never stored."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.checks import integer
from tfp_sgmcmc.random.seeds import as_seed, numbered_seed

xor = tf.bitwise.bitwise_xor
_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive counters over the 32-bit words
_UNIT = 2**24  # thresholds and coins of `AliasTable` are integers below it
_MAX_EXAMPLES = 2**31 - 1


def uniform_indices(
    seed: tf.Tensor, positions: tf.Tensor, num_examples: int, chain_shape: Any = ()
) -> tf.Tensor:
    """Returns the entries at `positions` of random sequences drawn with replacement.

    Arguments and result are the same as for `permuted_indices`.
    """
    num_examples = integer("num_examples", num_examples, least=1, most=_MAX_EXAMPLES)
    key = _chain_key(_as_seeds(seed, positions), chain_shape)
    words = tf.cast(hashed_words(key, tf.cast(positions, tf.uint32)), tf.uint64)
    scaled = words * tf.constant(num_examples, tf.uint64)
    return tf.cast(tf.bitwise.right_shift(scaled, tf.constant(32, tf.uint64)), tf.int32)


def permuted_indices(
    seed: tf.Tensor, positions: tf.Tensor, num_examples: int, chain_shape: Any = ()
) -> tf.Tensor:
    r"""Returns the entries at `positions` of random permutations of `0 .. num_examples - 1`.

    \[
    l \leftarrow (l + F_k(r)) \bmod a, \qquad r \leftarrow (r + F_{k'}(l)) \bmod b
    \]

    A permutation is never stored. It is a keyed Feistel network on pairs (l, r) in Z_a x Z_b with
    a b >= N, and the equation is one of its rounds: it adds to each half a hash of the other half
    and of the round's key. Results outside `0 .. N - 1` go through the network again (cycle
    walking; Black & Rogaway 2002). The `uint32` arithmetic gives the same indices in every mode.

    Args:
      seed: names the permutation; `int32` of shape `[2]`, or `[n, 2]` for one at each position.
      positions: integer tensor of shape `[n]`, entries in `0 .. num_examples - 1`.
      num_examples: N, at most 2^31 - 1.
      chain_shape: leading shape; each of its entries gets a different permutation.

    Returns:
      `int32` tensor of shape `[*chain_shape, n]`.
    """
    num_examples = integer("num_examples", num_examples, least=1, most=_MAX_EXAMPLES)
    keys = _round_keys(_as_seeds(seed, positions), num_examples, chain_shape)
    return _permuted(keys, positions, num_examples)


def epoch_indices(
    seed: tf.Tensor,
    step: tf.Tensor,
    batch_size: int,
    num_examples: int,
    chain_shape: Any = (),
    is_symmetric: bool = False,
) -> tf.Tensor:
    """Returns the indices of minibatch number `step` in a sequence of permutations.

    The minibatch holds the entries tB, ..., tB + B - 1 of the sequence, so it may end one
    permutation and begin the next. It is a function of (seed, step) alone. A symmetric sequence
    has each permutation twice, forward and then backward.

    `step` is t, an `int64` scalar, `batch_size` B, at most N, and `num_examples` N. `seed` and
    `chain_shape` are the same as for `permuted_indices`.
    """
    num_examples = integer("num_examples", num_examples, least=1, most=_MAX_EXAMPLES)
    batch_size = integer("batch_size", batch_size, least=1, most=num_examples)
    seed = as_seed(seed)
    start = step * batch_size
    first = tf.cast(start // num_examples, tf.int32)
    position = tf.cast(start % num_examples, tf.uint32) + tf.cast(tf.range(batch_size), tf.uint32)
    # Two sets of keys: a seed for each position would take more time than the permutation.
    is_next = position >= word(num_examples)
    passes = (first, first + 1)
    this, following = (
        _round_keys(numbered_seed(seed, p // 2 if is_symmetric else p), num_examples, chain_shape)
        for p in passes
    )
    keys = [tf.where(is_next, b, a) for a, b in zip(this, following, strict=True)]
    position = _add_mod(position, word(0), word(num_examples))
    if is_symmetric:
        is_backward = tf.where(is_next, *(p % 2 == 1 for p in reversed(passes)))
        position = tf.where(is_backward, word(num_examples - 1) - position, position)
    return _permuted(keys, position, num_examples)


class AliasTable(NamedTuple):
    r"""Draws index i with probability \( q_i \), by Walker's alias method.

    A uniform index k is kept with probability `threshold[k]` \( / 2^{24} \), and otherwise
    `alias[k]` takes its place. `draw` gives the same indices in every mode.

    Examples:
      >>> import numpy as np, tensorflow as tf
      >>> table = AliasTable.from_probabilities(np.array([0.5, 0.25, 0.25, 0.]))
      >>> indices = table.draw(tf.constant([0, 1]), tf.range(1000))
      >>> np.bincount(indices, minlength=4)
      array([501, 246, 253,   0])

    Attributes:
      threshold: `int32` of shape `[N]`, in \( 0 .. 2^{24} \).
      alias: `int32` of shape `[N]`.

    References:
      M. D. Vose. A linear algorithm for generating random numbers with a given distribution. IEEE
      Transactions on Software Engineering 17, 1991.
    """

    threshold: tf.Tensor
    alias: tf.Tensor

    @classmethod
    def from_probabilities(cls, probabilities: np.ndarray) -> AliasTable:
        """Returns the table of `probabilities`, `[N]`, which need not sum to one."""
        scaled = np.asarray(probabilities, np.float64)
        scaled = scaled * (len(scaled) / scaled.sum())
        kept, alias = np.ones(len(scaled)), np.arange(len(scaled), dtype=np.int32)
        small, large = [*np.flatnonzero(scaled < 1)], [*np.flatnonzero(scaled >= 1)]
        while small and large:
            little, much = small.pop(), large.pop()
            kept[little], alias[little] = scaled[little], much
            scaled[much] -= 1 - scaled[little]
            (small if scaled[much] < 1 else large).append(much)
        return cls(tf.constant(np.rint(kept * _UNIT).astype(np.int32)), tf.constant(alias))

    def draw(self, seed: tf.Tensor, positions: tf.Tensor, chain_shape: Any = ()) -> tf.Tensor:
        """Returns indices, `[*chain_shape, n]`, for the arguments of `random.uniform_indices`."""
        index = uniform_indices(seed, positions, self.alias.shape[0], chain_shape)
        other_seed = numbered_seed(seed, tf.constant(_GOLDEN >> 1, tf.int32))
        coin = uniform_indices(other_seed, positions, _UNIT, chain_shape)
        keeps = coin < tf.gather(self.threshold, index)
        return tf.where(keeps, index, tf.gather(self.alias, index))

    @property
    def probabilities(self) -> np.ndarray:
        """The probabilities with which `draw` returns each index, `[N]`, thresholds rounded."""
        kept, alias = self.threshold.numpy() / _UNIT, self.alias.numpy()
        return (kept + np.bincount(alias, 1 - kept, len(alias))) / len(alias)


def _as_seeds(seed: Any, positions: tf.Tensor) -> tf.Tensor:
    """Returns a seed, `[2]`, or a seed for each position, `[n, 2]`; raises as `as_seed` does."""
    if isinstance(seed, tf.Tensor) and seed.dtype == tf.int32:
        shape = tf.TensorShape(positions.shape[-1:]).concatenate(2)
        if seed.shape.rank == 2 and seed.shape.is_compatible_with(shape):
            return seed
    return as_seed(seed)


def _round_keys(seed: tf.Tensor, num_examples: int, chain_shape: Any) -> list[tf.Tensor]:
    """Returns two keys for each round of the permutations that `seed` names."""
    # Short sides allow few round functions and so need more rounds: 5 visibly miss uniformity.
    num_rounds = 5 if min(_grid(num_examples)) >= 16 else 12
    high, low = _chain_key(seed, chain_shape)
    # All keys at once, and each constant once: a draw is then a third of the nodes to trace.
    words = _GOLDEN * np.arange(1, 4 * num_rounds + 1, dtype=np.uint64) & 0xFFFFFFFF
    words = words.astype(np.uint32).reshape([-1, 2, *[1] * low.shape.rank])
    return tf.unstack(mix(high + words[:, 0]) + mix(low + words[:, 1]))


def _permuted(keys: list[tf.Tensor], positions: tf.Tensor, num_examples: int) -> tf.Tensor:
    a, b = _grid(num_examples)

    def permute(x: tf.Tensor) -> tf.Tensor:
        constant = functools.cache(word)  # in the graph that `x` belongs to
        left, right = x // constant(b), x % constant(b)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            left = _add_mod(left, _hash_below(right, even, constant(a), constant), constant(a))
            right = _add_mod(right, _hash_below(left, odd, constant(b), constant), constant(b))
        return left * constant(b) + right

    result = permute(tf.cast(positions, tf.uint32) + tf.zeros_like(keys[0]))
    outside = word(num_examples)
    is_full = a * b == num_examples
    # XLA stores what leaves a loop. On a CPU it would otherwise compute an index anew for each
    # number that is gathered by it, which takes four times as long for 64 chains of 100 x 10.
    if not is_full or xla.compiles_for_cpu():
        again = (lambda x: x - outside) if is_full else permute  # a full grid never runs it
        (result,) = tf.while_loop(
            lambda x: tf.reduce_any(x >= outside),
            lambda x: (tf.where(x >= outside, again(x), x),),
            (result,),
        )
    return tf.cast(result, tf.int32)


@functools.lru_cache(maxsize=128, typed=True)
def _grid(num_examples: int) -> tuple[int, int]:
    """Returns sides a <= b of the nearly square grid with the fewest cells beyond N."""
    integer("num_examples", num_examples, least=1, most=_MAX_EXAMPLES)
    root = math.isqrt(num_examples - 1) + 1
    # `_hash_below` takes sides of 16 bits.
    least = max(1, min(2, num_examples), root // 4, -(-num_examples // 2**16))
    sides = np.arange(least, root + 1)
    cells = sides * -(-num_examples // sides)
    a = int(sides[len(sides) - 1 - np.argmin(cells[::-1])])  # the squarest one among equals
    return a, -(-num_examples // a)


def _chain_key(seed: tf.Tensor, chain_shape: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two words of key for each chain: shapes `[...]` and `[*chain_shape, 1]` or wider."""
    shape = tf.cast(chain_shape, tf.int32)
    chains = tf.range(tf.math.reduce_prod(shape))
    chains = tf.cast(tf.reshape(chains, tf.concat([shape, [1]], axis=0)), tf.uint32)
    words = tf.bitcast(seed, tf.uint32)
    return words[..., 0], mix(words[..., 1] + word(_GOLDEN) * chains)


def _hash_below(
    x: tf.Tensor, key: tf.Tensor, bound: tf.Tensor, constant: Callable[[int], tf.Tensor]
) -> tf.Tensor:
    """Returns floor(hash bound / 2^32), with a 16-bit `bound`, in 32-bit arithmetic."""
    hashed = mix(xor(x, key), constant)
    high = tf.bitwise.right_shift(hashed, constant(16)) * bound
    low = tf.bitwise.bitwise_and(hashed, constant(0xFFFF)) * bound
    return tf.bitwise.right_shift(high + tf.bitwise.right_shift(low, constant(16)), constant(16))


def _add_mod(x: tf.Tensor, y: tf.Tensor, modulus: tf.Tensor) -> tf.Tensor:
    """Returns (x + y) mod m of two words below m: a negative difference wraps to a large word."""
    total = x + y
    return tf.minimum(total, total - modulus)


def word(value: int) -> tf.Tensor:
    """Returns an integer, reduced modulo 2^32, as a `uint32` tensor."""
    return tf.constant(value & 0xFFFFFFFF, tf.uint32)


def mix(x: tf.Tensor, constant: Callable[[int], tf.Tensor] = word) -> tf.Tensor:
    """Returns the finaliser of MurmurHash3, a bijection of words that spreads every bit."""
    x = xor(x, tf.bitwise.right_shift(x, constant(16))) * constant(0x85EBCA6B)
    x = xor(x, tf.bitwise.right_shift(x, constant(13))) * constant(0xC2B2AE35)
    return xor(x, tf.bitwise.right_shift(x, constant(16)))


def hashed_words(key: tuple[tf.Tensor, tf.Tensor], counters: tf.Tensor) -> tf.Tensor:
    """Returns a random `uint32` word for each counter: a bijection of words for each key.

    `key` is two words. The result is the same in every mode.
    """
    return mix(mix(word(_GOLDEN) * counters + mix(key[0])) + key[1])
