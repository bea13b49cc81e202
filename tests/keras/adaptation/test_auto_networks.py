"""No network diverges under `SamplerCallback("auto")`."""

import keras
import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.adaptation.small_auto import D, N, X, Y, auto, quietly


def sequences():
    tokens = np.random.default_rng(2).integers(0, 7, size=[N, 6])
    return tokens, (tokens[:, 0] % 3).astype(np.int32)


def images():
    x = np.random.default_rng(2).normal(size=[N, 8, 8, 1]).astype(np.float32)
    return x, (x.mean(axis=(1, 2, 3)) > 0).astype(np.int32)


def numbers():
    return X, (Y[:, 0] > 0).astype(np.int32)


def classifier(shape, *layers, dtype="float32"):
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input(shape, dtype=dtype)
    for layer in layers:
        x = layer(x)
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    model.compile(loss=small_models.CROSSENTROPY)
    return model


def residual(width):
    dense = keras.layers.Dense(width, "relu")
    return lambda x: x + keras.layers.Dense(width)(dense(keras.layers.LayerNormalization()(x)))


def attention(x):
    return keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 4)(x, x))


def heteroscedastic():
    model = small_models.sequential(
        keras.layers.Dense(16, "tanh"),
        keras.layers.Dense(2),
        loss=sgmcmc.keras.NegativeLogLikelihood(small_models.heteroscedastic_normal),
        inputs=D,
        jit_compile=True,
    )
    return model


L = keras.layers
NETWORKS = {
    "relu": (lambda: classifier([D], L.Dense(32, "relu"), L.Dense(32, "relu")), numbers),
    "tanh": (lambda: classifier([D], L.Dense(32, "tanh")), numbers),
    "convolutions": (
        lambda: classifier([8, 8, 1], L.Conv2D(4, 3, activation="relu"), L.Flatten()),
        images,
    ),
    "recurrent": (
        lambda: classifier([6], L.Embedding(7, 8), L.LSTM(8, unroll=True), dtype="int32"),
        sequences,
    ),
    "attention": (
        lambda: classifier(
            [6], L.Embedding(7, 8), attention, L.GlobalAveragePooling1D(), dtype="int32"
        ),
        sequences,
    ),
    "embedding": (
        lambda: classifier([6], L.Embedding(7, 8), L.Flatten(), dtype="int32"),
        sequences,
    ),
    "residual": (lambda: classifier([D], L.Dense(16), residual(16), residual(16)), numbers),
    "regression": (heteroscedastic, lambda: (X, Y)),
    "wide": (lambda: classifier([D], L.Dense(1000, "relu")), numbers),
    "deep": (lambda: classifier([D], *(L.Dense(16, "relu") for _ in range(8))), numbers),
    "batch normalisation": (
        lambda: classifier([D], L.Dense(16), L.BatchNormalization(), L.ReLU()),
        numbers,
    ),
    "dropout": (lambda: classifier([D], L.Dense(32, "relu"), L.Dropout(0.2)), numbers),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("fresh", [False, True], ids=["independent batches", "epochs"])
def test_no_network_diverges(name, fresh):
    """After its burn-in the loss stays below that of a model that knows nothing but the prior."""
    make, data = NETWORKS[name]
    (x, y), model = data(), make()
    callback = auto(num_burnin_epochs=30)
    if fresh:
        history = quietly(model, callback, x, y, batch_size=20, epochs=60)
    else:
        given = sgmcmc.keras.IndependentBatches(x, y, batch_size=20, seed=5)
        history = quietly(model, callback, given, None, epochs=60)
    loss = np.array(history["loss"])
    assert np.isfinite(loss).all() and len(callback.samples[0])
    assert loss[-3:].mean() < 1.2 * loss[0], loss
