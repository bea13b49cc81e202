"""Communication between the replicas and workers of a `tf.distribute` strategy."""
