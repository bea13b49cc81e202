"""Networks of the comparison of ensembles other than dense ones: of images and of texts."""

from __future__ import annotations

from typing import Any

import keras

from benchmarks.predictions import docstrings

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


def transformer(x: Any) -> Any:
    """Keras' "Text classification with Transformer" with 16 features, up to the last layer."""
    x = L.Embedding(docstrings.VOCABULARY, 16)(x)
    x = x + L.Embedding(docstrings.LENGTH, 16)(keras.ops.arange(docstrings.LENGTH))
    attended = L.MultiHeadAttention(num_heads=2, key_dim=16)(x, x)
    x = L.LayerNormalization(epsilon=1e-6)(x + L.Dropout(0.1)(attended))
    widened = L.Dense(16)(L.Dense(32, activation="relu")(x))
    x = L.LayerNormalization(epsilon=1e-6)(x + L.Dropout(0.1)(widened))
    x = L.Dropout(0.1)(L.GlobalAveragePooling1D()(x))
    return L.Dropout(0.1)(L.Dense(20, activation="relu")(x))
