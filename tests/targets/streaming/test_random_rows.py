"""Random rows of a stream are uniform, and each is copied once."""

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.targets.streaming.passes import RandomRows

N, BLOCK = 40, 7


def kept(most: int, total: int, seed: int) -> np.ndarray:
    """Returns the numbers of the rows that are kept of N ones, in blocks."""
    rows = RandomRows(most, total, np.random.default_rng(seed))
    for start in range(0, N, BLOCK):
        numbers = np.arange(start, min(start + BLOCK, N))
        rows.add((tf.constant(numbers), tf.constant(np.stack([numbers, -numbers], axis=-1))))
    assert rows.num_seen == N
    first, second = rows.rows()
    np.testing.assert_array_equal(second, np.stack([first, -first], axis=-1))
    return first


def test_each_row_is_as_likely_and_none_comes_twice() -> None:
    """Each row is in 500 of 1,000 draws of half of the rows, with a standard deviation of 16."""
    counts = np.zeros(N)
    for seed in range(1_000):
        found = kept(N // 2, N, seed)
        assert len(found) == N // 2 and (np.diff(found) > 0).all()
        counts[found] += 1
    assert np.abs(counts - 500).max() < 6 * 16


def test_all_rows_are_kept_if_they_fit_and_those_that_do_not_come_are_left_out() -> None:
    np.testing.assert_array_equal(kept(N, N, 0), np.arange(N))
    np.testing.assert_array_equal(kept(N + 3, N + 3, 0), np.arange(N))
    found = kept(30, N + 20, 1)  # the last 20 rows of 60 are dropped
    assert len(found) < 30 and found.max() < N
