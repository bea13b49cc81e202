"""Two logical CPUs and their strategy, for tests in a process of their own.

There is one strategy a process, because the collective operations of two would share their keys.
"""

import os

import pytest
import tensorflow as tf

if "ON_TWO_REPLICAS" not in os.environ:
    pytest.skip("run by test_two_replicas.py", allow_module_level=True)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
MIRRORED = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
