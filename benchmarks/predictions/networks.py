"""Networks of the comparison of ensembles other than two dense layers."""

from __future__ import annotations

from typing import Any

import keras

L = keras.layers


def convnet(x: Any) -> Any:
    """Keras' "Simple MNIST convnet" with half of its filters, up to the last layer."""
    for filters in (16, 32):
        x = L.Conv2D(filters, 3, activation="relu")(x)
        x = L.MaxPooling2D()(x)
    return L.Dropout(0.5)(L.Flatten()(x))


def normalized_convnet(x: Any) -> Any:
    """Two convolutions with BatchNormalization, up to the last layer."""
    for filters in (16, 32):
        x = L.Conv2D(filters, 3, use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
        x = L.MaxPooling2D()(x)
    return L.Flatten()(x)


@keras.saving.register_keras_serializable("tfp_sgmcmc.benchmarks")
class Positions(L.Layer):
    """Adds a trainable vector for each place of a sequence."""

    def build(self, shape: Any) -> None:
        self.places = self.add_weight(shape=shape[1:], initializer="uniform", name="embeddings")

    def call(self, x: Any) -> Any:
        return x + self.places


def transformer(x: Any) -> Any:
    """Keras' "Text classification with Transformer" at a half of its size, up to the last layer."""
    x = Positions()(L.Embedding(4000, 16)(x))
    x = L.LayerNormalization()(x + L.Dropout(0.1)(L.MultiHeadAttention(2, 16)(x, x)))
    y = L.Dense(16)(L.Dense(16, "relu")(x))
    x = L.LayerNormalization()(x + L.Dropout(0.1)(y))
    x = L.Dropout(0.1)(L.GlobalAveragePooling1D()(x))
    return L.Dropout(0.1)(L.Dense(20, "relu")(x))


def bag_of_embeddings(x: Any) -> Any:
    """The mean of trainable embeddings of words, up to the last layer."""
    x = L.GlobalAveragePooling1D()(L.Embedding(4000, 16)(x))
    return L.Dropout(0.3)(L.Dense(20, "relu")(x))


def recurrent(x: Any) -> Any:
    """A GRU over the rows of an image of 64 pixels, up to the last layer."""
    return L.GRU(32)(L.Reshape([8, 8])(x))


def layer_normalized(x: Any) -> Any:
    """Two dense layers with LayerNormalization, up to the last layer."""
    for _ in range(2):
        x = L.ReLU()(L.LayerNormalization()(L.Dense(50)(x)))
    return x


def dropout(x: Any) -> Any:
    """Two dense layers, each with dropout, up to the last layer."""
    for _ in range(2):
        x = L.Dropout(0.2)(L.Dense(50, "relu")(x))
    return x
