"""The losses against SciPy, and models that are saved with them."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.stats

from tests.keras import small_models
from tfp_sgmcmc.keras import losses

# Keras converts to NumPy in model.save in a way that NumPy 2 warns about.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

RNG = np.random.default_rng(0)
X = RNG.normal(size=[5, 3]).astype(np.float32)
OUTPUTS = RNG.normal(size=[5, 4]).astype(np.float32)
Y = RNG.integers(0, 5, size=[5, 2]).astype(np.float32)
A, B = OUTPUTS[:, :2].astype(np.float64), np.log1p(np.exp(OUTPUTS[:, 2:], dtype=np.float64))

CASES = {  # loss, outputs, log densities
    "gaussian": (losses.GaussianNLL(), OUTPUTS, scipy.stats.norm(A, B).logpdf(Y)),
    "known": (losses.GaussianNLL(0.7), OUTPUTS[:, :2], scipy.stats.norm(A, 0.7).logpdf(Y)),
    "t": (losses.StudentTNLL(3.0), OUTPUTS, scipy.stats.t(3, A, B).logpdf(Y)),
    "known t": (losses.StudentTNLL(3, 2), OUTPUTS[:, :2], scipy.stats.t(3, A, 2).logpdf(Y)),
    "poisson": (losses.PoissonNLL(), OUTPUTS[:, :2], scipy.stats.poisson(np.exp(A)).logpmf(Y)),
    "binomial": (
        losses.NegativeBinomialNLL(),
        OUTPUTS,
        scipy.stats.nbinom(B, B / (B + np.exp(A))).logpmf(Y),
    ),
    "known binomial": (
        losses.NegativeBinomialNLL(2.0),
        OUTPUTS[:, :2],
        scipy.stats.nbinom(2, 2 / (2 + np.exp(A))).logpmf(Y),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_configurations(name):
    """Densities are summed over the two entries of y; a configuration makes an equal loss."""
    loss, outputs, log_p = CASES[name]
    np.testing.assert_allclose(loss(Y, outputs), -log_p.sum(axis=1).mean(), rtol=1e-5)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(loss)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(loss) and again.get_config() == loss.get_config()
    assert again(Y, outputs) == loss(Y, outputs)


LOAD = """
import json, sys, numpy as np, keras, tfp_sgmcmc.keras
x, y = np.load(sys.argv[2]), np.load(sys.argv[3])
model = keras.models.load_model(sys.argv[1])
value = model.evaluate(x, y, verbose=0)
print(json.dumps([type(model.loss).__name__, model.loss.get_config(), value]))
"""


def saved(path, loss, units):
    model = small_models.linear(loss, units, run_eagerly=True)
    checkpoint = keras.callbacks.ModelCheckpoint(path)
    model.fit(X, Y, epochs=1, verbose=0, callbacks=[checkpoint])
    return model


@pytest.mark.parametrize(
    "name",
    ["gaussian", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "gaussian")],
)
def test_models_are_saved_and_loaded(name, tmp_path):
    loss, outputs, _ = CASES[name]
    model = saved(tmp_path / "model.keras", loss, outputs.shape[1])
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == loss.get_config()
    assert loaded.evaluate(X, Y, verbose=0) == model.evaluate(X, Y, verbose=0)
    again = keras.models.model_from_json(model.to_json())
    assert again.loss.get_config() == loss.get_config()


@pytest.mark.slow
def test_a_new_process_loads_the_model(tmp_path):
    """It imports tfp_sgmcmc.keras and nothing of the script that saved the model."""
    path = tmp_path / "model.keras"
    model = saved(path, losses.StudentTNLL(3.0), 4)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    arguments = [sys.executable, "-c", LOAD, path, tmp_path / "x.npy", tmp_path / "y.npy"]
    run = subprocess.run(arguments, capture_output=True, text=True, check=True)
    name, config, value = json.loads(run.stdout.splitlines()[-1])
    assert (name, config) == ("StudentTNLL", model.loss.get_config())
    assert value == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-6)


@pytest.mark.thorough
def test_the_sampler_takes_them():
    model = small_models.affine(losses.GaussianNLL(), 2)
    callback = small_models.sampler(small_models.sgld(1e-3), 5)
    small_models.fit(model, callback, X, Y[:, :1], batch_size=5, epochs=3)
    found = callback.posterior.predict(X, quantiles=[0.1, 0.9]).predictive
    assert (found.quantiles[0] < found.quantiles[1]).all()


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: losses.GaussianNLL(0.0), ValueError, "scale must be a positive finite number"),
        (lambda: losses.GaussianNLL("wide"), TypeError, "scale must be"),
        (lambda: losses.StudentTNLL(-1.0), ValueError, "df must be"),
        (lambda: losses.StudentTNLL(None), TypeError, "df must be"),
        (lambda: losses.NegativeBinomialNLL(np.inf), ValueError, "concentration must be"),
        (lambda: losses.PoissonNLL("total"), ValueError, "reduction must be"),
        (lambda: losses.GaussianNLL()(Y, OUTPUTS[:, :3]), ValueError, "even number of entries"),
        (lambda: losses.GaussianNLL()(Y[:, :1], OUTPUTS), ValueError, r"y must have shape \(5, 2"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_lists_are_taken_as_by_the_losses_of_keras():
    loss, outputs, log_p = CASES["known"]
    np.testing.assert_allclose(loss(Y.tolist(), outputs.tolist()), -log_p.sum(1).mean(), rtol=1e-5)
