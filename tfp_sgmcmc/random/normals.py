"""Normals, defensive normals, random signs and three-point noise.

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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.nest import static_or_dynamic_shape
from tfp_sgmcmc.random.indices import hashed_words, uniform_indices, word, xor
from tfp_sgmcmc.random.seeds import as_seed, split

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
DEGREES_OF_FREEDOM = 8  # of the heavy tails of a defensive normal


def normal(shape: Any, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    """Draws standard normals of the given shape."""
    seed = as_seed(seed)
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
    rows, columns = row_and_column(shape)
    key = tf.unstack(tf.bitcast(as_seed(seed), tf.uint32))
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
    parts = tf.nest.flatten(state)
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


def defensive_normal(
    shape: Sequence[Any], dtype: tf.DType, seed: tf.Tensor, tail_share: tf.Tensor
) -> tf.Tensor:
    r"""Draws from \( (1 - \alpha) N(0, I) + \alpha\, t_8(0, I) \) along the last axis of `shape`.

    A draw of t is \( z \sqrt{8 / \chi^2_8} \) with eight more normals for \( \chi^2_8 \). One more
    decides which of the two it is.
    """
    *lead, dim = shape
    z = normal([*lead, dim + DEGREES_OF_FREEDOM + 1], dtype, seed)
    chi_squared = tf.reduce_sum(z[..., dim:-1] ** 2, axis=-1, keepdims=True)
    below = tf.math.ndtri(tail_share)
    scale = tf.where(z[..., -1:] < below, tf.sqrt(DEGREES_OF_FREEDOM / chi_squared), 1.0)
    return z[..., :dim] * scale


def draw_defensive_normal(
    shape: tuple[int, ...], tail_share: float, rng: np.random.Generator
) -> np.ndarray:
    """Draws as `defensive_normal` does, by NumPy and in double precision."""
    z, is_tail = rng.standard_normal(shape), rng.uniform(size=shape[:-1]) < tail_share
    chi_squared = rng.chisquare(DEGREES_OF_FREEDOM, shape[:-1])
    return z * np.where(is_tail, np.sqrt(DEGREES_OF_FREEDOM / chi_squared), 1.0)[..., np.newaxis]


def defensive_normal_log_prob(z: tf.Tensor, tail_share: tf.Tensor) -> tf.Tensor:
    r"""Returns the log density of `defensive_normal` at z, `[..., D]`.

    \[
    \log \left( (1 - \alpha)\, (2 \pi)^{-D/2} e^{-r/2} + \alpha\, \frac{\Gamma(4 + D/2)}{\Gamma(4)}
    (8 \pi)^{-D/2} (1 + r / 8)^{-4 - D/2} \right), \qquad r = |z|^2
    \]
    """
    return defensive_normal_log_prob_at(tf.reduce_sum(z**2, axis=-1), z.shape[-1], tail_share)


def defensive_normal_log_prob_at(square: tf.Tensor, dim: int, tail_share: tf.Tensor) -> tf.Tensor:
    """Returns the log density of `defensive_normal` in `dim` dimensions where |z|^2 is `square`."""
    nu = DEGREES_OF_FREEDOM
    of_normal = -0.5 * square - 0.5 * dim * math.log(2 * math.pi)
    of_tails = -0.5 * (nu + dim) * tf.math.log1p(square / nu) + (
        math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2) - 0.5 * dim * math.log(nu * math.pi)
    )
    pair = tf.math.log1p(-tail_share) + of_normal, tf.math.log(tail_share) + of_tails
    return tf.reduce_logsumexp(tf.stack(pair), axis=0)
