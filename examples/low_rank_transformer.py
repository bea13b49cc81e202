"""Text classification with Transformer, whose low-rank adaptations alone are sampled.

The transformer is trained on many reviews of one kind of film. It then adapts to a few reviews of
another kind, in which some words mean the opposite: `enable_lora` freezes all weights of a layer
and adds two small matrices, and only trainable weights are sampled. The reviews come from a
generator.

python -m examples.low_rank_transformer
"""

import keras
import numpy as np
from keras import layers, ops

import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

WORDS, LENGTH, DIM, RANK = 100, 12, 16, 2


def reviews(count: int, seed: int, turned: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns words `[count, LENGTH]` and labels; the first words mean the opposite of before."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, WORDS, size=[count, LENGTH])
    kindness = np.random.default_rng(7).normal(size=WORDS) * (np.arange(WORDS) < 60)
    kindness[:turned] *= -1
    p = 1 / (1 + np.exp(-2 * kindness[words].sum(axis=1)))
    return words.astype(np.int32), (rng.random(count) < p).astype(np.float32)[:, None]


def transformer() -> keras.Model:
    inputs = keras.Input([LENGTH], dtype="int32")
    places = ops.cumsum(ops.ones_like(inputs), axis=1) - 1  # 0, 1, 2, ...
    hidden = layers.Embedding(WORDS, DIM)(inputs) + layers.Embedding(LENGTH, DIM)(places)
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 8)(hidden, hidden))
    dense = layers.Dense(DIM)(layers.Dense(16, "relu")(hidden))
    hidden = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(hidden + dense))
    return keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))


def adapt(model: keras.Model) -> None:
    """Freezes all weights, and adds adaptations of low rank that are trainable."""
    adaptable = layers.Dense, layers.Embedding, layers.EinsumDense
    for layer in model._flatten_layers(include_self=False, recursive=True):
        if isinstance(layer, adaptable) and len(layer.variables[0].shape) > 1:
            layer.enable_lora(RANK)
            for v in layer.trainable_variables:
                if "lora" not in v.name:
                    v.trainable = False
        elif not isinstance(layer, layers.MultiHeadAttention):
            layer.trainable = False


def sampled() -> tuple[keras.Model, sgmcmc.keras.Posterior, dict[str, float]]:
    """Returns the model with its low-rank posterior, and the scores."""
    keras.utils.set_random_seed(0)
    model = transformer()
    model.compile("adam", "binary_crossentropy", jit_compile=False)
    model.fit(*reviews(3000, 0), batch_size=100, epochs=8, verbose=0)
    (x, y), (x_test, y_test) = reviews(200, 1, turned=20), reviews(1000, 2, turned=20)
    adapt(model)
    model.compile("adam", "binary_crossentropy", jit_compile=False)
    epochs = train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback()  # starts the adaptations anew, and uses all rows
    model.fit(x, y, epochs=epochs, callbacks=[sampler], verbose=0)
    scores = compared(trained, sampler.posterior.evaluate(x_test, y_test))
    return model, sampler.posterior, scores


def main() -> dict[str, float]:
    model, _, scores = sampled()
    weights = sum(int(np.prod(v.shape)) for v in model.variables if v.dtype == "float32")
    few = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    return {"weights": weights, "sampled weights": few, **scores}


if __name__ == "__main__":
    show(main)
