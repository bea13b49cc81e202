"""Seeds, normals and minibatch indices: every random number of the library is drawn here.

The same seed gives the same chain in the same mode on the same device. Normals differ between
eager and compiled code; indices and three-point numbers are integer hashes of the seed and are the
same everywhere.

Under XLA the generators of `tf.random` cost 4 to 100 ns a normal: their words are not vectorised or
only half used, and the inverse error function alone takes 5 ns. So 32-bit normals are made by
Threefry-2x32 and Box-Muller, which XLA fuses into one vectorised loop with what uses them: 2 to 3
ns. Elsewhere small draws come from Philox, and large draws on a CPU from a compiled function.

Three-point noise has the moments of a normal up to the fifth. Weak schemes of first and second
order need no more (Kloeden & Platen 1992, section 14.2). It costs a hash of its position and two
comparisons, 0.6 to 1 ns under XLA on a CPU. Several numbers from one word would cost more there,
because XLA computes the word anew for each number.
"""

from __future__ import annotations

import functools
import math
import random as python_random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import checks, xla
from tfp_sgmcmc.internal.nest import static_or_dynamic_shape

__all__ = [
    "AliasTable",
    "as_seed",
    "epoch_indices",
    "fold_in",
    "fresh_seed",
    "integers_of",
    "normal",
    "normal_like",
    "numbered_seed",
    "permuted_indices",
    "rademacher_like",
    "split",
    "three_point",
    "three_point_like",
    "uniform_indices",
]

xor = tf.bitwise.bitwise_xor
_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive counters over the 32-bit words
_UNIT = 2**24  # thresholds and coins of `AliasTable` are integers below it
_MAX_EXAMPLES = 2**31 - 1
_SEED = "an integer of 64 bits or two of 32, as of numpy.random.SeedSequence(n).generate_state(2)"
_SIXTH = 715_827_883  # 2^32 / 6 = 715,827,882.67, rounded
_WORTH_COMPILING = 10_000  # normals; a compiled function draws more of them faster on a CPU
_MANY_PARTS = 4  # of a state, whose numbers are drawn as one array
_COLUMNS = 128  # of that array
# -2 log(1 + f) / f in powers of f, and sin(pi w) / w in powers of w^2.
_MINUS_2_LOG1P = (
    *(-1.99999989, 1.0000073, -0.666701178, 0.49939818),
    *(-0.398003322, 0.345016628, -0.324451516, 0.202137682),
)
_SIN_PI = (3.14159264, -5.16770968, 2.55006973, -0.598242126, 0.0775603869)


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
    return python_random.getrandbits(63)


def as_seed(seed: Any) -> tf.Tensor:
    """Returns `seed`, an integer or two integers, as an `int32` tensor of shape `[2]`.

    Raises ValueError for anything else, and for None, because no hidden global state is used.
    """
    if seed is None:
        expected = "an integer or a pair of integers"
        raise ValueError(f"seed must be {expected}. Received: None. Pass one, such as seed=0.")
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool | np.timedelta64):
        checks.require("seed", seed, -(2**63) <= seed < 2**64, _SEED)
        seed = np.array([int(seed) >> shift & 0xFFFFFFFF for shift in (32, 0)])
    try:
        seed = tf.convert_to_tensor(seed)
    except (TypeError, ValueError) as error:
        raise ValueError(f"seed must be an integer or two integers. Received: {seed!r}.") from error
    if seed.dtype.is_integer and seed.shape.rank == 0:
        wide = tf.cast(seed, tf.int64)
        words = tf.stack([tf.bitwise.right_shift(wide, tf.constant(32, tf.int64)), wide])
        seed = tf.cast(words, tf.int32)
    found = f"dtype {seed.dtype.name}, shape {seed.shape}"
    holds = seed.dtype.is_integer and seed.shape.is_compatible_with([2])
    checks.require("seed", found, holds, "an integer or two integers (shape [2])")
    if seed.dtype.size > 4 and (known := tf.get_static_value(seed)) is not None:
        checks.require("seed", known, np.all((known >= -(2**31)) & (known < 2**32)), _SEED)
    return tf.cast(seed, tf.int32)


def integers_of(seed: tf.Tensor) -> tuple[int, int]:
    """Returns the two integers of a seed."""
    first, second = as_seed(seed).numpy().tolist()
    return first, second


def split(seed: tf.Tensor, num: int) -> list[tf.Tensor]:
    """Returns `num` seeds that are independent of each other, made from `seed`."""
    checks.integer("num", num, least=1)
    return tf.unstack(tf.random.split(as_seed(seed), num=num, alg=xla.random_algorithm()))


