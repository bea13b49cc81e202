"""SGLD with the natural gradient finds the exact posterior of ICA on MEG data."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.reproductions import ica

GENERATOR = np.random.default_rng(0)


def test_log_likelihood() -> None:
    w, x = GENERATOR.standard_normal([2, 3, 3]), 5 * GENERATOR.standard_normal([4, 3])
    y = np.einsum("cij,nj->cni", w, x)
    expected = np.log(np.abs(np.linalg.det(w)))[:, None] - np.log(4 * np.cosh(y / 2) ** 2).sum(-1)
    np.testing.assert_allclose(ica.log_likelihood(tf.constant(w), tf.constant(x)), expected)


@pytest.mark.slow
def test_sgld_agrees_with_the_exact_chain() -> None:
    """False alarms: about 1 % in all (t tests between chains, 15 degrees of freedom or more).

    The allowed biases are those of SGLD in linear theory: 6 to 8 % of an index.
    """
    result = ica.run(seed=0)
    sgld, exact = result.stochastic, result.corrected
    assert 0.4 < result.acceptance < 0.7
    for posterior in (sgld, exact):  # otherwise there is nothing to compare
        assert np.all(posterior.mean_error < 0.2 * posterior.deviation)
        assert np.all(posterior.instability_error < 0.15 * posterior.instability)

    def distance_of_means(mean: np.ndarray) -> float:
        """Returns the largest distance in standard errors; no sources may be swapped."""
        return np.max(np.abs(mean - exact.mean) / np.hypot(sgld.mean_error, exact.mean_error))

    assert distance_of_means(sgld.mean) < 5
    assert distance_of_means(result.start) > 15  # control: the chains have left FastICA's estimate

    error = np.hypot(
        sgld.instability_error / sgld.instability, exact.instability_error / exact.instability
    )

    def index_agrees(index: np.ndarray) -> np.ndarray:
        return np.abs(np.log(index / exact.instability)) < np.log(1.1) + 4 * error

    assert np.all(index_agrees(sgld.instability))
    # Controls: another source's index; a posterior at twice the temperature.
    assert not np.all(index_agrees(np.sort(sgld.instability)[::-1][np.argsort(exact.instability)]))
    assert not np.any(index_agrees(2 * sgld.instability))

    by_chain = [p.amari.mean(axis=0) for p in (sgld, exact)]
    error = np.hypot(*(np.std(a, ddof=1) / np.sqrt(len(a)) for a in by_chain))
    assert abs(sgld.mean_amari - exact.mean_amari) < 0.1 * exact.mean_amari + 4 * error
    assert error < 0.1 * exact.mean_amari
