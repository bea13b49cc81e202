"""Conformal intervals and sets by MAPIE keep their coverage for wrong posteriors."""

import sys

import numpy as np
import pytest
import scipy.stats

from tests.harness.statistics import FALSE_ALARM
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, linear
from tfp_sgmcmc.keras import losses

pytest.importorskip("sklearn")

HELD_OUT, NEW, LEVEL = 400, 2000, 0.9
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=[HELD_OUT + NEW, 3]).astype(np.float32)
KERNELS = GENERATOR.normal(size=[20, 3, 3]).astype(np.float32)


def posterior_of(loss, units):
    model = linear(loss, units, run_eagerly=False, jit_compile=False)
    return small_models.posterior_of(model, [KERNELS[..., :units]])


def is_exact(covered):
    """Whether a count of covered rows follows the law of split conformal prediction; rate 1e-6.

    Coverage given the held-out rows is Beta(k, n + 1 - k) with k = ceil((n + 1) level), so that
    counts are beta-binomial for continuous scores.
    """
    k = int(np.ceil((HELD_OUT + 1) * LEVEL))
    law = scipy.stats.betabinom(NEW, k, HELD_OUT + 1 - k)
    return law.ppf(FALSE_ALARM / 2) <= covered <= law.isf(FALSE_ALARM / 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:mapie", "ignore::FutureWarning:mapie")
def test_conformal_intervals_of_a_posterior_that_is_too_sure():
    mapie = pytest.importorskip("mapie.regression")
    y = X @ [1.0, -1.0, 0.5] + GENERATOR.normal(size=len(X))
    posterior = posterior_of(losses.GaussianNLL(0.1), 1)
    regressor = posterior.to_estimator()
    mean = posterior.predict(X[:9]).predictive.mean[:, 0]
    np.testing.assert_array_equal(regressor.predict(X[:9]), mean)
    conformal = mapie.SplitConformalRegressor(regressor, confidence_level=LEVEL, prefit=True)
    conformal.conformalize(X[:HELD_OUT], y[:HELD_OUT])
    _, intervals = conformal.predict_interval(X[HELD_OUT:])
    low, high, new = intervals[:, 0, 0], intervals[:, 1, 0], y[HELD_OUT:]
    assert is_exact(np.sum((low <= new) & (new <= high)))
    low, high = posterior.predict(X[HELD_OUT:], quantiles=[0.05, 0.95]).predictive.quantiles[..., 0]
    assert not is_exact(np.sum((low <= new) & (new <= high)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:mapie", "ignore::FutureWarning:mapie")
def test_conformal_sets_of_classes():
    mapie = pytest.importorskip("mapie.classification")
    y = GENERATOR.integers(0, 3, size=len(X))  # the posterior knows nothing of them
    posterior = posterior_of(CROSSENTROPY, 3)
    classifier = posterior.to_estimator()
    np.testing.assert_allclose(classifier.predict_proba(X[:9]), posterior.predict(X[:9]).mean, 1e-6)
    conformal = mapie.SplitConformalClassifier(classifier, confidence_level=LEVEL, prefit=True)
    conformal.conformalize(X[:HELD_OUT], y[:HELD_OUT])
    chosen, sets = conformal.predict_set(X[HELD_OUT:])
    np.testing.assert_array_equal(chosen, classifier.predict(X[HELD_OUT:]))
    assert is_exact(sets[np.arange(NEW), y[HELD_OUT:], 0].sum())
    assert not is_exact(np.sum(chosen == y[HELD_OUT:]))


def test_a_binary_output_has_two_classes():
    posterior = posterior_of(small_models.BINARY_CROSSENTROPY, 1)
    classifier = posterior.to_estimator()
    p = classifier.predict_proba(X[:9])
    np.testing.assert_allclose(p[:, 1], posterior.predict(X[:9]).mean[:, 0], rtol=1e-6)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert [*classifier.classes_] == [0, 1]


def test_errors(monkeypatch):
    for loss, units in ((small_models.unit_normal, 1), (small_models.BINARY_CROSSENTROPY, 3)):
        with pytest.raises(ValueError, match="The model must have a single output"):
            posterior_of(loss, units).to_estimator()
    with pytest.raises(ValueError, match="one number for each row"):
        posterior_of(losses.GaussianNLL(1.0), 3).to_estimator().predict(X[:5])
    with pytest.raises(TypeError, match="sampled already. Pass prefit=True"):
        posterior_of(CROSSENTROPY, 3).to_estimator().fit(X, X)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"tfp_sgmcmc\[conformal\]\""):
        posterior_of(CROSSENTROPY, 3).to_estimator()
