"""Timeseries classification from scratch: convolutions in time, without BatchNormalization.

The series come from a generator: noise with a wave whose length is that of its class.
A layer that normalises by the batch would make the likelihood depend on the other examples.

python -m examples.timeseries_classification
"""

import keras
import numpy as np
from keras import layers

import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

LENGTH = 50


def series(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns series `[count, LENGTH, 1]` and classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, size=count)
    phase = rng.uniform(0, 2 * np.pi, size=[count, 1])
    wave = np.sin(2 * np.pi * np.arange(LENGTH) / np.array([8, 10, 13])[labels][:, None] + phase)
    return (wave + 1.5 * rng.normal(size=wave.shape)).astype(np.float32)[..., None], labels


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = series(300, 0), series(1000, 10)
    model = keras.Sequential([keras.Input([LENGTH, 1])])
    for _ in range(2):
        model.add(layers.Conv1D(8, 9, padding="same"))
        model.add(layers.LayerNormalization())
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling1D())
    model.add(layers.Dense(3, "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    epochs = train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback()  # starts anew, and uses all rows
    model.fit(x, y, epochs=epochs, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
