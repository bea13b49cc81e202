"""Text classification from scratch: convolutions over embedded words.

The reviews come from a generator: some words are kind, some are not, and most say nothing.

python -m examples.text_classification
"""

import keras
import numpy as np
from keras import layers

import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

WORDS, LENGTH = 200, 20


def reviews(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns words `[count, LENGTH]` and labels, 1 for a kind review."""
    words = np.random.default_rng(seed).integers(0, WORDS, size=[count, LENGTH])
    kindness = np.random.default_rng(7).normal(size=WORDS) * (np.arange(WORDS) < 60)
    p = 1 / (1 + np.exp(-2 * kindness[words].sum(axis=1)))
    labels = np.random.default_rng(seed + 1).random(count) < p
    return words.astype(np.int32), labels.astype(np.float32)[:, None]


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = reviews(800, 0), reviews(1000, 10)
    model = keras.Sequential(
        [
            keras.Input([LENGTH], dtype="int32"),
            layers.Embedding(WORDS, 8),
            layers.Conv1D(8, 3, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(8, "relu"),
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
