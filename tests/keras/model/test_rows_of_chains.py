"""Hashes of rows: the same in every mode, spread evenly, and blind to padding."""

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.keras.model.log_prob import RowsOfChains, folds, num_missed, row_hashes

RNG = np.random.default_rng(0)
C = 5


def test_hashes_are_even_and_independent_of_folds():
    """20,000 rows of three binary numbers among 40: 16 x 5 cells of 250 rows each.

    The chi-square statistic has 79 degrees of freedom; it is above 160 with probability 2e-7.
    """
    x = RNG.integers(0, 2, size=[20_000, 40]).astype(np.float32)
    hashes = row_hashes(x, 7)
    counts = np.zeros([16, C])
    np.add.at(counts, (hashes.numpy() >> 28, folds(hashes, C).numpy()), 1)
    assert ((counts - 250) ** 2 / 250).sum() < 160
    assert len(set(hashes.numpy().tolist())) > 19_990  # copies and chance: 0.05 expected
    assert np.mean(hashes.numpy() < row_hashes(x, 8).numpy()) < 0.53


def test_hashes_are_the_same_compiled_and_for_other_batches_and_dtypes():
    x = {"a": RNG.normal(size=[30, 4]), "b": RNG.integers(0, 9, size=[30, 2, 3])}
    want = row_hashes(x, 3).numpy()
    single = {"a": x["a"].astype(np.float32), "b": x["b"].astype(np.int32)}
    compiled = tf.function(lambda x: row_hashes(x, 3), jit_compile=True)
    np.testing.assert_array_equal(compiled(single), want)
    order = RNG.permutation(30)[:11]
    np.testing.assert_array_equal(row_hashes({k: a[order] for k, a in x.items()}, 3), want[order])
    other = {"a": x["a"], "b": x["b"][::-1]}
    assert np.all(row_hashes(other, 3).numpy() != want)


def test_padding_does_not_count_and_order_does():
    tokens = RNG.integers(1, 9, size=[10, 6])
    padded = np.pad(tokens, [(0, 0), (0, 4)])
    np.testing.assert_array_equal(row_hashes(padded, 0), row_hashes(tokens, 0))
    assert np.all(row_hashes(tokens[:, ::-1], 0).numpy() != row_hashes(tokens, 0).numpy())
    words = np.array([["a", "b"], ["b", "a"]])
    assert len(set(row_hashes(words, 0).numpy().tolist())) == 2


def test_two_chains_miss_a_row_of_the_pool():
    x = RNG.normal(size=[1000, 3]).astype(np.float32)
    hashes = row_hashes(x, 1).numpy()
    pool = hashes < 2**30
    fold = folds(tf.constant(hashes), C).numpy()
    rows = RowsOfChains(2**30, C, 1, np.zeros(C))
    seen = rows.seen(x).numpy()
    np.testing.assert_array_equal((seen == 0).sum(axis=0), np.where(pool, 2, 0))
    for row in np.flatnonzero(pool)[:20]:
        assert set(np.flatnonzero(seen[:, row] == 0)) == {fold[row], (fold[row] + 1) % C}
    np.testing.assert_array_equal(num_missed(fold[pool], C), (seen == 0).sum(axis=1))
