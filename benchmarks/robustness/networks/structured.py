"""Networks of tables, sets and graphs, and layers that prepare data."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from benchmarks.robustness.networks.network import (
    N,
    Network,
    classifier,
    numbers,
    tokens,
)
from tfp_sgmcmc.keras import losses

NODES = 4


def wide_and_deep() -> Network:
    wide = keras.Input([6], name="wide")
    category = keras.Input([1], dtype="int32", name="category")
    deep = layers.Flatten()(layers.Embedding(5, 3)(category))
    deep = layers.Dense(5, "relu")(layers.Concatenate()([deep, wide]))
    joined = layers.Concatenate()([wide, layers.Dense(4, "relu")(deep)])
    x = {"wide": numbers(6), "category": tokens(1, most=5)}
    return classifier({"wide": wide, "category": category}, joined, x)


def matrix_factorization() -> Network:
    """Users and films as embeddings; their product is the mean of a rating."""
    user, film = keras.Input([1], dtype="int32"), keras.Input([1], dtype="int32")
    score = layers.Dot(axes=2)([layers.Embedding(6, 3)(user), layers.Embedding(5, 3)(film)])
    biases = layers.Embedding(6, 1)(user) + layers.Embedding(5, 1)(film)
    model = keras.Model([user, film], layers.Flatten()(score + biases))
    x = [tokens(1, most=6), tokens(1, most=5, seed=2)]
    return Network(model, x, numbers(1, seed=1), losses.GaussianNLL(scale=0.5))


def prepared_numbers() -> Network:
    """Normalization and Discretization, adapted to the data."""
    x = 3 + 2 * numbers(3)
    inputs = keras.Input([3])
    normalize, discretize = layers.Normalization(), layers.Discretization(num_bins=3)
    normalize.adapt(x)
    discretize.adapt(x[:, :1])
    bins = layers.CategoryEncoding(3, "one_hot")(discretize(inputs[:, :1]))
    joined = layers.Concatenate()([normalize(inputs), bins])
    return classifier(inputs, layers.Dense(5, "relu")(joined), x)


def hashed_numbers() -> Network:
    """Integers that are hashed, looked up and encoded within the model."""
    inputs = keras.Input([2], dtype="int64")
    lookup = layers.IntegerLookup(vocabulary=[3, 1, 4], output_mode="int")
    hashed = layers.Embedding(4, 3)(layers.Hashing(4)(inputs[:, :1]))
    found = layers.Embedding(4, 3)(lookup(inputs[:, 1:]))
    x = tokens(2, most=6).astype("int64")
    return classifier(inputs, layers.Flatten()(hashed + found), x)


def strings() -> Network:
    """Words that a StringLookup turns into a bag of words within the model."""
    words = np.array(["red", "green", "blue", "none"])[tokens(2, most=4)]
    inputs = keras.Input([2], dtype="string")
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="multi_hot")
    return classifier(inputs, layers.Dense(5, "relu")(lookup(inputs)), words)


def graph() -> Network:
    """Two rounds of messages along the edges of graphs, whose adjacency is an input."""
    nodes, edges = keras.Input([NODES, 3]), keras.Input([NODES, NODES])
    x = layers.Dense(5)(nodes)
    for _ in range(2):
        messages = ops.matmul(edges, layers.Dense(5, "relu")(x))
        x = layers.Dense(5, "relu")(layers.Concatenate()([x, messages]))
    adjacency = (numbers(NODES, NODES, seed=2) > 0).astype("float32")
    x_given = [numbers(NODES, 3), adjacency]
    return classifier([nodes, edges], layers.GlobalAveragePooling1D()(x), x_given)


def edge_list() -> Network:
    """Attention over the neighbours of nodes, by gather and segment sums."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, NODES, size=[2, 6])
    nodes = keras.Input([NODES, 3])
    x = layers.Dense(4)(nodes)
    pairs = ops.concatenate([ops.take(x, source, axis=1), ops.take(x, target, axis=1)], axis=-1)
    strength = ops.exp(layers.Dense(1, "tanh")(pairs))
    received = ops.transpose(strength * ops.take(x, source, axis=1), [1, 0, 2])
    summed = ops.segment_sum(received, target, num_segments=NODES)
    x = layers.Concatenate()([x, ops.transpose(summed, [1, 0, 2])])
    return classifier(nodes, layers.GlobalMaxPooling1D()(x), numbers(NODES, 3))


def point_net() -> Network:
    """Points, turned by a matrix that the points determine, and the largest of their features."""
    points = keras.Input([6, 2])
    pooled = layers.GlobalMaxPooling1D()(layers.Conv1D(4, 1, activation="relu")(points))
    turn = layers.Dense(4, kernel_initializer="zeros", bias_initializer=lambda shape, dtype: (
        ops.reshape(ops.eye(2, dtype=dtype), [-1])))(pooled)  # fmt: skip
    turned = layers.Dot(axes=(2, 1))([points, layers.Reshape([2, 2])(turn)])
    x = layers.Conv1D(4, 1, activation="relu")(turned)
    return classifier(points, layers.GlobalMaxPooling1D()(x), numbers(6, 2))


def counts() -> Network:
    """Poisson regression, whose loss is one of Keras'."""
    stack = [layers.Dense(5, "tanh"), layers.Dense(1, "exponential")]
    model = keras.Sequential([keras.Input([3]), *stack])
    y = np.random.default_rng(1).poisson(2.0, size=[N, 1]).astype("float32")
    return Network(model, numbers(3), y, keras.losses.Poisson())


NETWORKS = {
    "wide and deep": wide_and_deep,
    "matrix factorisation": matrix_factorization,
    "Normalization, Discretization": prepared_numbers,
    "Hashing, IntegerLookup": hashed_numbers,
    "StringLookup": strings,
    "graph network, adjacency": graph,
    "graph network, edges": edge_list,
    "PointNet": point_net,
    "Poisson regression": counts,
}
