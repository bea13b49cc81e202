"""Timeseries forecasting for weather: an LSTM with a mean and a scale for the next hours.

The temperatures come from a generator: days, slow weather, and noise that is larger at noon.

python -m examples.weather_forecasting
"""

import keras
import numpy as np
from keras import layers

import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

PAST, AHEAD = 12, 3  # of two hours each


def temperatures() -> tuple[np.ndarray, np.ndarray]:
    """Returns windows of the past `[windows, PAST, 1]`, and the value that follows."""
    rng, steps = np.random.default_rng(0), 1500
    weather = np.zeros(steps)
    for t in range(1, steps):
        weather[t] = 0.95 * weather[t - 1] + 0.2 * rng.normal()
    noon = np.cos(2 * np.pi * np.arange(steps) / 12)
    values = weather + noon + (0.1 + 0.2 * np.maximum(noon, 0)) * rng.normal(size=steps)
    starts = np.arange(0, steps - PAST - AHEAD)
    past = values[starts[:, None] + np.arange(PAST)]
    later = values[starts + PAST + AHEAD - 1]
    return past.astype(np.float32)[..., None], later.astype(np.float32)[:, None]


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    x, y = temperatures()
    x, y, x_test, y_test = x[:300], y[:300], x[400:], y[400:]
    model = keras.Sequential([keras.Input([PAST, 1]), layers.LSTM(12), layers.Dense(2)])
    model.compile("adam", sgmcmc.keras.losses.GaussianNLL(), jit_compile=False)
    epochs = train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback()  # starts anew, and uses all rows
    model.fit(x, y, epochs=epochs, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
