"""Structured data learning with wide and deep networks, on 1,000 people of the census (a9a).

python -m examples.wide_and_deep
"""

import keras
import tensorflow_probability as tfp
from keras import layers

import datasets
import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    x, y, x_test, y_test = datasets.a9a()
    x, y, x_test, y_test = x[:1000], y[:1000, None] > 0, x_test[:2000], y_test[:2000, None] > 0
    inputs = keras.Input([x.shape[1]])
    deep = layers.Dense(16, "relu")(layers.Dense(16, "relu")(inputs))
    outputs = layers.Dense(1)(layers.Concatenate()([inputs, deep]))
    model = keras.Model(inputs, outputs)
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=False)
    model.fit(x, y, batch_size=50, epochs=20, verbose=0)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.NOGIN(target, step_size=0.01, friction=10.0, covariance="diag"),
        prior=tfp.distributions.Normal(0.0, 0.3),
        collect=sgmcmc.keras.Collect(1000, 49),
        num_examples=1000,
        seed=0,
    )
    data = sampler.resident(x, y, batch_size=100, steps_per_call=500, steps_per_epoch=5000)
    model.fit(data, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
