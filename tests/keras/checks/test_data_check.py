"""Units of inputs and targets that no network fits are told before the first step."""

import re
import warnings

import keras
import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.checks.data_check import check_data
from tfp_sgmcmc.keras.data.training_data import Source

RNG = np.random.default_rng(0)
X = RNG.normal(size=[64, 3]).astype(np.float32)
Y = (X[:, 0] + 0.1 * RNG.normal(size=64)).astype(np.float32)


def told(
    x: np.ndarray, y: np.ndarray, loss: keras.losses.Loss, outputs: int, weight: object = None
) -> str:
    """Returns what is warned of, before the first step of a network on these arrays."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input(x.shape[1:]), keras.layers.Dense(8, "relu"), keras.layers.Dense(outputs)]
    model = keras.Sequential(layers)
    model.compile("sgd", loss)
    model.test_on_batch(x[:1], y[:1])  # builds the loss, as fit does
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_data(model, Source(kind="arrays", num_examples=len(x), arrays=(x, y, weight)))
    return " ".join(str(w.message) for w in found)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X, 5e4 * (Y + 3), "y of up to 2.*e.05"),
        (X, np.round(5e4 * (Y + 3)), "y of up to 2.*e.05"),
        (X * [1.0, 5e4, 1.0], Y, "x of up to 1.*e.05"),
    ],
)
def test_other_units_than_those_of_a_network_are_told(x, y, words):
    found = told(x.astype(np.float32), y, sgmcmc.keras.losses.GaussianNLL(), 2)
    assert "Standardise y" in found
    assert re.search(words, found)


def test_usual_data_are_not():
    nll, classes = sgmcmc.keras.losses.GaussianNLL(), RNG.integers(0, 10, 64)
    softmax = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert not told(X, Y, nll, 2)
    assert not told(10 * X, 10 * Y, nll, 2)
    assert not told(RNG.uniform(0, 255, [64, 100]).astype(np.float32), classes, softmax, 10)
    counts = RNG.poisson(300, 64).astype(np.float32)
    assert not told(X, counts, sgmcmc.keras.losses.PoissonNLL(), 1)


def test_weights_have_no_units():
    nll, weight = sgmcmc.keras.losses.GaussianNLL(), RNG.uniform(1e4, 5e5, 64)
    assert not told(X, Y, nll, 2, weight)  # as those of a census
    missing = np.arange(64) % 4 > 0
    assert not told(X, np.where(missing, 1e9, Y), nll, 2, np.where(missing, 0, weight))
    assert "Standardise y" in told(X, 5e4 * (Y + 3), nll, 2, weight)
    assert "Standardise y" in told(X, 5e4 * (Y + 3), nll, 2, 1e-6 * weight)


def test_negative_rates_are_refused():
    counts = RNG.poisson(2, 64).astype(np.float32)
    with pytest.raises(ValueError, match=r"must be rates.* Received: outputs from -.*PoissonNLL"):
        told(X, counts, keras.losses.Poisson(), 1)
    assert not told(X, counts, sgmcmc.keras.losses.PoissonNLL(), 1)
