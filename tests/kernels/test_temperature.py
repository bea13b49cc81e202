"""The results of every kernel with a temperature hold the temperature of the step."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean

KERNELS = [
    *(sgmcmc.SGLD, sgmcmc.ModifiedSGLD, sgmcmc.SGFS, sgmcmc.SGHMC, sgmcmc.SGNHT, sgmcmc.CCAdL),
    *(sgmcmc.NOGIN, sgmcmc.UnderdampedLangevin),
]


def temperatures(kernel: type, temperature: Any) -> list[Any]:
    """Returns the temperatures in the results before the first step and after each of two."""
    made = kernel(GaussianMean().target(4, parts=True), 1e-3, temperature=temperature)
    state = [tf.zeros([2, 1]), tf.ones([2, 2])]
    found = [made.bootstrap_results(state)]
    for seed in range(2):
        state, after = made.one_step(state, found[-1], seed=seed)
        found.append(after)
    tf.nest.assert_same_structure(found[0], found[-1])
    return [results.temperature for results in found]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_temperature_of_a_step_is_in_its_results(kernel: type) -> None:
    each = np.array([[1.0], [3.0]] if kernel in KERNELS[:2] else [1.0, 3.0], np.float32)
    for given in (2.0, each):
        np.testing.assert_array_equal(temperatures(kernel, given), [given] * 3)
    falling = temperatures(kernel, lambda step: 4.0 - tf.cast(step, tf.float32))
    np.testing.assert_array_equal(falling, [4.0, 4.0, 3.0])


@pytest.mark.parametrize("kernel", KERNELS[:2])
def test_temperatures_of_parts_are_reported_by_part(kernel: type) -> None:
    np.testing.assert_array_equal(temperatures(kernel, [1.0, 2.0]), [[1.0, 2.0]] * 3)
