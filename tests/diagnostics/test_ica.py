"""The Amari distance and the instability index, by hand and by definition."""

import functools

import numpy as np
import pytest

from tfp_sgmcmc.diagnostics import amari_distance, instability_index

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
    found = instability_index(samples, data, reduction="sum")
    mean = instability_index(samples, data, reduction="mean")
    for chain in range(2):
        for i in range(3):
            terms = [np.var(samples[:, chain, i, j]) * np.var(data[:, j]) for j in range(3)]
            np.testing.assert_allclose(found[chain, i], np.sum(terms))
            np.testing.assert_allclose(mean[chain, i], np.mean(terms))
    with pytest.warns(DeprecationWarning, match="From 1.0 .* reduction='sum'"):
        np.testing.assert_array_equal(instability_index(samples, data), mean)
    with pytest.raises(ValueError, match="reduction must be 'sum' or 'mean'. Received: 'max'"):
        instability_index(samples, data, reduction="max")


def test_instability_index_with_weights_and_a_mean() -> None:
    """Weights 1, 2 and 0 count a state once, twice and not at all."""
    index = functools.partial(instability_index, reduction="sum")
    samples, data = GENERATOR.standard_normal([3, 2, 2]), GENERATOR.standard_normal([20, 2])
    found = index(samples, data, weights=[1.0, 2.0, 0.0])
    np.testing.assert_allclose(found, index(samples[[0, 1, 1]], data))
    mean = GENERATOR.standard_normal([2, 2])
    shifted = index(samples, data, mean=mean)
    offset = (samples.mean(axis=0) - mean) ** 2 @ data.var(axis=0)
    np.testing.assert_allclose(shifted, index(samples, data) + offset)


def test_bad_input() -> None:
    message = r"data \[N, d\]. Received: shapes \(5, 3, 3\) and \(9, 2\)"
    with pytest.raises(ValueError, match=message):
        instability_index(np.ones([5, 3, 3]), np.ones([9, 2]), reduction="sum")
    with pytest.raises(ValueError, match="v must have full rank"):
        amari_distance(np.eye(2), np.ones([2, 2]))
