"""Models that are built in the scope of a `tf.distribute` strategy."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

N = 12
X = np.random.default_rng(0).normal(size=[N, 3]).astype(np.float32)


def fit(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        model.compile(
            loss=lambda y, f: 0.5 * tf.square(y - f), jit_compile=False, steps_per_execution=2
        )
    callback = sgmcmc.keras.SamplerCallback(
        lambda target: sgmcmc.SGNHT(target, 0.01), N, tfp.distributions.Normal(0.0, 1.0), 0, seed=0
    )
    model.fit(X, X[:, :2], batch_size=4, shuffle=False, verbose=0, callbacks=[callback])
    return callback.samples


def test_one_device_strategy_changes_nothing():
    strategies = tf.distribute.get_strategy(), tf.distribute.OneDeviceStrategy("CPU:0")
    for a, b in zip(*map(fit, strategies), strict=True):
        assert len(a) == 3
        np.testing.assert_array_equal(a, b)


def on_two_replicas(*arguments):
    """Runs tests in a new process, because TensorFlow makes no logical devices once it has run."""
    path = Path(__file__).with_name("on_two_replicas.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    run = subprocess.run(
        [*command, *arguments],
        cwd=path.parents[3],
        env={**os.environ, "ON_TWO_REPLICAS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout


def test_two_replicas():
    """The chain equals the chain on one device, unless shares are not summed."""
    on_two_replicas("-k", "graph or not_summed")


@pytest.mark.slow
def test_all_of_two_replicas():
    on_two_replicas()
