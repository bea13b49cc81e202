"""Simple MNIST convnet: the weights of a convolutional network, on 1,000 images.

python -m examples.mnist_convnet
"""

import keras
import tensorflow_probability as tfp
from keras import layers

import datasets
import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show


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
    model.fit(x, y, batch_size=100, epochs=30, verbose=0)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGHMC(target, step_size=1e-3, friction=50.0, covariance="diag"),
        prior=tfp.distributions.Normal(0.0, 0.3),
        collect=sgmcmc.keras.Collect(300, 29),
        num_examples=1000,
        seed=0,
    )
    data = sampler.resident(x, y, batch_size=100, steps_per_call=100, steps_per_epoch=1200)
    model.fit(data, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
