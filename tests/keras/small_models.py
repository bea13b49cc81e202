"""Small models whose likelihoods and predictions tests compare with formulas."""

import keras
import tensorflow as tf


def unit_normal(y, f):
    return 0.5 * tf.square(y - f)


def sequential(*layers, loss, **compiled):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([3]), *layers])
    model.compile(loss=loss, **(compiled or {"run_eagerly": True}))
    return model


def linear(loss, units=4, activation=None, use_bias=False, **compiled):
    keras.utils.set_random_seed(1)  # layers without a seed draw one
    dense = keras.layers.Dense(units, activation, use_bias=use_bias)
    return sequential(dense, loss=loss, **compiled)
