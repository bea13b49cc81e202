"""SGLD with the natural gradient finds the exact posterior of ICA, on MEG and artificial data."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import kurtosis

from benchmarks.common import ica as model
from benchmarks.reproductions import ica, ica_artificial

GENERATOR = np.random.default_rng(0)


def test_log_likelihood() -> None:
    w, x = GENERATOR.standard_normal([2, 3, 3]), 5 * GENERATOR.standard_normal([4, 3])
    y = np.einsum("cij,nj->cni", w, x)
    expected = np.log(np.abs(np.linalg.det(w)))[:, None] - np.log(4 * np.cosh(y / 2) ** 2).sum(-1)
    np.testing.assert_allclose(model.log_likelihood(tf.constant(w), tf.constant(x)), expected)


def test_artificial_channels() -> None:
    """The standard error of a kurtosis is below 0.1 for 10^5 Laplace numbers, 0.016 for normal."""
    sources = model.artificial(100_000, 2, 3, seed=1)
    np.testing.assert_allclose(sources.std(axis=0), 1, atol=0.02)
    np.testing.assert_allclose(kurtosis(sources), [3, 3, 0, 0, 0], atol=0.5)
    np.testing.assert_allclose(np.corrcoef(sources.T), np.eye(5), atol=0.025)
    np.testing.assert_array_equal(sources, model.artificial(100_000, 2, 3, seed=1))


def test_start_has_the_order_and_signs_of_the_sources() -> None:
    sources = model.artificial(1000, 3, 0, seed=0)
    mixing = GENERATOR.standard_normal([3, 3])
    product = ica_artificial._start(sources @ mixing.T, mixing, seed=0) @ mixing
    np.testing.assert_allclose(product, model.SOURCE_SCALE * np.eye(3), atol=0.4)


def test_only_known_channels() -> None:
    with pytest.raises(ValueError, match=r"num_channels must be one of \[5, 10\]. Received: 6"):
        ica.run(num_channels=6)


@pytest.mark.slow
def test_quick_form_on_ten_channels() -> None:
    """With eight chains an index has a relative error of 0.1 to 0.3."""
    result = ica.run(**ica.EXPERIMENT.quick)
    assert 0.4 < result.acceptance < 0.7
    ratio = result.stochastic.instability / result.corrected.instability
    assert ratio.shape == (10,) and np.all(ratio > 0.5) and np.all(ratio < 2.5)
    assert 0.7 < result.stochastic.mean_amari / result.corrected.mean_amari < 1.5


@pytest.mark.slow
def test_quick_form_on_artificial_data() -> None:
    """Normal channels have larger indices than heavy ones, and both samplers see the same level."""
    result = ica_artificial.run(**ica_artificial.EXPERIMENT.quick)
    assert 0.85 < result.acceptance < 0.97
    assert 10_000 < result.threshold_step < 60_000
    sgld, exact, _ = result.posteriors
    for posterior in (sgld, exact):
        stable, unstable = np.split(posterior.instability.mean(axis=0), 2)
        assert unstable[0] > 1.2 * stable[-1]
    assert ica_artificial.claims(result)[3].held


@pytest.mark.slow
def test_sgld_agrees_with_the_exact_chain() -> None:
    """False alarms: about 1 % in all (t tests between chains, 15 degrees of freedom or more).

    The allowed biases are those of SGLD in linear theory: 6 to 8 % of an index.
    """
    result = ica.run(
        num_channels=5,
        first_step_size=0.03,
        last_step_size=0.005,
        num_steps=150_000,
        corrected_step_size=0.6,
        seed=0,
    )
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
