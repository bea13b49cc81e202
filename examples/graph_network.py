"""Node classification with graph neural networks: papers of two fields that cite each other.

The graphs come from a generator. An example is a paper with those that it cites and that cite it:
its words, and the mean of theirs after one more step along the edges.

python -m examples.graph_network
"""

import keras
import numpy as np
from keras import layers, ops

import tfp_sgmcmc as sgmcmc
from examples.scores import at_the_weights, compared, show, train

NODES, FIELDS, FEATURES = 600, 4, 12


def papers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns words `[NODES, FEATURES]`, the normalised adjacency, and fields."""
    rng = np.random.default_rng(0)
    field = rng.integers(0, FIELDS, size=NODES)
    words = rng.normal(size=[FIELDS, FEATURES])[field] + 3 * rng.normal(size=[NODES, FEATURES])
    close = np.where(field[:, None] == field, 0.02, 0.004)
    edges = np.triu(rng.random([NODES, NODES]) < close, 1)
    edges = (edges | edges.T) + np.eye(NODES)
    adjacency = edges / edges.sum(axis=1, keepdims=True)
    return words.astype(np.float32), adjacency.astype(np.float32), field


def main() -> dict[str, float]:
    keras.utils.set_random_seed(0)
    words, adjacency, field = papers()
    node = keras.Input([], dtype="int32")
    hidden = layers.Dense(16, "relu")(ops.matmul(adjacency, ops.convert_to_tensor(words)))
    hidden = ops.matmul(ops.take(adjacency, node, axis=0), hidden)
    model = keras.Model(node, layers.Dense(FIELDS, "softmax")(hidden))
    nodes = np.arange(NODES, dtype=np.int32)
    x, y, x_test, y_test = nodes[:150], field[:150], nodes[150:], field[150:]
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", jit_compile=False)
    epochs = train(model, x, y)
    trained = at_the_weights(model).evaluate(x_test, y_test)

    sampler = sgmcmc.keras.SamplerCallback()  # starts anew, and uses all rows
    model.fit(x, y, epochs=epochs, callbacks=[sampler], verbose=0)
    return compared(trained, sampler.posterior.evaluate(x_test, y_test))


if __name__ == "__main__":
    show(main)
