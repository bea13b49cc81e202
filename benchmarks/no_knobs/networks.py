"""Ten networks through `fit` with `SamplerCallback("auto")`, against the same trained by Adam.

The networks have prior N(0, 1) on all weights. Adam takes 30 or 60 epochs of batches of 50. The
chain takes 20,000 steps on independent batches of the same size: so many, as temperatures can be
told only after ten times the steps in which a direction forgets its start. Its pilot takes three
eighths of them, and its burn-in one eighth more. "-" stands for a temperature that cannot be told,
and after "~" comes a rough standard error. "*" marks runs that were told to take more steps.

The command fails if a network diverges.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from sklearn.datasets import load_diabetes, load_digits

import tfp_sgmcmc as sgmcmc
from benchmarks.common import command_line
from benchmarks.common.tables import Table
from datasets import mnist

L = keras.layers
LEARNING_RATE, STEPS_PER_EXECUTION = 3e-3, 10
EPOCHS, NUM_STEPS, QUICK_STEPS, KEPT = 40, 20_000, 2_000, 400  # of the chain
LOOKS = 5  # at the temperature in an epoch
VOCABULARY, LENGTH, NUM_TEXTS = 30, 12, 1500
Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # x, y, test x, test y


class Network(NamedTuple):
    """A network for its data; one with two outputs predicts a mean and a scale."""

    data: Callable[[], Data]
    layers: Callable[[], list[Any]]
    num_outputs: int
    epochs: int = 60  # of Adam
    batch_size: int = 50


class Residual(keras.layers.Layer):
    """x + W2 tanh(W1 x)."""

    def __init__(self, units: int):
        super().__init__()
        self.first, self.second = L.Dense(units, "tanh"), L.Dense(units)

    def build(self, shape: Any) -> None:
        self.first.build(shape)
        self.second.build(shape)

    def call(self, x: Any) -> Any:
        return x + self.second(self.first(x))


class Attention(keras.layers.Layer):
    """Self-attention with a residual connection, and the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = L.MultiHeadAttention(num_heads=2, key_dim=8)

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)

    def call(self, x: Any) -> Any:
        return keras.ops.mean(x + self.attention(x, x), axis=1)


def images(flat: bool) -> Data:
    x, y = load_digits(return_X_y=True)
    x = (x / 8 - 1).astype(np.float32)
    return split(x if flat else x.reshape(-1, 8, 8, 1), y)


