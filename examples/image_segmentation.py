"""Image segmentation with a U-Net-like architecture: a class for each pixel.

The images come from a generator: a disc and a square in noise.

python -m examples.image_segmentation
"""

import keras
import numpy as np
from keras import layers

import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

SIZE = 16


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images `[count, SIZE, SIZE, 1]` and the classes of their pixels."""
    rng = np.random.default_rng(seed)
    labels = np.zeros([count, SIZE, SIZE], np.int32)
    row, column = np.mgrid[:SIZE, :SIZE]
    for label in labels:
        (a, b), (c, d) = rng.uniform(4, SIZE - 4, size=[2, 2])
        label[(abs(row - a) < 3) & (abs(column - b) < 3)] = 1
        label[(row - c) ** 2 + (column - d) ** 2 < 9] = 2
    levels = np.array([0.0, 1.0, 1.5])[labels]
    return (levels + 0.7 * rng.normal(size=labels.shape)).astype(np.float32)[..., None], labels


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = images(40, 0), images(100, 10)
    inputs = keras.Input([SIZE, SIZE, 1])
    fine = layers.Conv2D(6, 3, padding="same", activation="relu")(inputs)
    coarse = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(fine)
    coarse = layers.Conv2D(8, 3, padding="same", activation="relu")(coarse)
    up = layers.Conv2DTranspose(6, 3, strides=2, padding="same", activation="relu")(coarse)
    outputs = layers.Conv2D(3, 3, padding="same", activation="softmax")(
        layers.Concatenate()([up, fine])
    )
    model = keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    epochs = train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback()  # starts anew, and uses all rows
    model.fit(x, y, epochs=epochs, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
