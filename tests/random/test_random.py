"""Seeds, normals and indices: their distributions, and that every mode gives the same indices.

Each statistical test has a false-alarm rate of 1e-6, and its check verifies the stated power.
"""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.harness.statistics import Rejected, check_cdf, check_counts, check_means
from tfp_sgmcmc import random

SEED = tf.constant([3, 4])


def compiled(fn: Any) -> Any:
    return tf.function(fn, jit_compile=True, autograph=False)


@pytest.mark.parametrize(
    "size",
    [
        *(1, 2, 3, 5, 8, 12, 16, 17, 31, 256, 257, 65_537),
        *(
            pytest.param(n, marks=pytest.mark.thorough)
            for n in {*range(1, 40), 97, 255, 1009, 2**20 + 7} - {1, 2, 3, 5, 8, 12, 16, 17, 31}
        ),
    ],
)
def test_permuted_indices_are_a_permutation(size: int) -> None:
    order = random.permuted_indices(SEED, tf.range(size), size).numpy()
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


@pytest.mark.parametrize("draw", [random.permuted_indices, random.uniform_indices])
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 251])
def test_indices_are_the_same_eager_and_compiled(draw: Any, size: int) -> None:
    def indices() -> tf.Tensor:
        return draw(SEED, tf.range(size), size, [3, 2])

    eager = indices().numpy()
    assert eager.shape == (3, 2, size)
    np.testing.assert_array_equal(eager, compiled(indices)().numpy())
    np.testing.assert_array_equal(eager, tf.function(indices, autograph=False)().numpy())


def test_permutations_of_chains_and_seeds_differ_and_each_is_one() -> None:
    size = 50
    chains = random.permuted_indices(SEED, tf.range(size), size, [20, 10]).numpy()
    np.testing.assert_array_equal(
        np.sort(chains, -1), np.broadcast_to(np.arange(size), chains.shape)
    )
    assert len(np.unique(chains.reshape(200, size), axis=0)) == 200
    for other in ([3, 5], [4, 4]):
        changed = random.permuted_indices(tf.constant(other), tf.range(size), size)
        assert not np.array_equal(changed, chains[0, 0])


def test_a_seed_for_each_position_names_its_permutation() -> None:
    seeds = tf.constant([[1, 2], [1, 3], [1, 2]])
    mixed = random.permuted_indices(seeds, tf.constant([0, 1, 2]), 10).numpy()
    for i, seed in enumerate(seeds):
        assert mixed[i] == random.permuted_indices(seed, tf.constant([i]), 10).numpy()[0]