def texts() -> Data:
    """Synthetic sentences: the class is that of the word that follows the last marker, word 0."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, VOCABULARY, [NUM_TEXTS, LENGTH])
    marker = rng.integers(0, LENGTH - 1, NUM_TEXTS)
    rows = np.arange(NUM_TEXTS)
    x[rows, marker] = 0
    return split(x.astype(np.int32), x[rows, marker + 1] % 3)


def digits() -> Data:
    found = mnist()
    return found.x_train, found.y_train, found.x_test, found.y_test


def diabetes() -> Data:
    x, y = load_diabetes(return_X_y=True)
    x, y = (a / a.std(axis=0) for a in (x, y - y.mean()))
    return split(x.astype(np.float32), y.astype(np.float32)[:, np.newaxis])


def split(x: np.ndarray, y: np.ndarray) -> Data:
    """Holds out a quarter of the rows."""
    order = np.random.default_rng(1).permutation(len(x))
    train, test = np.split(order, [len(x) // 4 * 3])
    return x[train], y[train], x[test], y[test]


NETWORKS: dict[str, Network] = {
    "dense": Network(
        lambda: images(True), lambda: [L.Dense(50, "relu"), L.Dense(50, "relu")], 10
    ),
    "convolutions": Network(
        lambda: images(False),
        lambda: [
            L.Conv2D(8, 3, activation="relu"), L.MaxPooling2D(), L.Conv2D(16, 2, activation="relu"),
            L.Flatten(),
        ],
        10,
    ),
    "recurrent": Network(texts, lambda: [L.Embedding(VOCABULARY, 8), L.GRU(16, unroll=True)], 3),
    "attention": Network(texts, lambda: [L.Embedding(VOCABULARY, 16), Attention()], 3),
    "embedding": Network(
        texts, lambda: [L.Embedding(VOCABULARY, 8), L.GlobalAveragePooling1D()], 3
    ),
    "normalised": Network(
        lambda: images(True),
        lambda: [L.Dense(50), L.LayerNormalization(), L.ReLU(), L.Dense(50, "tanh")],
        10,
    ),
    "residual": Network(
        lambda: images(True), lambda: [L.Dense(30), Residual(30), Residual(30)], 10
    ),
    "regression": Network(diabetes, lambda: [L.Dense(30, "tanh")], 2),
    "wide": Network(lambda: images(True), lambda: [L.Dense(1000, "relu")], 10, epochs=30),
    "deep": Network(
        lambda: images(True), lambda: [L.Dense(20, "relu") for _ in range(8)], 10
    ),
    "mnist": Network(digits, lambda: [L.Dense(100, "relu")], 10, epochs=5, batch_size=128),
}  # fmt: skip
QUICK = ["dense", "regression"]


class Row(NamedTuple):
    """The outcome for a network.

    Attributes:
      weights: D.
      error: what `fit` raised; empty if it did not.
      kernel: what was chosen.
      predicted, local, measured: temperatures along the hottest direction, and their mean over
        weights; see `SamplerCallback.temperatures`.
      measured_error: the standard error of the first of `measured`.
      doubts: why the predictions cannot be told for sure; empty if they can.
      log_density: mean log predictive density of the held-out examples, of the chain and of Adam.
      accuracy: share of held-out classes predicted by both; NaN for regressions.
      advised: whether the run said that its steps are too few.
      seconds: of the chain's fit.
    """

    name: str
    weights: int
    error: str
    kernel: str
    doubts: str
    predicted: tuple[float, float]
    local: tuple[float, float]
    measured: tuple[float, float]
    measured_error: float
    log_density: tuple[float, float]
    accuracy: tuple[float, float]
    advised: bool
    seconds: float


def run(*, seed: int = 0, mnist: bool = False, quick: bool = False) -> Iterator[Row]:
    """Yields a row for each network.

    Args:
      seed: of the weights, Adam's batches and the chain.
      mnist: runs the network 784-100-10 on all of MNIST instead, which those ten leave out.
      quick: few steps of two networks.
    """
    tf.get_logger().setLevel("ERROR")
    ten = [name for name in NETWORKS if name != "mnist"]
    for name in ["mnist"] if mnist else QUICK if quick else ten:
        network = NETWORKS[name]
        num_steps, epochs = (QUICK_STEPS, 8) if quick else (NUM_STEPS, network.epochs)
        yield one(name, network, num_steps, epochs, seed)


def one(name: str, network: Network, num_steps: int, epochs: int, seed: int) -> Row:
    """Trains a network by Adam, and samples it."""
    x, y, test_x, test_y = network.data()
    trained = build(network, x, seed, steps_per_execution=STEPS_PER_EXECUTION)
    trained.fit(x, y, batch_size=network.batch_size, epochs=epochs, verbose=0)
    adam = scores(tf.constant(trained.predict(test_x, verbose=0))[tf.newaxis], test_y)

    model = build(network, x, seed, jit_compile=True)
    callback = sgmcmc.keras.SamplerCallback(
        "auto",
        prior=tfp.distributions.Normal(0.0, 1.0),
        collect=sgmcmc.keras.Collect(
            num_steps_between_results=max(0, num_steps // KEPT - 1), num_burnin_epochs=EPOCHS // 2
        ),
        seed=seed,
        num_examples=len(x),
    )
    steps = num_steps // EPOCHS
    data = callback.resident(
        x,
        y,
        batch_size=network.batch_size,
        steps_per_call=max(1, steps // LOOKS),
        steps_per_epoch=steps,
    )
    begin, error = time.perf_counter(), ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[callback])
        except (ValueError, sgmcmc.NonFiniteChainError) as raised:
            error = f"{type(raised).__name__}: {raised}"
    seconds = time.perf_counter() - begin
    chosen, nan = callback.result.choices, (np.nan, np.nan)
    found = callback.result.temperatures
    has_draws = not error and len(callback.samples[0])
    chain = scores(callback.posterior.outputs(test_x), test_y) if has_draws else nan
    numbers = {} if chosen is None else chosen.numbers
    return Row(
        name,
        sum(np.size(w) for w in model.get_weights()),
        error,
        f"{numbers.get('kernel')}, {numbers.get('step_size', np.nan):.2g}",
        (chosen.doubts or "") if chosen else "",
        pair(found.get("predicted")),
        pair(found.get("local")),
        pair(found.get("measured")),
        found.get("measured", {}).get("worst_error", np.nan),
        (chain[0], adam[0]),
        (chain[1], adam[1]),
        any("steps" in str(w.message) for w in caught),
        seconds,
    )


def pair(temperatures: dict[str, float] | None) -> tuple[float, float]:
    if temperatures is None:
        return np.nan, np.nan
    return temperatures["worst"], temperatures["mean"]


def build(network: Network, x: np.ndarray, seed: int, **compiled: Any) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
    outputs = inputs
    for layer in [*network.layers(), L.Dense(network.num_outputs)]:
        outputs = layer(outputs)
    model = keras.Model(inputs, outputs)
    loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if network.num_outputs == 2:
        loss = sgmcmc.keras.NegativeLogLikelihood(gaussian)
    model.compile(keras.optimizers.Adam(LEARNING_RATE), loss, **compiled)
    return model


def gaussian(outputs: tf.Tensor) -> Any:
    """Returns the law of an observation: mean and log scale are the outputs."""
    return tfp.distributions.Normal(outputs[..., :1], tf.exp(outputs[..., 1:]))


def scores(outputs: Any, y: np.ndarray) -> tuple[float, float]:
    """Returns log predictive density and accuracy of outputs `[draws, rows, outputs]`."""
    outputs = tf.convert_to_tensor(outputs)
    count = tf.math.log(tf.cast(tf.shape(outputs)[0], outputs.dtype))
    if y.ndim == 2:
        values = gaussian(outputs).log_prob(y)[..., 0]
        accuracy = np.nan
    else:
        logs = tf.nn.log_softmax(outputs)
        values = tf.gather(logs, tf.broadcast_to(y, logs.shape[:-1]), batch_dims=2)
        right = tf.argmax(tf.reduce_logsumexp(logs, axis=0), axis=-1) == y
        accuracy = float(np.mean(right))
    density = tf.reduce_logsumexp(values, axis=0) - count
    return float(tf.reduce_mean(density)), accuracy


COLUMNS = dict.fromkeys(
    ("", "D", "kernel, step", "predicted: worst", "mean", "local: worst", "mean ",
     "measured: worst", "mean  ", "log density", "Adam", "accuracy", "Adam ", "s"), "",
)  # fmt: skip


def line(row: Row) -> str:
    """Returns what happened to a network."""
    note = row.error or ("too few steps, and it says so" if row.advised else "enough steps")
    doubts = f" The prediction is not sure: {row.doubts}." if row.doubts else ""
    return f"{row.name}: {note}.{doubts}"


def show(rows: Iterator[Row]) -> Table:
    """Prints the table and returns it; exits with an error if a network diverged."""
    done = []
    for row in rows:
        done.append(row)
        print(line(row), flush=True)
    print()
    table = command_line.print_table(COLUMNS, [cells(row) for row in done])
    diverged = [row.name for row in done if row.error or not np.isfinite(row.log_density[0])]
    print(f"\n{len(done)} networks: {len(diverged)} diverged.")
    if diverged:
        raise SystemExit(f"These diverged: {', '.join(diverged)}.")
    return table


def cells(row: Row) -> list[str]:
    figures = ["-" if np.isnan(x) else f"{x:.3g}" for x in
               (*row.predicted, *row.local, *row.measured)]  # fmt: skip
    if not np.isnan(row.measured_error):
        figures[-2] += f" ~ {row.measured_error:.2g}"
    scored = [*row.log_density, *row.accuracy]
    return [
        row.name + "*" * row.advised,
        f"{row.weights}",
        row.kernel,
        *figures,
        *(f"{x:.3f}" for x in scored),
        f"{row.seconds:.0f}",
    ]


if __name__ == "__main__":
    command_line.main(__doc__, run, show, table="no_knobs.networks")
