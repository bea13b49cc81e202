r"""The discriminative restricted Boltzmann machine, as a target and as a Keras layer.

H binary hidden units h and a class y out of C have, given F features x, the energy

\[
-E(y, h \mid x) = d_y + \sum_j h_j o_{jy}, \qquad o_{jy} = c_j + U_{jy} + \sum_i W_{ji} x_i .
\]

The sum over all h leaves

\[
p(y \mid x) = \frac{e^{a_y}}{\sum_{y'} e^{a_{y'}}}, \qquad
a_y = d_y + \sum_j \log (1 + e^{o_{jy}}) .
\]

With \( \delta_y = 1[y = y_n] - p(y \mid x_n) \) and \( \sigma \) the logistic function, the score
of example n is \( \delta_y \) for d, \( g_{jy} = \delta_y \sigma(o_{jy}) \) for U,
\( \sum_y g_{jy} \) for c, and \( x_i \sum_y g_{jy} \) for W.

H. Larochelle and Y. Bengio. Classification using discriminative restricted Boltzmann machines.
ICML, 2008. Equation 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc


class Weights(NamedTuple):
    """The parameters, each behind chain dimensions. They are the parts of the state."""

    W: Any  # hidden units by features, [..., H, F]
    U: Any  # hidden units by classes, [..., H, C]
    c: Any  # biases of hidden units, [..., H]
    d: Any  # biases of classes, [..., C]


def num_parameters(hidden: int, features: int, classes: int) -> int:
    """Returns H F + H C + H + C.

    >>> num_parameters(41, 40, 23)  # KDD Cup 1999 in Ahn et al. 2012
    2647
    >>> num_parameters(20, 126, 3)  # connect-4 in Shang et al. 2015
    2603
    >>> num_parameters(100, 16, 26)  # letter in Shang et al. 2015
    4326
    >>> num_parameters(20, 50, 3)  # acoustic in Shang et al. 2015
    1083
    """
    return hidden * (features + classes + 1) + classes


def initial(
    hidden: int, features: int, classes: int, seed: int = 0, chains: Sequence[int] = ()
) -> Weights:
    """Returns weights drawn from N(0, 1 / F) for W and N(0, 1 / C) for U, and zeros for biases."""
    normal = np.random.default_rng(seed).standard_normal
    shapes = Weights([hidden, features], [hidden, classes], [hidden], [classes])
    return Weights(
        tf.constant(normal([*chains, *shapes.W]) / features**0.5, tf.float32),
        tf.constant(normal([*chains, *shapes.U]) / classes**0.5, tf.float32),
        tf.zeros([*chains, *shapes.c]),
        tf.zeros([*chains, *shapes.d]),
    )


def for_chains(values: Any) -> Weights:
    """Returns one number for each chain, `[chains]`, in a shape that broadcasts with each part."""
    values = tf.convert_to_tensor(values)
    matrix = values[:, tf.newaxis, tf.newaxis]
    return Weights(matrix, matrix, values[:, tf.newaxis], values[:, tf.newaxis])


def inputs(weights: Weights, x: Any) -> tf.Tensor:
    """Returns the hidden units' inputs o for `x` of `[..., n, F]`, as `[..., n, C, H]`."""
    by_features = tf.matmul(x, weights.W, transpose_b=True) + weights.c[..., tf.newaxis, :]
    by_class = tf.linalg.matrix_transpose(weights.U)[..., tf.newaxis, :, :]
    return by_features[..., tf.newaxis, :] + by_class


def logits(weights: Weights, x: Any) -> tf.Tensor:
    """Returns a, the log probabilities of the classes up to a constant, `[..., n, C]`."""
    activations = tf.reduce_sum(tf.math.softplus(inputs(weights, x)), axis=-1)
    return activations + weights.d[..., tf.newaxis, :]


def log_likelihood(W: Any, U: Any, c: Any, d: Any, batch: Any) -> tf.Tensor:
    """Returns log p(y | x) of each example, `[..., n]`."""
    found = tf.nn.log_softmax(logits(Weights(W, U, c, d), batch["x"]))
    return tf.reduce_sum(found * tf.one_hot(batch["y"], d.shape[-1], dtype=d.dtype), axis=-1)


