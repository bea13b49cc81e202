"""The Amari distance and the instability index, by hand and by definition."""

import numpy as np

from benchmarks.common.ica import amari_distance, instability_index

GENERATOR = np.random.default_rng(0)


def test_amari_distance_knows_neither_order_nor_scale() -> None:
    w = GENERATOR.standard_normal([6, 3, 3])
    same = np.array([0.5, -2.0, 3.0])[:, None] * w[0][[2, 0, 1]]
    np.testing.assert_allclose(amari_distance(same, w[0]), 0.0, atol=1e-12)
    by_hand = 2 * (0.5 + 0.2)  # for P = [[1, 0.5], [0.2, 1]]
    np.testing.assert_allclose(amari_distance(np.array([[1, 0.5], [0.2, 1]]), np.eye(2)), by_hand)
    assert amari_distance(w, w[0]).shape == (6,)
    assert np.all(amari_distance(w[1:], w[0]) > 0.1)
    np.testing.assert_allclose(amari_distance(np.ones([3, 3]), np.eye(3)), 2 * 3 * 2)


def test_instability_index() -> None:
    samples, data = GENERATOR.standard_normal([9, 2, 3, 3]), GENERATOR.standard_normal([20, 3])
    found = instability_index(samples, data)
    mean = instability_index(samples, data, reduction="mean")
    for chain in range(2):
        for i in range(3):
            terms = [np.var(samples[:, chain, i, j]) * np.var(data[:, j]) for j in range(3)]
            np.testing.assert_allclose(found[chain, i], np.sum(terms))
            np.testing.assert_allclose(mean[chain, i], np.mean(terms))


def test_instability_index_with_weights_and_a_mean() -> None:
    """Weights 1, 2 and 0 count a state once, twice and not at all."""
    samples, data = GENERATOR.standard_normal([3, 2, 2]), GENERATOR.standard_normal([20, 2])
    found = instability_index(samples, data, weights=[1.0, 2.0, 0.0])
    np.testing.assert_allclose(found, instability_index(samples[[0, 1, 1]], data))
    mean = GENERATOR.standard_normal([2, 2])
    shifted = instability_index(samples, data, mean=mean)
    offset = (samples.mean(axis=0) - mean) ** 2 @ data.var(axis=0)
    np.testing.assert_allclose(shifted, instability_index(samples, data) + offset)
