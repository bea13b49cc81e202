"""Image classification with Vision Transformer, on 1,000 images of MNIST.

python -m examples.vision_transformer
"""

import keras
import numpy as np
from keras import layers, ops

import datasets
import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

PATCHES, DIM = 4, 16


def digits() -> tuple[np.ndarray, ...]:
    """Returns 1,000 images of 14 x 14 pixels for training and 1,000 for tests, with labels."""
    x, y, x_test, y_test = datasets.mnist(flatten=False)
    small = [a[:1000].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4))[..., None] for a in (x, x_test)]
    return small[0], y[:1000], small[1], y_test[:1000]


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    x, y, x_test, y_test = digits()
    inputs = keras.Input([14, 14, 1])
    patches = layers.Reshape([PATCHES, 49])(ops.image.extract_patches(inputs, 7))
    # Each place has a bias of its own, which is its embedding.
    hidden = layers.EinsumDense("npx,xd->npd", (PATCHES, DIM), bias_axes="pd")(patches)
    for _ in range(2):
        normal = layers.LayerNormalization()(hidden)
        hidden += layers.MultiHeadAttention(2, 8)(normal, normal)
        hidden += layers.Dense(DIM)(layers.Dense(32, "gelu")(layers.LayerNormalization()(hidden)))
    model = keras.Model(inputs, layers.Dense(10, "softmax")(layers.Flatten()(hidden)))
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    epochs = train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback()  # starts anew, and uses all rows
    model.fit(x, y, epochs=epochs, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
