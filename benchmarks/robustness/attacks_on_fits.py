"""Attacks on `fit`, its losses, labels and data, and on models that go to production."""

from __future__ import annotations

import functools
import tempfile
import unittest.mock
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.attacks import attack, told
from tfp_sgmcmc.internal import replicas
from tfp_sgmcmc.keras import (
    SWAG,
    Chains,
    Collect,
    IndependentBatches,
    SamplerCallback,
    last_layer_laplace,
)
from tfp_sgmcmc.keras.batch_steps import BatchSteps, BatchTrainFunction

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


@attack("losses and labels")
def weights_that_are_negative_or_zero() -> None:
    said = "finite weights that are not negative and not all zero"
    for weights in (0 * X[:, 0], np.r_[X[1:, 0] ** 2, -1.0]):
        for callback in (
            SamplerCallback(),
            SamplerCallback(lambda t: sgmcmc.SGLD(t, 1e-3), prior=PRIOR, collect=Collect(1, 0)),
        ):
            fit = functools.partial(network().fit, X, Y, sample_weight=weights, verbose=0)
            told(said, lambda f=fit, c=callback: f(callbacks=[c]), ValueError)


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
    model = network()
    model.layers[-1].trainable = False
    told("with trainable=False", lambda: last_layer_laplace(model, X, Y, PRIOR), ValueError)


@attack("models")
def swag_without_burn_in() -> None:
    network().fit(X, Y, epochs=4, verbose=0, callbacks=[swag := SWAG()])
    assert swag.num_collected == 2


@attack("models")
def adapted_preprocessing_is_shipped() -> None:
    words = np.array([["red fox"], ["red hen"], ["blue hen"], ["fox"]] * 16)
    layers = keras.layers
    for x, layer in (
        (3 * X + 1, layers.Normalization()),
        (X, layers.Discretization(num_bins=4)),
        (words, layers.StringLookup(output_mode="multi_hot")),
        (words, layers.TextVectorization(output_mode="tf_idf")),
        (words, layers.Hashing(5, output_mode="multi_hot")),
        (np.round(9 * X[:, :1]).astype(np.int64), layers.IntegerLookup(output_mode="one_hot")),
        (X, layers.Rescaling(0.5)),
    ):
        if hasattr(layer, "adapt"):
            layer.adapt(x)
        dtype = "string" if x.dtype.kind == "U" else x.dtype.name
        first = [keras.Input(x.shape[1:], dtype=dtype), layer]
        if isinstance(layer, layers.Discretization):
            first.append(layers.Rescaling(0.25))
        model = keras.Sequential([*first, layers.Dense(2)])
        model.compile("sgd", SPARSE, jit_compile=False)
        x = tf.constant(x)
        found = sampled(model, x=x).posterior
        shipped, expected = found.to_keras_model(), found.predict(x).mean
        np.testing.assert_allclose(shipped(x)["mean"], expected, atol=1e-5, err_msg=layer.name)


@attack("models", quick=False)
def auto_keeps_few_samples() -> None:
    """20,000 states would let `predict` with quantiles run for minutes."""
    collect = Collect(num_burnin_epochs=20)
    sampler = SamplerCallback("auto", prior=PRIOR, collect=collect, seed=0)
    batches = IndependentBatches(X, Y, batch_size=16)
    network().fit(batches, epochs=120, verbose=0, callbacks=[sampler])
    assert len(sampler.result.samples[0]) <= 200


@attack("models")
def a_worker_of_fit_is_lost() -> None:
    def lose(iterator: Any) -> None:
        raise tf.errors.UnavailableError(None, None, "connection reset")

    nothing: Any = None
    steps = BatchSteps(nothing, nothing, nothing)
    function = BatchTrainFunction(network(), steps, False, lambda: None, lambda: None)
    function._function = lose
    with unittest.mock.patch.object(replicas, "are_several", lambda strategy: True):
        told("Another worker of this fit was lost", lambda: function(iter([])), RuntimeError)


@attack("models")
def a_lambda_is_shipped() -> None:
    posterior = sampled(network(keras.layers.Lambda(lambda x: 2 * x))).posterior
    told("the Lambda layer", posterior.to_keras_model, ValueError)


@attack("models")
def a_posterior_without_its_directory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        posterior = sampled(network(), output=folder).posterior
    told(folder, lambda: posterior.predict(X), ValueError)
