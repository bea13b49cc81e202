"""The networks, their data and their step sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

import tfp_sgmcmc as sgmcmc
from benchmarks.predictions import docstrings
from datasets import mnist

L = keras.layers
NUM_DIGITS, NUM_OUT = 2000, 1000


class Data(NamedTuple):
    """Training data, test data, and inputs of another law (None for a regression)."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    x_out: np.ndarray | None


class Problem(NamedTuple):
    """A network for its data.

    Attributes:
      data: loads the data.
      layers: the share of dropout and the options of layers with weights -> layers.
      num_outputs: classes, or 2 for mean and scale.
      epochs: passes over the data of a single training.
      step: epsilon, the step size of SGLD.
      momentum_step: h, the step size of SGHMC.
      batch_size: n.
    """

    data: Callable[[], Data]
    layers: Callable[[float, dict[str, Any]], list[Any]]
    num_outputs: int
    epochs: int
    step: float
    momentum_step: float
    batch_size: int = 50

    @property
    def is_regression(self) -> bool:
        return self.num_outputs == 2


@keras.saving.register_keras_serializable("benchmarks")
class ScaledPrior(keras.regularizers.Regularizer):
    """The negative log density of N(0, 10 / fan-in) for a kernel, divided by N."""

    def __init__(self, num_examples: int):
        self.num_examples = num_examples

    def __call__(self, x: Any) -> Any:
        fan_in = math.prod(x.shape[:-1])
        return fan_in / 20 / self.num_examples * keras.ops.sum(keras.ops.square(x))

    def get_config(self) -> dict[str, Any]:
        return {"num_examples": self.num_examples}


def make_model(
    problem: Problem, data: Data, dropout: float = 0.0, *, is_penalized: bool = True
) -> keras.Model:
    """Returns a compiled model, whose penalties are the prior unless it has none."""
    num = len(data.x)
    unit = keras.regularizers.L2(0.5 / num)
    given = {"kernel_regularizer": ScaledPrior(num), "bias_regularizer": unit}
    given = given if is_penalized else {}
    layers = problem.layers(dropout, given)
    shape, dtype = data.x.shape[1:], data.x.dtype.name
    model = keras.Sequential(
        [keras.Input(shape, dtype=dtype), *layers, L.Dense(problem.num_outputs, **given)]
    )
    loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if problem.is_regression:
        loss = sgmcmc.keras.losses.GaussianNLL()
    optimizer = keras.optimizers.Adam(2e-3)
    model.compile(optimizer, loss, jit_compile=True, steps_per_execution=10)
    return model


def _digits(flatten: bool) -> Data:
    x, y, x_test, y_test = mnist(flatten=False)
    rng = np.random.default_rng(0)
    train, test = rng.permutation(len(x))[:NUM_DIGITS], rng.permutation(len(x_test))[:NUM_DIGITS]
    shape = [-1, 784] if flatten else [-1, 28, 28, 1]
    turned = np.rot90(x_test[test[:NUM_OUT]], axes=(1, 2))
    images = (a.reshape(shape) for a in (x[train], x_test[test], turned))
    first, second, third = images
    return Data(first, y[train], second, y_test[test], third)


def _docstrings() -> Data:
    x, y, others = docstrings.docstrings()
    cut = len(x) * 2 // 3
    rows = np.random.default_rng(0).permutation(len(others))[:NUM_OUT]
    return Data(x[:cut], y[:cut], x[cut:], y[cut:], others[rows])


def _diabetes() -> Data:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype(np.float32), y[order, np.newaxis].astype(np.float32)
    x, y = x / x[:300].std(axis=0), (y - y[:300].mean()) / y[:300].std()
    return Data(x[:300], y[:300], x[300:], y[300:], None)


def _dense(units: int) -> Callable[[float, dict[str, Any]], list[Any]]:
    return lambda share, given: [L.Dense(units, "relu", **given), L.Dropout(share)]


def _convolutions(share: float, given: dict[str, Any]) -> list[Any]:
    return [
        L.Conv2D(8, 5, 2, activation="relu", **given),
        L.Conv2D(16, 3, 2, activation="relu", **given),
        L.MaxPooling2D(),
        L.Flatten(),
        L.Dropout(share),
    ]


def _words(share: float, given: dict[str, Any]) -> list[Any]:
    prior = given.get("bias_regularizer")  # N(0, 1)
    embedding = L.Embedding(
        docstrings.VOCABULARY, 16, embeddings_regularizer=prior, embeddings_initializer="normal"
    )
    return [embedding, L.GlobalAveragePooling1D(), L.Dense(32, "relu", **given), L.Dropout(share)]


PROBLEMS = {
    "digits, dense": Problem(lambda: _digits(True), _dense(50), 10, 15, 2e-5, 3e-3),
    "digits, ConvNet": Problem(lambda: _digits(False), _convolutions, 10, 10, 5e-6, 1e-3),
    "diabetes": Problem(_diabetes, _dense(30), 2, 40, 4e-4, 4e-3),
    "docstrings": Problem(_docstrings, _words, len(docstrings.PACKAGES), 15, 1e-4, 2e-3),
}
