"""Simple MNIST convnet: an annealed ensemble beside early stopping, on 1,000 images.

python -m examples.mnist_convnet
"""

import keras
from keras import layers

import datasets
import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    x, y, x_test, y_test = datasets.mnist(flatten=False)
    x, y, x_test, y_test = x[:1000, ..., None], y[:1000], x_test[:1000, ..., None], y_test[:1000]
    model = keras.Sequential(
        [
            keras.Input([28, 28, 1]),
            layers.Conv2D(8, 5, strides=2, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    epochs = train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback()  # starts anew, and uses all rows
    model.fit(x, y, epochs=epochs, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