def fold_in(seed: tf.Tensor, data: Any) -> tf.Tensor:
    """Returns the seed of number `data`, an `int32`, in the sequence that `seed` starts."""
    data = checks.integers("data", data, rank=0, below=2**31, least=-(2**31))
    return tf.random.fold_in(as_seed(seed), tf.cast(data, tf.int32), alg=xla.random_algorithm())


def numbered_seed(seed: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Returns a seed `[..., 2]` for each of the `int32` numbers, the same in every mode.

    Use it for indices, whose functions hash their seeds. Everything else takes `fold_in`.
    """
    seed, numbers = as_seed(seed), tf.cast(checks.integers("numbers", numbers), tf.int32)
    high = seed[0] + tf.zeros_like(numbers)
    return tf.stack([high, tf.bitwise.bitwise_xor(seed[1], numbers)], axis=-1)


def uniform_indices(
    seed: tf.Tensor, positions: tf.Tensor, num_examples: int, chain_shape: Any = ()
) -> tf.Tensor:
    """Returns the entries at `positions` of random sequences drawn with replacement.

    Arguments and result are the same as for `permuted_indices`.
    """
    num_examples = checks.integer("num_examples", num_examples, least=1, most=_MAX_EXAMPLES)
    positions = checks.integers("positions", positions)
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
    num_examples = checks.integer("num_examples", num_examples, least=1, most=_MAX_EXAMPLES)
    positions = checks.integers("positions", positions, below=num_examples)
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

    `step` is t, an `int64` scalar, `batch_size` B, at most N, and `num_examples` N. `seed` is one
    seed, and `chain_shape` is the same as for `permuted_indices`.
    """
    num_examples = checks.integer("num_examples", num_examples, least=1, most=_MAX_EXAMPLES)
    batch_size = checks.integer("batch_size", batch_size, least=1, most=num_examples)
    seed, step = as_seed(seed), tf.cast(checks.integers("step", step, rank=0), tf.int64)
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
        scaled = checks.array("probabilities", probabilities).astype(np.float64)
        checks.nonnegative_weights("probabilities", scaled)
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
        """Returns indices, `[*chain_shape, n]`, for one seed, as `random.uniform_indices`."""
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
    root = math.isqrt(num_examples - 1) + 1
    # `_hash_below` takes sides of 16 bits.
    least = max(1, min(2, num_examples), root // 4, -(-num_examples // 2**16))
    sides = np.arange(least, root + 1)
    cells = sides * -(-num_examples // sides)
    a = int(sides[len(sides) - 1 - np.argmin(cells[::-1])])  # the squarest one among equals
    return a, -(-num_examples // a)


def _chain_key(seed: tf.Tensor, chain_shape: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two words of key for each chain: shapes `[...]` and `[*chain_shape, 1]` or wider."""
    checks.shape_if_known("chain_shape", chain_shape)
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


def normal(shape: Any, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    """Draws standard normals of the given shape."""
    seed, dtype = as_seed(seed), checks.shape_and_dtype(shape, dtype)
    if not xla.in_xla_context():
        static = tf.get_static_value(tf.convert_to_tensor(shape, tf.int32))
        is_large = static is not None and math.prod(static) >= _WORTH_COMPILING
        if is_large and not xla.on_accelerator():
            return _compiled_normal(tuple(static.tolist()), dtype)(seed)
        return tf.random.stateless_normal(shape, seed, dtype=dtype, alg="philox")
    if dtype == tf.float64:
        low = np.nextafter(-1.0, 0.0)  # erfinv(-1) = -inf
        uniform = tf.random.stateless_uniform(shape, seed, low, 1, dtype, alg="threefry")
        return tf.math.erfinv(uniform) * tf.constant(math.sqrt(2.0), dtype)
    words = _threefry(tf.bitcast(seed, tf.uint32), *row_and_column(shape))
    return tf.cast(tf.reshape(_box_muller(*words), shape), dtype)


def normal_like(state: Any, seed: tf.Tensor) -> Any:
    """Draws standard normals in the structure, shapes and dtypes of `state`."""
    return _draw_like(normal, state, seed)


def rademacher_like(state: Any, seed: tf.Tensor) -> Any:
    """Draws -1 and +1 with equal probability, in the structure, shapes and dtypes of `state`."""

    def signs(shape: Any, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
        size = tf.reduce_prod(tf.convert_to_tensor(shape, tf.int32))
        bits = uniform_indices(seed, tf.range(size), 2)
        return tf.cast(tf.reshape(bits, shape), dtype) * 2 - 1

    return _draw_like(signs, state, as_seed(seed))


def three_point(shape: Any, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    r"""Draws 0 with probability 2/3, and \( \pm\sqrt3 \) with probability 1/6 each.

    The moments 1 to 6 are 0, 1, 0, 3, 0 and 9; a normal's sixth is 15. Of the 2^32 words,
    715,827,883 give each sign. The odd moments are therefore exactly 0, and the even ones are
    larger by a factor of 1 + 2^-31, less than `float32` resolves. The numbers are the same in every
    mode, on every device.
    """
    dtype = checks.shape_and_dtype(shape, dtype)
    key = tf.unstack(tf.bitcast(as_seed(seed), tf.uint32))
    rows, columns = row_and_column(shape)
    counters = rows * tf.cast(tf.size(columns), tf.uint32) + columns
    return tf.reshape(_three_point_values(hashed_words((key[0], key[1]), counters), dtype), shape)


def three_point_like(state: Any, seed: tf.Tensor) -> Any:
    """Draws three-point numbers in the structure, shapes and dtypes of `state`."""
    return _draw_like(three_point, state, seed)


def _draw_like(
    draw: Callable[[Any, tf.DType, tf.Tensor], tf.Tensor], state: Any, seed: tf.Tensor
) -> Any:
    """Returns `draw(shape, dtype, seed)` for each part of the state.

    Few parts have seeds of their own. Of many parts, the generators would be most of what XLA
    compiles, so their numbers are drawn as one array, which is then cut.
    """
    parts = [tf.convert_to_tensor(x) for x in tf.nest.flatten(state)]
    if len(parts) < _MANY_PARTS or len({x.dtype for x in parts}) > 1:
        seeds = split(seed, len(parts)) if len(parts) > 1 else [seed]
        pairs = zip(parts, seeds, strict=True)
        drawn = [draw(static_or_dynamic_shape(x), x.dtype, s) for x, s in pairs]
        return tf.nest.pack_sequence_as(state, drawn)
    sizes = [x.shape.num_elements() or tf.size(x) for x in parts]
    shape = [-(-sum(sizes) // _COLUMNS), _COLUMNS]
    # Not materialized, the generator would be put into the loop of each part.
    numbers = xla.materialized(draw(shape, parts[0].dtype, seed))
    numbers = tf.reshape(numbers, [-1])[: sum(sizes)]
    pairs = zip(tf.split(numbers, sizes), parts, strict=True)
    drawn = [tf.reshape(z, static_or_dynamic_shape(x)) for z, x in pairs]
    return tf.nest.pack_sequence_as(state, drawn)


def row_and_column(shape: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the rows, `[R, 1]`, and columns, `[C]`, of an array's entries as `uint32` counters.

    The last axis has the columns, and all others together the rows. As a single range, XLA would
    fold the counters of the whole array into the program.
    """
    shape = tf.convert_to_tensor(shape, tf.int32)
    rows, columns = (tf.range(tf.math.reduce_prod(n)) for n in (shape[:-1], shape[-1:]))
    return tf.cast(rows[:, tf.newaxis], tf.uint32), tf.cast(columns, tf.uint32)


@functools.lru_cache(maxsize=64)
def _compiled_normal(shape: tuple[int, ...], dtype: tf.DType) -> Any:
    def draw(seed: tf.Tensor) -> tf.Tensor:
        return normal(shape, dtype, seed)

    return tf.function(draw, autograph=False, jit_compile=True)


def _threefry(
    key: tf.Tensor, x: tf.Tensor, y: tf.Tensor, num_rounds: int = 13
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns Threefry-2x32 of counters (x, y): two random `uint32` words for each.

    From 13 rounds on no statistical flaw is known (Salmon et al. 2011; BigCrush).
    """
    keys = [key[0], key[1], xor(xor(key[0], key[1]), word(0x1BD11BDA))]
    x, y = x + keys[0], y + keys[1]
    for i in range(num_rounds):
        x = x + y
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[i % 8]
        y = tf.bitwise.bitwise_or(
            tf.bitwise.left_shift(y, word(turn)), tf.bitwise.right_shift(y, word(32 - turn))
        )
        y = xor(x, y)
        if i % 4 == 3:
            block = i // 4 + 1
            x, y = x + keys[block % 3], y + (keys[(block + 1) % 3] + word(block))
    return x, y


def _box_muller(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Turns two `uint32` words into a `float32` normal, sqrt(-2 log u) sin(pi w).

    u is uniform in (0, 1] and w in [-1/2, 1/2], where the sine has the same law as over a whole
    turn. The minimax polynomials have an error below 2e-7 (log) and a relative 6e-9 (sine).
    """
    shifted = tf.bitcast(tf.bitwise.right_shift(x, word(1)), tf.int32)
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


def _three_point_values(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Maps the lowest sixth of the words, as signed integers, to -sqrt 3, the highest to sqrt 3."""
    signed, root = tf.bitcast(words, tf.int32), tf.constant(math.sqrt(3), dtype)
    positive = tf.where(signed >= 2**31 - _SIXTH, root, tf.zeros([], dtype))
    return tf.where(signed < _SIXTH - 2**31, -root, positive)
