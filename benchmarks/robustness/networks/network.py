"""Networks of the table of architectures."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np

N = 16  # examples
CLASSES = 3


class Network(NamedTuple):
    """A model with the data and the loss that it is compiled with.

    Attributes:
      model: the model, neither compiled nor, if it is subclassed, built.
      x: inputs, a nest of arrays `[N, ...]`.
      y: labels, a nest of arrays `[N, ...]`.
      loss: the negative log likelihood.
      entries: the number of labels of an example, over which Keras takes the mean of the loss.
      draws: whether a call in training draws random numbers.
    """

    model: keras.Model
    x: Any
    y: Any
    loss: Any
    entries: int = 1
    draws: bool = False


def crossentropy() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns N standard normal arrays of a shape."""
    return np.random.default_rng(seed).normal(size=[N, *shape]).astype(np.float32)


def tokens(*shape: int, most: int, seed: int = 0) -> np.ndarray:
    """Returns N arrays of integers below `most`."""
    return np.random.default_rng(seed).integers(0, most, size=[N, *shape]).astype(np.int32)


def classes(*shape: int) -> np.ndarray:
    return tokens(*shape, most=CLASSES, seed=1)


def classifier(inputs: Any, outputs: Any, x: Any, **arguments: Any) -> Network:
    """Returns a Functional classifier with logits, given its last hidden layer."""
    logits = keras.layers.Dense(CLASSES, name="logits")(outputs)
    return Network(keras.Model(inputs, logits), x, classes(), crossentropy(), **arguments)