@pytest.mark.parametrize("jit", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    ("size", "batch_size"), [pytest.param(7, 7, marks=pytest.mark.slow), (251, 100)]
)
@pytest.mark.parametrize("is_symmetric", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_minibatches_of_epochs_are_one_permutation_after_the_other(
    size: int, batch_size: int, jit: bool, is_symmetric: bool
) -> None:
    """Symmetric ones have each permutation twice, forward and then backward."""

    def batch(step: tf.Tensor) -> tf.Tensor:
        return random.epoch_indices(SEED, step, batch_size, size, [2], is_symmetric)

    batch = tf.function(batch, jit_compile=jit, autograph=False)
    num_steps = 4 * size // batch_size + 2
    drawn = [batch(tf.constant(t, tf.int64)).numpy() for t in range(num_steps)]
    drawn = np.concatenate(drawn, axis=-1)
    epochs = [random.numbered_seed(SEED, tf.constant(e)) for e in range(drawn.shape[1] // size + 1)]
    expected = [random.permuted_indices(e, tf.range(size), size, [2]).numpy() for e in epochs]
    if is_symmetric:
        expected = [y for x in expected for y in (x, x[:, ::-1])]
    expected = np.concatenate(expected, axis=-1)[:, : drawn.shape[1]]
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize(
    "size",
    [pytest.param(3, marks=pytest.mark.thorough), 4, pytest.param(5, marks=pytest.mark.slow)],
)
def test_permutations_are_uniform(size: int) -> None:
    """Finds an error of 20% in the probability of one of the N! permutations."""
    draws = 4_000 * math.factorial(size) + 50_000
    orders = random.permuted_indices(SEED, tf.range(size), size, [draws]).numpy()
    codes = orders @ size ** np.arange(size)
    expected = [np.array(p) @ size ** np.arange(size) for p in itertools.permutations(range(size))]
    counts = np.array([np.sum(codes == code) for code in expected])
    assert counts.sum() == draws
    check_counts(counts, 1 / len(expected), error=0.2)


@pytest.mark.parametrize(
    ("size", "error"), [(11, 0.2), pytest.param(257, 0.35, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("positions", [(0, 1), pytest.param((2, 3), marks=pytest.mark.slow)])
def test_every_example_and_every_pair_is_included_alike(
    positions: tuple[int, int], size: int, error: float
) -> None:
    """Equal inclusion of examples makes the gradient unbiased; of pairs, its covariance right.

    For the larger set, pairs are counted by their distance.
    """
    pairs = random.permuted_indices(SEED, tf.constant(positions), size, [500_000]).numpy()
    check_counts(np.bincount(pairs[:, 0], minlength=size), 1 / size, error)
    check_counts(np.bincount(pairs[:, 1], minlength=size), 1 / size, error)
    distances = np.bincount((pairs[:, 1] - pairs[:, 0]) % size, minlength=size)
    assert distances[0] == 0
    check_counts(distances[1:], 1 / (size - 1), error)
    if size == 11:
        counts = np.bincount(pairs @ [size, 1], minlength=size**2).reshape(size, size)
        check_counts(counts[~np.eye(size, dtype=bool)], 1 / (size * (size - 1)), error)


def check_a_column(size: int = 257, draws: int = 500_000) -> None:
    """Checks the distance of two positions in one column of the grid; finds 35 % in one cell."""
    _, columns = random._grid(size)
    pairs = random.permuted_indices(SEED, tf.constant([3, 3 + columns]), size, [draws]).numpy()
    distances = np.bincount((pairs[:, 1] - pairs[:, 0]) % size, minlength=size)
    assert distances[0] == 0
    check_counts(distances[1:], 1 / (size - 1), error=0.35)


def test_positions_in_a_column_of_the_grid_are_included_alike() -> None:
    """One round adds the same to both, and so keeps their distance for every key."""
    check_a_column()


@pytest.mark.parametrize("num_rounds", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_few_rounds_are_rejected(num_rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the keys of the further rounds are left out."""
    keys = random._round_keys
    monkeypatch.setattr(
        random, "_round_keys", lambda *arguments: keys(*arguments)[: 2 * num_rounds]
    )
    with pytest.raises(Rejected):
        check_a_column()


def test_the_number_of_rounds() -> None:
    """Five where both sides of the grid are at least 16, otherwise twelve; two keys for each."""
    for size in (11, 255, 257, 2**20 + 7):
        rounds = 5 if min(random._grid(size)) >= 16 else 12
        assert len(random._round_keys(SEED, size, [])) == 2 * rounds


def test_a_rotation_in_place_of_a_permutation_is_rejected() -> None:
    """Negative control: single inclusions are uniform, pairs are not."""
    size, draws = 11, 100_000
    start = random.uniform_indices(SEED, tf.constant([0]), size, [draws]).numpy()
    pairs = (start + [0, 1]) % size
    check_counts(np.bincount(pairs[:, 1], minlength=size), 1 / size, error=0.2)
    counts = np.bincount(pairs @ [size, 1], minlength=size**2).reshape(size, size)
    with pytest.raises(Rejected):
        check_counts(counts[~np.eye(size, dtype=bool)], 1 / (size * (size - 1)), error=0.2)


def check_columns(size: int, columns: int) -> None:
    """Checks the columns of a permutation's grid in 16 groups; finds an error of 5% in one."""
    positions = tf.constant([0, size // 2, size - 1])
    drawn = random.permuted_indices(SEED, positions, size, [300_000]).numpy().ravel()
    groups = 16 * (drawn.astype(np.int64) % columns) // columns
    check_counts(np.bincount(groups, minlength=16), 1 / 16, error=0.05)


# For this size, the grid with the fewest cells beyond it has more than 2^16 columns.
HUGE = 1_941_759_096


def test_columns_of_a_huge_grid_come_alike() -> None:
    rows, columns = random._grid(HUGE)
    assert max(rows, columns) <= 2**16
    check_columns(HUGE, columns)


def test_columns_of_a_grid_that_is_too_wide_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    columns = 123_979
    monkeypatch.setattr(random, "_grid", lambda n: (-(-n // columns), columns))
    with pytest.raises(Rejected):
        check_columns(HUGE, columns)


@pytest.mark.parametrize("size", [0, -1, 2**31])
def test_number_of_examples_out_of_range(size: int) -> None:
    message = f"num_examples must be in 1 .. 2147483647. Received: {size}"
    with pytest.raises(ValueError, match=message):
        random.permuted_indices(SEED, tf.range(1), size)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_uniform_indices_are_uniform_along_positions_and_chains(size: int) -> None:
    """Finds an error of 10% in the probability of one index."""
    along = random.uniform_indices(SEED, tf.range(2_000_000), size)
    across = random.uniform_indices(SEED, tf.constant([5]), size, [2_000_000])
    for draws in (along, across):
        counts = np.bincount(draws.numpy().ravel(), minlength=size)
        assert len(counts) == size
        if size > 1:
            check_counts(counts, 1 / size, error=0.1)


def test_successive_uniform_indices_are_independent() -> None:
    draws = random.uniform_indices(SEED, tf.range(1_000_000), 10).numpy()
    counts = np.bincount(draws[0::2] * 10 + draws[1::2], minlength=100)
    check_counts(counts, 1 / 100, error=0.2)


@pytest.mark.parametrize(
    ("dtype", "jit"),
    [
        pytest.param(tf.float32, True, marks=pytest.mark.thorough),
        (tf.float64, True),
        pytest.param(tf.float32, False, marks=pytest.mark.thorough),
        pytest.param(tf.float64, False, marks=pytest.mark.thorough),
    ],
)
def test_normals_are_standard_normal(dtype: tf.DType, jit: bool) -> None:
    """Finds a Kolmogorov distance of 0.5%, and errors of 1% to 5% in the moments."""

    def draw() -> tf.Tensor:
        return random.normal([1_000_000], dtype, SEED)

    draws = (compiled(draw) if jit else draw)().numpy()
    assert draws.dtype == dtype.as_numpy_dtype
    check_cdf(draws, stats.norm.cdf, error=0.005)
    check_means(
        np.stack([draws, draws**2, draws**3, draws**4], axis=1),
        [0, 1, 0, 3],
        [0.01, 0.015, 0.035, 0.09],
    )


@pytest.mark.parametrize(
    ("num_rounds", "counter", "key", "expected"),
    [
        (13, "00000000 00000000", "00000000 00000000", "9d1c5ec6 8bd50731"),
        (13, "ffffffff ffffffff", "ffffffff ffffffff", "fd36d048 2d17272c"),
        (13, "243f6a88 85a308d3", "13198a2e 03707344", "ba3e4725 f27d669e"),
        (20, "00000000 00000000", "00000000 00000000", "6b200159 99ba4efe"),
        (20, "ffffffff ffffffff", "ffffffff ffffffff", "1cb996fc bb002be7"),
        (20, "243f6a88 85a308d3", "13198a2e 03707344", "c4923a9c 483df7a0"),
    ],
)
def test_threefry_gives_the_published_answers(
    num_rounds: int, counter: str, key: str, expected: str
) -> None:
    """The answers come from the file `kat_vectors` of Random123 (Salmon et al. 2011)."""
    (x, y), k, answer = ([int(w, 16) for w in t.split()] for t in (counter, key, expected))
    key, x, y = (tf.constant(w, tf.uint32) for w in (k, x, y))
    assert [int(w) for w in random._threefry(key, x, y, num_rounds)] == answer


@pytest.mark.parametrize("jit", [True, False])
def test_box_muller_is_exact_to_single_precision(jit: bool) -> None:
    """Allows a relative error of 5e-7, and 2^-23 / r in r from rounding u to 24 bits."""
    steps = np.linspace(0, 2**32 - 1, 2_001, dtype=np.uint32)
    x = np.concatenate([steps, 2 ** np.arange(32, dtype=np.uint32), 2**32 - 1 - steps[:50]])
    y = np.concatenate([steps, [1, 2**31 - 1, 2**31]]).astype(np.uint32)
    x, y = x[:, np.newaxis], y[np.newaxis]
    draw = compiled(random._box_muller) if jit else random._box_muller
    z = draw(tf.constant(x), tf.constant(y)).numpy()
    u = (np.floor(x / 2) + 0.5) / 2.0**31
    r, sine = np.sqrt(-2 * np.log(u)), np.sin(np.pi * y.view(np.int32) / 2.0**32)
    assert np.max(z) > 6.6 and np.min(z) < -6.6  # the largest value is sqrt(-2 log 2^-32) = 6.66
    assert np.all(np.abs(z - r * sine) <= np.abs(sine) * (5e-7 * r + 1.01 * 2.0**-23 / r))


@pytest.mark.parametrize("jit", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_tails_of_normals(jit: bool) -> None:
    """Finds 40% too many or too few normals beyond four standard deviations, on either side."""

    def counts(step: tf.Tensor) -> tf.Tensor:
        z = random.normal([2000, 1000], tf.float32, random.fold_in(SEED, step))
        return tf.stack([tf.math.count_nonzero(z > b) for b in (-4.0, -3.0, 3.0, 4.0)])

    counts = (compiled if jit else tf.function)(counts)
    above = sum(counts(tf.constant(i)).numpy() for i in range(8))
    bounds = [-np.inf, -4, -3, 3, 4, np.inf]
    check_counts(-np.diff([16_000_000, *above, 0]), np.diff(stats.norm.cdf(bounds)), error=0.4)


def test_normals_of_rows_columns_and_near_seeds_are_independent() -> None:
    """Finds a correlation of 1% of the normals or of their squares."""
    seeds = [[3, 4], [3, 5], [4, 4], [4, 3]]

    def draw() -> list[tf.Tensor]:
        return [random.normal([500, 2001], tf.float32, tf.constant(s)) for s in seeds]

    first, *others = (z.numpy() for z in compiled(draw)())
    pairs = [
        (first[1:], first[:-1]),
        (first[:, 1:], first[:, :-1]),
        (first[1:, 1:], first[:-1, :-1]),
    ]
    for a, b in [*pairs, *((first, z) for z in others)]:
        a, b = a.ravel(), b.ravel()
        check_means(np.stack([a * b, (a**2 - 1) * (b**2 - 1) / 2], axis=1), 0.0, error=0.02)


def test_large_draws_outside_xla_are_the_compiled_ones() -> None:
    def draw() -> tf.Tensor:
        return random.normal([100, 101], tf.float32, SEED)

    eager = draw().numpy()
    np.testing.assert_array_equal(eager, tf.function(draw, autograph=False)().numpy())
    np.testing.assert_array_equal(eager, compiled(draw)().numpy())


@pytest.mark.thorough
def test_shapes_and_short_dtypes_of_normals() -> None:
    shapes, dtypes = [[], [0, 3], [7], [2, 3, 5, 7]], [tf.float32, tf.float16, tf.bfloat16]
    draws = compiled(lambda: [[random.normal(s, d, SEED) for d in dtypes] for s in shapes])()
    for shape, (wide, *others) in zip(shapes, draws, strict=True):
        for dtype, draw in zip(dtypes[1:], others, strict=True):
            assert draw.shape == shape and draw.dtype == dtype
            assert tf.reduce_all(draw == tf.cast(wide, dtype))


def test_normals_of_a_shape_known_when_compiled_only() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])], jit_compile=True, autograph=False)
    def draw(like: tf.Tensor) -> tf.Tensor:
        return random.normal_like(like, SEED)

    expected = compiled(lambda: random.normal([5, 3], tf.float32, SEED))()
    np.testing.assert_array_equal(draw(tf.zeros([5, 3])), expected)


def test_a_normal_of_three_percent_more_spread_is_rejected() -> None:
    draws = 1.03 * random.normal([1_000_000], tf.float64, SEED).numpy()
    with pytest.raises(Rejected):
        check_cdf(draws, stats.norm.cdf, error=0.005)


@pytest.mark.parametrize("jit", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_parts_of_a_state_and_their_entries_get_independent_normals(jit: bool) -> None:
    """Finds a correlation of 2%."""
    state = {"a": tf.zeros([200_000, 2]), "b": [tf.zeros([200_000])]}

    def draw() -> Any:
        return random.normal_like(state, SEED)

    draws = (compiled(draw) if jit else draw)()
    tf.nest.assert_same_structure(state, draws)
    z = np.column_stack([draws["a"], draws["b"][0]])
    rows, columns = np.tril_indices(3)
    check_means(z[:, rows] * z[:, columns], rows == columns, error=0.04)
    check_means(z[1:] * z[:-1], 0.0, error=0.02)


@pytest.mark.parametrize("jit", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_numbers_of_many_parts_are_cut_from_one_array(jit: bool) -> None:
    shapes = [[5, 3], [5], [], [5, 2, 4], [0]]

    def draw(parts: Any) -> Any:
        return random.normal_like(parts, SEED)

    draws = (compiled(draw) if jit else draw)([tf.zeros(shape) for shape in shapes])
    whole = (compiled if jit else lambda fn: fn)(lambda: random.normal([1, 128], tf.float32, SEED))
    assert [list(z.shape) for z in draws] == shapes
    joined = np.concatenate([np.ravel(z) for z in draws])
    np.testing.assert_array_equal(joined, tf.reshape(whole(), [-1])[:61])


def test_many_parts_of_shapes_known_when_run_only() -> None:
    spec = [tf.TensorSpec([None, 3]), tf.TensorSpec([7])] * 3

    @tf.function(input_signature=[spec], autograph=False)
    def signs(parts: Any) -> Any:
        return random.rademacher_like(parts, SEED)

    drawn = signs([tf.zeros([5, 3]), tf.zeros([7])] * 3)
    assert [z.shape.as_list() for z in drawn] == [[5, 3], [7]] * 3
    assert set(np.concatenate([np.ravel(z) for z in drawn])) == {-1.0, 1.0}


def test_many_parts_of_different_dtypes_keep_them() -> None:
    parts = [tf.zeros([3], dtype) for dtype in (tf.float32, tf.float64) * 2]
    drawn = random.three_point_like(parts, SEED)
    assert [z.dtype for z in drawn] == [x.dtype for x in parts]


def test_rademacher_signs() -> None:
    signs = random.rademacher_like([tf.zeros([100_000]), tf.zeros([100_000], tf.float64)], SEED)
    assert [s.dtype for s in signs] == [tf.float32, tf.float64]
    a, b = (s.numpy().astype(np.float64) for s in signs)
    assert set(np.unique(a)) == set(np.unique(b)) == {-1.0, 1.0}
    check_means(np.column_stack([a, b, a * b]), 0.0, error=0.03)


@pytest.mark.parametrize("jit", [True, False])
def test_same_seed_same_draws(jit: bool) -> None:
    def draw(seed: tf.Tensor) -> tf.Tensor:
        return random.normal([5], tf.float32, random.split(seed, 2)[1])

    draw = compiled(draw) if jit else draw
    first, again, other = (draw(tf.constant(s)).numpy() for s in ([1, 2], [1, 2], [2, 1]))
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)


def test_seeds_of_splits_and_folds_are_distinct() -> None:
    seeds = [*random.split(SEED, 100), *(random.fold_in(SEED, i) for i in range(100))]
    assert len({tuple(s.numpy()) for s in seeds}) == 200


def test_integers_are_seeds_of_all_their_bits() -> None:
    seeds = [0, 1, -1, 2**31, 2**32, 2**40 + 1, np.int64(5)]
    made = [random.as_seed(s) for s in seeds]
    assert all(s.dtype == tf.int32 and s.shape == [2] for s in made)
    assert len({tuple(s.numpy()) for s in made}) == len(seeds)
    np.testing.assert_array_equal(random.as_seed(tf.constant([1, 2], tf.int64)), [1, 2])
    np.testing.assert_array_equal(random.as_seed(2**64 - 1), [-1, -1])


@pytest.mark.parametrize("bad", [None, "a", 0.5, [1], [0.5, 1.0], np.zeros([2, 2], int)], ids=repr)
@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: random.normal([2], tf.float32, seed),
        lambda seed: random.permuted_indices(seed, tf.range(4), 8),
        lambda seed: random.uniform_indices(seed, tf.range(4), 8),
        lambda seed: random.epoch_indices(seed, tf.constant(3, tf.int64), 4, 8),
    ],
    ids=["normal", "permuted", "uniform", "epoch"],
)
def test_draws_refuse_what_is_no_seed(draw: Any, bad: Any) -> None:
    with pytest.raises(ValueError, match="seed must be an integer"):
        draw(bad)


def test_sizes_of_draws() -> None:
    with pytest.raises(ValueError, match=r"seed must be .* shape \(3, 2\)"):
        random.permuted_indices(tf.zeros([3, 2], tf.int32), tf.range(4), 8)
    with pytest.raises(ValueError, match="batch_size must be in 1 .. 8. Received: 9"):
        random.epoch_indices(SEED, tf.constant(3, tf.int64), 9, 8)
    with pytest.raises(TypeError, match="num_examples must be an integer. Received: 8.0"):
        random.uniform_indices(SEED, tf.range(4), 8.0)


compiled_seed = compiled(random.as_seed)


@pytest.mark.parametrize("seed", [0, 5, -1, 2**31, 2**40 + 1, -(2**50)])
def test_scalar_tensors_and_arrays_are_the_seeds_of_their_integers(seed: int) -> None:
    for dtype in (np.int64, np.int32, np.uint32):
        if not np.iinfo(dtype).min <= seed <= np.iinfo(dtype).max:
            continue
        scalar = np.array(seed, dtype)
        inside = compiled_seed(tf.constant(scalar))
        for found in (random.as_seed(scalar), random.as_seed(tf.constant(scalar)), inside):
            np.testing.assert_array_equal(found, random.as_seed(seed))


def test_splits_and_folds_take_what_is_a_seed() -> None:
    for seed in (3, np.array(3), tf.constant(3)):
        np.testing.assert_array_equal(random.fold_in(seed, 1), random.fold_in(random.as_seed(3), 1))
        np.testing.assert_array_equal(random.split(seed, 2), random.split(random.as_seed(3), 2))
    for bad in (None, "a", 0.5):
        with pytest.raises(ValueError, match="seed must be an integer"):
            random.split(bad, 2)
    with pytest.raises(ValueError, match="num must be at least 1. Received: 0"):
        random.split(3, 0)


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        ("a", "seed must be an integer or two integers"),
        ([[1], [2, 3]], "seed must be an integer or two integers"),
        (None, "seed must be an integer or a pair of integers. Received: None"),
        (1.5, r"Received: dtype float32, shape \(\)"),
        ([1, 2, 3], r"Received: dtype int32, shape \(3,\)"),
        ([1.0, 2.0], "Received: dtype float32"),
        (True, "Received: dtype bool"),
    ],
)
def test_bad_seeds(seed: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random.as_seed(seed)


ALIAS_WEIGHTS = np.random.default_rng(3).gamma(0.3, size=50)


def alias_p_value(table: random.AliasTable, q: np.ndarray) -> float:
    """Returns the p-value of Pearson's test of 200,000 draws by 10 chains."""
    draws = table.draw(tf.constant([5, 6]), tf.range(20_000), [10])
    expected = 200_000 * q
    counts = np.bincount(np.ravel(draws), minlength=len(q))
    return stats.chi2.sf(np.sum((counts - expected) ** 2 / expected), len(q) - 1)


def test_alias_tables_draw_with_their_probabilities() -> None:
    """The control fails: one per cent of the probability goes to another index."""
    q = ALIAS_WEIGHTS / ALIAS_WEIGHTS.sum()
    q = (q + 0.002) / (1 + 50 * 0.002)
    table = random.AliasTable.from_probabilities(q)
    np.testing.assert_allclose(table.probabilities, q, atol=1e-7 / 50)
    assert alias_p_value(table, q) > 1e-6
    wrong = q.copy()
    wrong[np.argmax(q)] -= 0.01
    wrong[np.argmin(q)] += 0.01
    assert alias_p_value(table, wrong) < 1e-6


def test_alias_tables_draw_alike_in_every_mode_and_never_what_has_no_chance() -> None:
    table = random.AliasTable.from_probabilities(np.array([0.0, 3.0, 1.0, 0.0]))
    draw = lambda: table.draw(tf.constant([5, 6]), tf.range(500), [3])  # noqa: E731
    eager = draw().numpy()
    np.testing.assert_array_equal(eager, tf.function(draw, jit_compile=True)())
    assert set(np.unique(eager)) == {1, 2} and np.ptp(eager, axis=0).max() > 0


@pytest.mark.parametrize("draw", [random.permuted_indices, random.uniform_indices])
def test_a_short_integer_is_a_number_of_examples(draw: Any) -> None:
    found, expected = (draw(SEED, tf.range(3), n) for n in (np.uint8(200), 200))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random.fold_in(SEED, "one"), "data must hold integers. Received: 'one'"),
        (lambda: random.fold_in(SEED, 1.5), "data must hold integers. Received: 1.5"),
        (lambda: random.fold_in(SEED, [1, 2]), r"data must be of rank 0. Received: shape \(2,\)"),
        (lambda: random.fold_in(SEED, 2**40), "data must be in .*. Received: 1099511627776"),
        (lambda: random.integers_of([1, 2, 3]), "seed must be an integer or two integers"),
        (lambda: random.numbered_seed(SEED, [1.0]), r"numbers must hold integers. Received: \[1.0"),
        (lambda: random.permuted_indices(SEED, [-1], 5), r"positions must be in 0 .. 4. Received"),
        (lambda: random.permuted_indices(SEED, None, 5), "positions must hold integers. Received"),
        (lambda: random.uniform_indices(SEED, [0], 5, -3), "chain_shape must be a list of integer"),
        (lambda: random.epoch_indices(SEED, 0.5, 2, 5), "step must hold integers. Received: 0.5"),
        (lambda: random.normal([-1], tf.float32, SEED), "shape must be a list of integers of at "),
        (lambda: random.normal("one", tf.float32, SEED), "shape must be a list of integers of at"),
        (lambda: random.three_point([1], tf.int32, SEED), "dtype must be a floating dtype. Receiv"),
        (lambda: random.AliasTable.from_probabilities(np.array([-1, 2])), "probabilities must ha"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, [2**32, 7], np.array([0, -(2**31) - 1])])
def test_seeds_of_more_bits_are_refused(seed: Any) -> None:
    """They would be those of other integers."""
    with pytest.raises(ValueError, match="64 bits or two of 32, as of numpy.random.SeedSequence"):
        random.as_seed(seed)
    assert random.as_seed(np.random.SeedSequence(2**100).generate_state(2)).shape == [2]
