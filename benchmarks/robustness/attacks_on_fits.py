"""Attacks on `fit`, its losses, labels and data, and on models that go to production."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.attacks import attack, killed, told
from tfp_sgmcmc.keras import (
    SWAG,
    Chains,
    Collect,
    IndependentBatches,
    SamplerCallback,
    last_layer_laplace,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=[64, 2]).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
PRIOR = tfp.distributions.Normal(0.0, 1.0)
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(*first: keras.layers.Layer, loss: Any = SPARSE, units: int = 2) -> keras.Model:
    layers = [*first, keras.layers.Dense(3, "tanh"), keras.layers.Dense(units)]
    model = keras.Sequential([keras.Input([2]), *layers])
    model.compile("sgd", loss, jit_compile=False)
    return model


def sampled(model: keras.Model, y: Any = Y, x: Any = X, make: Any = None, **options: Any) -> Any:
    make = make or (lambda target: sgmcmc.SGLD(target, 1e-3))
    sampler = SamplerCallback(make, prior=PRIOR, collect=Collect(1, 0), **options)
    if isinstance(x, keras.utils.PyDataset):
        model.fit(x, epochs=2, verbose=0, callbacks=[sampler])
    else:
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[sampler])
    return sampler.result


@attack("losses and labels")
def a_loss_that_pairs_labels_with_other_outputs() -> None:
    class Squares(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return 0.5 * (y_true - y_pred) ** 2

    told("pairs labels", lambda: sampled(network(loss=Squares(), units=1), X[:, 0]), ValueError)


@attack("losses and labels")
def labels_out_of_range() -> None:
    told("y must hold numbers of classes in 0 .. 1", lambda: sampled(network(), Y + 1), ValueError)
    binary = keras.losses.BinaryCrossentropy(from_logits=True)
    signs = 2.0 * Y[:, np.newaxis] - 1
    told("in 0 .. 1", lambda: sampled(network(loss=binary, units=1), signs), ValueError)


@attack("losses and labels")
def a_batch_size_in_place_of_weights() -> None:
    told("batch_size=50", lambda: IndependentBatches(X, Y, 50), TypeError)


@attack("models")
def one_chain_of_sghmc() -> None:
    data = IndependentBatches(X, Y, batch_size=16)
    make = lambda target: sgmcmc.SGHMC(target, 1e-3, friction=1.0)  # noqa: E731
    found = sampled(network(), x=data, make=make, chains=Chains(1))
    assert found.samples[0].shape[1] == 1


@attack("models")
def a_last_layer_with_lora() -> None:
    model = network()
    model.layers[-1].enable_lora(1)
    told("trainable kernel and bias", lambda: last_layer_laplace(model, X, Y, PRIOR), ValueError)


@attack("models")
def swag_without_burn_in() -> None:
    network().fit(X, Y, epochs=4, verbose=0, callbacks=[swag := SWAG()])
    assert swag.num_collected == 2


@attack("models")
def an_adapted_normalization_is_shipped() -> None:
    normalization = keras.layers.Normalization()
    normalization.adapt(3 * X + 1)
    found = sampled(network(normalization)).posterior
    shipped = found.to_keras_model()
    np.testing.assert_allclose(shipped(X)["mean"], found.predict(X).mean, atol=1e-5)


@attack("models")
def a_lambda_is_shipped() -> None:
    posterior = sampled(network(keras.layers.Lambda(lambda x: 2 * x))).posterior
    told("the Lambda layer", posterior.to_keras_model, ValueError)


@attack("models")
def a_posterior_without_its_directory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        posterior = sampled(network(), output=folder).posterior
    told(folder, lambda: posterior.predict(X), ValueError)


def _automatic(folder: Path) -> Any:
    sampler = SamplerCallback(
        "auto", prior=PRIOR, collect=Collect(num_burnin_epochs=20), output=folder, seed=0
    )
    model = network()
    model.fit(IndependentBatches(X, Y, batch_size=16), epochs=40, verbose=0, callbacks=[sampler])
    return sampler.result


@attack("signals", quick=False)
def auto_is_killed_in_its_pilot() -> None:
    folder = Path(tempfile.mkdtemp()) / "run"
    for seconds in (1.0, 2.0, 3.0, 4.0):
        killed(lambda: _automatic(folder), seconds, signal.SIGKILL)
    assert np.isfinite(np.asarray(_automatic(folder).samples[0])).all()