def scores(W: Any, U: Any, c: Any, d: Any, batch: Any) -> Weights:
    """Returns the gradients of each example's log likelihood in closed form, `[..., n, event]`."""
    x, y = batch["x"], batch["y"]
    o = inputs(Weights(W, U, c, d), x)
    a = tf.reduce_sum(tf.math.softplus(o), axis=-1) + d[..., tf.newaxis, :]
    delta = tf.one_hot(y, d.shape[-1], dtype=d.dtype) - tf.nn.softmax(a)
    g = delta[..., tf.newaxis] * tf.sigmoid(o)
    of_c = tf.reduce_sum(g, axis=-2)
    of_W = of_c[..., tf.newaxis] * x[..., tf.newaxis, :]
    return Weights(of_W, tf.linalg.matrix_transpose(g), of_c, delta)


def gaussian_log_prior(
    W: tf.Tensor, U: tf.Tensor, c: tf.Tensor, d: tf.Tensor, precision: float = 1.0
) -> tf.Tensor:
    """Returns log N(0, I / precision) of all weights, without its constant."""
    squares = (tf.reduce_sum(part**2, [-2, -1]) for part in (W, U))
    biases = (tf.reduce_sum(part**2, -1) for part in (c, d))
    return -precision / 2 * (sum(squares) + sum(biases))


def target(
    x: np.ndarray, y: np.ndarray, batch_size: int, precision: float = 1.0, **options: Any
) -> Any:
    """Returns the log posterior of `Weights` with the prior N(0, I / precision).

    Scores are closed, or with `num_groups` among the options those of groups.
    """

    def log_prior(W: tf.Tensor, U: tf.Tensor, c: tf.Tensor, d: tf.Tensor) -> tf.Tensor:
        return gaussian_log_prior(W, U, c, d, precision)

    data = {"x": x.astype(np.float32), "y": y.astype(np.int32)}
    if "num_groups" not in options:
        options["score_fn"] = scores
    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, batch_size, **options)


def flat(weights: Any, chain_ndims: int = 1) -> np.ndarray:
    """Returns all parameters as one vector behind the chain dimensions, `[..., D]`."""
    parts = [np.asarray(part) for part in weights]
    return np.concatenate([x.reshape(*x.shape[:chain_ndims], -1) for x in parts], axis=-1)


def aligned(weights: Any, like: Any) -> Weights:
    """Returns states `[..., event]` with each hidden unit as near to that of `like` as it can be.

    The probabilities do not change if a hidden unit j takes the negatives of its W, U and c, and d
    becomes d + U_j, because log(1 + e^o) = o + log(1 + e^-o). Only the prior of d changes.
    `like` is one state.
    """
    W, U, c, d = (np.array(part, np.float64) for part in weights)
    for j in range(W.shape[-2]):
        products = (W[..., j, :] * np.asarray(like[0])[j]).sum(-1)
        products += (U[..., j, :] * np.asarray(like[1])[j]).sum(-1)
        flip = products + c[..., j] * np.asarray(like[2])[j] < 0
        d = np.where(flip[..., np.newaxis], d + U[..., j, :], d)
        sign = np.where(flip, -1.0, 1.0)
        W[..., j, :] *= sign[..., np.newaxis]
        U[..., j, :] *= sign[..., np.newaxis]
        c[..., j] *= sign
    return Weights(W, U, c, d)


def probabilities(weights: Any, x: Any) -> np.ndarray:
    """Returns p(y | x) by each state, `[states, n, C]`, one state after the other."""
    rows = tf.constant(x, tf.float32)
    states = zip(*(tf.unstack(tf.convert_to_tensor(part)) for part in weights), strict=True)
    return np.stack([_probabilities_of_one(Weights(*state), rows).numpy() for state in states])


@tf.function(jit_compile=True)
def _probabilities_of_one(weights: Weights, rows: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(logits(weights, rows))


class DRBM(keras.layers.Layer):
    """The machine as a layer, whose outputs are the logits `[n, C]` of its classes.

    >>> model = keras.Sequential([keras.Input([40]), DRBM(hidden=41, classes=23)])
    >>> model.count_params()
    2647
    """

    def __init__(self, hidden: int, classes: int, **options: Any):
        super().__init__(**options)
        self.hidden, self.classes = hidden, classes

    def build(self, input_shape: Any) -> None:
        features = input_shape[-1]
        normal = keras.initializers.RandomNormal
        by_class = (self.hidden, self.classes)
        self.W = self.add_weight((self.hidden, features), normal(stddev=features**-0.5), name="W")
        self.U = self.add_weight(by_class, normal(stddev=self.classes**-0.5), name="U")
        self.c = self.add_weight((self.hidden,), "zeros", name="c")
        self.d = self.add_weight((self.classes,), "zeros", name="d")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        parts = (self.W, self.U, self.c, self.d)
        return logits(Weights(*map(tf.convert_to_tensor, parts)), x)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "hidden": self.hidden, "classes": self.classes}
