"""At equal steps, a growing minibatch ends above a small constant one."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.reproductions import growing_batch, growing_batch_mnist


@pytest.mark.slow
def test_the_quick_form_of_a9a() -> None:
    result = growing_batch.run(**growing_batch.EXPERIMENT.quick)
    growing, constant, constant_long, smaller = result
    assert smaller == 12  # 1.1^12 is the first size above 3, which is rounded up to 4
    assert growing.steps[-1] == constant.steps[-1]
    assert np.mean(growing.log_joint[-1]) > np.mean(constant.log_joint[-1])
    # At equal passes over the data it is worse.
    assert constant_long is not None
    assert constant_long.passes[-1] == pytest.approx(growing.passes[-1], rel=0.02)
    assert np.mean(constant_long.log_joint[-1]) > np.mean(growing.log_joint[-1])


@pytest.mark.slow
def test_the_quick_form_of_mnist() -> None:
    growing, constant, *_ = growing_batch_mnist.run(**growing_batch_mnist.EXPERIMENT.quick)
    assert growing.log_joint.shape[1] == 6
    assert np.mean(growing.log_joint[-1]) > np.mean(constant.log_joint[-1])
    assert np.mean(growing.accuracy[-1]) > np.mean(constant.accuracy[-1])


def test_softmax_log_likelihood_is_that_of_keras() -> None:
    generator = np.random.default_rng(0)
    theta = tf.constant(generator.normal(size=[4, 10]), tf.float32)
    x = tf.constant(generator.normal(size=[6, 4]), tf.float32)
    y = tf.constant(generator.integers(0, 10, size=[6]))
    found = growing_batch_mnist.log_likelihood(theta, {"x": x, "y": y})
    expected = tf.keras.losses.sparse_categorical_crossentropy(y, x @ theta, from_logits=True)
    np.testing.assert_allclose(found, -expected, rtol=1e-5)
