"""SGFS learns MNIST in 20 random projections in fewer epochs than SGLD and SGD."""

import numpy as np
import pytest

from benchmarks.reproductions import sgfs_mnist


def test_averaged_errors() -> None:
    good, bad = [0.4, 0.6], [0.9, 0.1]
    outputs = np.array([[bad], [good], [good], [bad]])  # [states, rows, classes]
    for num_epochs, expected in ((2, [0, 1]), (4, [1, 0, 0, 1])):
        found = sgfs_mnist.averaged_errors(outputs, np.array([1]), num_epochs)
        np.testing.assert_array_equal(found, expected)


# SGLD's rate is above the largest stable step at the start, where curvature is largest.
@pytest.mark.filterwarnings("ignore:step_size must be below:UserWarning")
@pytest.mark.slow
def test_order_of_the_methods() -> None:
    curves = sgfs_mnist.run(**sgfs_mnist.EXPERIMENT.quick)
    final = {name: curve.test[:, -1] for name, curve in curves.items()}
    for ours in ("SGFS-d", "SGFS-f"):
        for other in ("SGLD", "SGD"):
            assert np.all(final[ours] < final[other])  # from each initial state
