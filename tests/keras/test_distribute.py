"""Models that are built in the scope of a `tf.distribute` strategy."""

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models

N = 12
X = np.random.default_rng(0).normal(size=[N, 3]).astype(np.float32)


def fit(strategy):
    with strategy.scope():
        compiled = {"jit_compile": False, "steps_per_execution": 3}
        model = small_models.affine(small_models.unit_normal, 2, **compiled)
    callback = small_models.sampler(
        lambda target: sgmcmc.SGNHT(target, 0.01), N, small_models.standard_normal()
    )
    small_models.fit(model, callback, X, X[:, :2], batch_size=4)
    return callback.samples


def test_one_device_strategy_changes_nothing():
    strategies = tf.distribute.get_strategy(), tf.distribute.OneDeviceStrategy("CPU:0")
    some, others = map(fit, strategies)
    assert [len(samples) for samples in some] == [3, 3]
    small_models.assert_equal(some, others)
