"""Networks that are refused, each with the words that tell why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from benchmarks.robustness.networks.network import CLASSES, Network, classes, crossentropy, numbers

D = 4


def _classifier(first: keras.Layer, loss: Any = None) -> Network:
    model = keras.Sequential([keras.Input([D]), first, layers.Dense(CLASSES)])
    return Network(model, numbers(D), classes(), loss or crossentropy())


class OwnStep(keras.Model):
    """A model with a training step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = layers.Dense(CLASSES)

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


NETWORKS: dict[str, tuple[Callable[[], Network], str]] = {
    "own train_step": (
        lambda: Network(OwnStep(), numbers(D), classes(), crossentropy()),
        "must have the train_step of keras.Model",
    ),
    "constraint on weights": (
        lambda: _classifier(layers.Dense(5, kernel_constraint="max_norm")),
        "must have no constraint",
    ),
    "weights in bfloat16": (
        lambda: _classifier(layers.Dense(5, dtype="bfloat16")),
        "must be of float32 or float64",
    ),
    "squared error": (
        lambda: _classifier(layers.Dense(5), "mse"),
        "is not a negative log likelihood",
    ),
    "logits taken for probabilities": (
        lambda: _classifier(layers.Dense(5), keras.losses.SparseCategoricalCrossentropy()),
        "outputs of the model must be probabilities",
    ),
    "SpectralNormalization": (  # its call changes the kernel in training
        lambda: _classifier(layers.SpectralNormalization(layers.Dense(5, "relu"))),
        "must not assign .*kernel, which is sampled",
    ),
    "nothing to sample": (
        lambda: Network(
            keras.Sequential([keras.Input([CLASSES]), layers.Rescaling(2.0)]),
            numbers(CLASSES), classes(), crossentropy(),
        ),
        "no trainable weights",
    ),
}  # fmt: skip
