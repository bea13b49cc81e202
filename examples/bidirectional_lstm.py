"""Bidirectional LSTM on IMDB: the order of words counts.

The reviews come from a generator: the word 1 ("not") turns the meaning of the word after it.

python -m examples.bidirectional_lstm
"""

import keras
import numpy as np
from keras import layers

import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

WORDS, LENGTH = 30, 10


def reviews(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns words `[count, LENGTH]` and labels, 1 for a kind review."""
    rng = np.random.default_rng(seed)
    words = rng.integers(2, WORDS, size=[count, LENGTH])
    words[rng.random(words.shape) < 0.25] = 1
    kindness = np.random.default_rng(7).normal(size=WORDS) * (np.arange(WORDS) > 1)
    sign = np.where(words[:, :-1] == 1, -1, 1)
    p = 1 / (1 + np.exp(-2 * (sign * kindness[words[:, 1:]]).sum(axis=1)))
    return words.astype(np.int32), (rng.random(count) < p).astype(np.float32)[:, None]


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = reviews(500, 0), reviews(1000, 10)
    model = keras.Sequential(
        [
            keras.Input([LENGTH], dtype="int32"),
            layers.Embedding(WORDS, 6),
            layers.Bidirectional(layers.LSTM(6, return_sequences=True)),
            layers.Bidirectional(layers.LSTM(6)),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", jit_compile=False)
    epochs = train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback()  # starts anew, and uses all rows
    model.fit(x, y, epochs=epochs, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
