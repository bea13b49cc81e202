"""Models that are built in the scope of a `tf.distribute` strategy."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models

N = 12
X = np.random.default_rng(0).normal(size=[N, 3]).astype(np.float32)


def fit(strategy):
    with strategy.scope():
        compiled = {"jit_compile": False, "steps_per_execution": 2}
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
    on_two_replicas("-k", "(chain and graph) or not_summed")


@pytest.mark.slow
def test_all_of_two_replicas():
    on_two_replicas()
