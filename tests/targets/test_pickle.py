"""A target with functions of a module can be stored, also after it was used."""

import pickle

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc


def log_prior(mean: tf.Tensor) -> tf.Tensor:
    return -0.5 * mean**2


def log_likelihood(mean: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return -0.5 * (x - mean[..., tf.newaxis]) ** 2


def test_a_target_is_pickled_without_its_programs() -> None:
    target = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, np.arange(4, dtype=np.float32), 2)
    sgmcmc.find_center(target, tf.constant(0.0))
    assert target._programs
    other = pickle.loads(pickle.dumps(target))
    assert float(other(tf.constant(1.0))) == float(target(tf.constant(1.0)))
    assert not other._programs
    assert target.with_minibatches(3)._programs is target._programs
