"""Three-point noise: its law over all words, independence, modes, shapes.

Each statistical test has a false-alarm rate of 1e-6, and its check verifies the stated power.
"""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.harness.statistics import Rejected, check_counts
from tfp_sgmcmc import random
from tfp_sgmcmc.random import _three_point_values, hashed_words

SEED = tf.constant([3, 4])
PROBABILITIES = np.array([1, 4, 1]) / 6


def compiled(fn: Any) -> Any:
    return tf.function(fn, jit_compile=True, autograph=False)


def signs(z: Any) -> np.ndarray:
    """Returns -1, 0 or 1 for each number."""
    return np.sign(np.asarray(z)).astype(np.int64)


def test_moments_over_all_words() -> None:
    """The value rises with the signed word and changes at two words, which gives all counts."""
    sixth = 715_827_883
    edges = [-(2**31), sixth - 2**31, 2**31 - sixth, 2**31]  # of the three values
    for sign, first, end in zip((-1, 0, 1), edges[:-1], edges[1:], strict=True):
        words = np.linspace(first, end - 1, 10_001).astype(np.int64)  # with both ends
        values = _three_point_values(
            tf.constant(words.astype(np.int32).view(np.uint32)), tf.float64
        )
        np.testing.assert_array_equal(values, sign * np.sqrt(3.0))
    share = [Fraction(int(n), 2**32) for n in np.diff(edges)]
    for k, normal in ((1, 0), (2, 1), (3, 0), (4, 3), (5, 0), (6, 9)):  # a normal's sixth is 15
        square = Fraction(3) ** (k // 2)  # a moment of odd order has one more factor, sqrt 3
        moment = square * (share[2] + (-1) ** k * share[0])
        assert moment == normal * (1 + Fraction(1, 2**31))


@pytest.mark.thorough
def test_every_word_has_equal_probability() -> None:
    """Over the counters, the words of one seed are all different: the hash is a bijection."""
    key = tf.unstack(tf.bitcast(SEED, tf.uint32))
    words = hashed_words((key[0], key[1]), tf.cast(tf.range(2**20), tf.uint32)).numpy()
    assert len(np.unique(words)) == 2**20


def neighbours() -> dict[str, tuple[np.ndarray, ...]]:
    """Returns numbers that must be independent: of near rows, columns, seeds and steps."""
    seeds = [[3, 4], [3, 5], [4, 4], [4, 3]]
    z, *others = (signs(random.three_point([500, 2001], tf.float32, tf.constant(s))) for s in seeds)
    steps = [random.fold_in(SEED, i) for i in range(3)]
    found = {
        "columns": (z[:, 2:], z[:, 1:-1], z[:, :-2]),
        "rows": (z[2:], z[1:-1], z[:-2]),
        "diagonals": (z[2:, 2:], z[1:-1, 1:-1], z[:-2, :-2]),
        "steps": tuple(signs(random.three_point([10**6], tf.float32, s)) for s in steps),
    }
    return found | {f"seeds {s}": (z, x) for s, x in zip(seeds[1:], others, strict=True)}


def check_independent(numbers: tuple[np.ndarray, ...]) -> None:
    """Compares the counts of all pairs or triples. Finds 20 % more of a single triple."""
    code = sum((x.ravel() + 1) * 3**i for i, x in enumerate(numbers))
    counts = np.bincount(code, minlength=3 ** len(numbers))
    laws = itertools.product(PROBABILITIES, repeat=len(numbers))
    check_counts(counts, [np.prod(p) for p in laws], error=0.2)


def test_numbers_near_each_other_are_independent() -> None:
    for numbers in neighbours().values():
        check_independent(numbers)


def test_dependent_or_other_numbers_are_rejected() -> None:
    z = signs(random.three_point([10**6], tf.float32, SEED))
    other = signs(random.three_point([10**6], tf.float32, SEED + 1))
    rademacher = signs(random.rademacher_like(tf.zeros([10**6]), SEED))
    for bad in ((z, np.roll(z, 1), -z), (z, other, z * other), (rademacher, other)):
        with pytest.raises(Rejected):
            check_independent(bad)


@pytest.mark.thorough
def test_shapes_dtypes_and_modes() -> None:
    """The same numbers come eager and compiled, in every dtype."""
    cases = list(
        itertools.product(
            [[], [0, 3], [7], [2, 3, 5, 7]], [tf.float16, tf.bfloat16, tf.float32, tf.float64]
        )
    )

    def draw() -> list[tf.Tensor]:
        return [random.three_point(shape, dtype, SEED) for shape, dtype in cases]

    root = tf.sqrt(tf.constant(3.0, tf.float64))
    for draws in (draw(), compiled(draw)(), tf.function(draw, autograph=False)()):
        for z, (shape, dtype) in zip(draws, cases, strict=True):
            wide = signs(random.three_point(shape, tf.float64, SEED)) * root
            assert z.shape == shape and z.dtype == dtype
            assert tf.reduce_all(z == tf.cast(wide, dtype))


def test_a_shape_known_when_compiled_only() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])], jit_compile=True, autograph=False)
    def draw(like: tf.Tensor) -> tf.Tensor:
        return random.three_point_like(like, SEED)

    expected = random.three_point([5, 3], tf.float32, SEED)
    np.testing.assert_array_equal(draw(tf.zeros([5, 3])), expected)


def test_parts_of_a_state_get_independent_numbers() -> None:
    state = {"a": tf.zeros([1_000_000, 2]), "b": [tf.zeros([1_000_000])]}
    draws = random.three_point_like(state, SEED)
    tf.nest.assert_same_structure(state, draws)
    check_independent((*signs(draws["a"]).T, signs(draws["b"][0])))
