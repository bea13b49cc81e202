"""Temperatures of probabilities that are known by construction, and of masked and weighted data."""

import sys

import keras
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from tests.harness.statistics import FALSE_ALARM
from tests.keras import small_models
from tests.keras.small_models import CROSSENTROPY, linear
from tfp_sgmcmc.keras import TemperatureScaling

N, TEMPERATURE = 4000, 2.5
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=[N, 3]).astype(np.float32)
KERNEL = GENERATOR.normal(size=[3, 4]).astype(np.float32)
LOGITS = (X @ KERNEL).astype(np.float64)


def classes(temperature):
    """Labels drawn from the model's probabilities with a temperature."""
    p = scipy.special.softmax(LOGITS / temperature, axis=1)
    return (p.cumsum(axis=1) < GENERATOR.uniform(size=[N, 1])).sum(axis=1)


def posterior_of(loss, kernels=KERNEL[np.newaxis], num_chains=None):
    return small_models.posterior_of(linear(loss, kernels.shape[-1]), [kernels], num_chains)


def z_score(found, expected):
    """The maximum-likelihood estimate of 1 / T is normal with the Fisher information's variance."""
    p = scipy.special.softmax(LOGITS / expected, axis=1)
    mean = np.sum(p * LOGITS, axis=1)
    information = np.sum(p * (LOGITS - mean[:, None]) ** 2)
    return (1 / found - 1 / expected) * np.sqrt(information)


@pytest.mark.parametrize("form", ["numbers", "one-hot", "bits"])
def test_the_temperature_of_the_labels_is_found(form):
    """Two-sided z-test at 1e-6; labels at another temperature are rejected."""
    y, limit = classes(TEMPERATURE), scipy.stats.norm.isf(FALSE_ALARM / 2)
    loss, labels = {
        "numbers": (CROSSENTROPY, y),
        "one-hot": (keras.losses.CategoricalCrossentropy(from_logits=True), np.eye(4)[y]),
        "bits": (small_models.BINARY_CROSSENTROPY, None),
    }[form]
    posterior = posterior_of(loss)
    if form == "bits":  # four independent entries; the estimate is that of SciPy
        labels = GENERATOR.uniform(size=[N, 4]) < scipy.special.expit(LOGITS / TEMPERATURE)
        found = posterior.calibrate(X, labels, batch_size=N)

        def loss_at(t):
            return np.logaddexp(0, (1 - 2 * labels) * LOGITS / t).sum()

        best = scipy.optimize.minimize_scalar(loss_at, bounds=(0.1, 20), method="bounded").x
        assert found.temperature == pytest.approx(best, rel=1e-4)
        p = found(posterior.predict(X[:50]).mean)
        np.testing.assert_allclose(p, scipy.special.expit(LOGITS[:50] / best), rtol=1e-3)
        return
    found = posterior.calibrate(X, labels, batch_size=N)
    assert abs(z_score(found.temperature, TEMPERATURE)) < limit
    assert abs(z_score(found.temperature, 1.2 * TEMPERATURE)) > limit
    p = found(posterior.predict(X, batch_size=N).mean)
    expected = scipy.special.softmax(LOGITS / found.temperature, axis=1)
    np.testing.assert_allclose(p, expected, rtol=1e-3, atol=1e-6)
    before, after = found.log_densities
    assert after == pytest.approx(np.mean(np.log(p[range(N), y])), rel=1e-5) and after > before
    exact = posterior.evaluate(X, labels, batch_size=N).log_predictive_density
    assert before == pytest.approx(exact, rel=1e-5)


def test_weights_masks_and_ignored_classes_leave_entries_out():
    """Two chains; only the entries that count are as in a smaller data set."""
    tables = np.random.default_rng(1).normal(size=[5, 2, 40, 3]).astype(np.float32)
    embedding = keras.layers.Embedding(40, 3, mask_zero=True)
    model = keras.Sequential([keras.Input([2], dtype="int32"), embedding])
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=9),
        run_eagerly=True,
    )
    posterior = small_models.posterior_of(model, [tables], 2)
    generator = np.random.default_rng(2)
    tokens = generator.integers(1, 40, size=[60, 2])
    p = posterior.predict(tokens).mean
    y = (p.cumsum(axis=-1) < generator.uniform(size=[60, 2, 1])).sum(axis=-1)
    weight = generator.integers(1, 3, size=[60]) * 1.0
    expected = posterior.calibrate(np.repeat(tokens, weight.astype(int), 0),
                                   np.repeat(y, weight.astype(int), 0))  # fmt: skip
    padded = np.concatenate([tokens, np.zeros([5, 2], int), tokens[:5]])
    labels = np.concatenate([y, np.ones([5, 2], int), np.full([5, 2], 9)])
    found = posterior.calibrate(padded, labels, np.concatenate([weight, np.ones([10])]))
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-4)


def test_errors(monkeypatch):
    posterior = posterior_of(CROSSENTROPY)
    with pytest.raises(ValueError, match="temperature of 0 is best"):
        posterior.calibrate(X[:20], LOGITS[:20].argmax(axis=1))
    with pytest.raises(ValueError, match="temperature of infinity is best"):
        posterior.calibrate(X[:20], LOGITS[:20].argmin(axis=1))
    with pytest.raises(ValueError, match="exactly one output .* Received: 0 of them"):
        posterior_of(small_models.unit_normal).calibrate(X[:9], LOGITS[:9])
    with pytest.raises(TypeError, match="probabilities must be an array"):
        TemperatureScaling(1.0, -1)("p")
    labels = classes(1.0)[:20]
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ModuleNotFoundError, match="calibrate needs SciPy"):
        posterior.calibrate(X[:20], labels)
