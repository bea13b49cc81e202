"""Networks of the comparison of ensembles other than dense ones: of images."""

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
