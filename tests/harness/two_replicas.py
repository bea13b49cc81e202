"""Two logical CPUs and their strategy, for tests in a process of their own.

There is one strategy a process, because the collective operations of two would share their keys.
"""

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
MIRRORED = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
