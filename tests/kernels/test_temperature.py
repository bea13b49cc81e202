"""The results of every kernel with a temperature hold the temperature of the step."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

TARGET = sgmcmc.MinibatchLogProb(
    lambda a, b: -0.5 * (a**2 + b**2),
    lambda a, b, batch: -0.5 * ((a + b)[..., tf.newaxis] - batch) ** 2,
    data=np.linspace(-1.0, 1.0, 12, dtype=np.float32),
    batch_size=4,
)
KERNELS = [
    *(sgmcmc.SGLD, sgmcmc.ModifiedSGLD, sgmcmc.SGFS, sgmcmc.SGHMC, sgmcmc.SGNHT, sgmcmc.CCAdL),
    *(sgmcmc.NOGIN, sgmcmc.UnderdampedLangevin),
]
STATE = [tf.zeros([2]), tf.ones([2])]


def results(kernel: type, temperature: Any) -> list[Any]:
    """Returns the temperatures in the results before the first step and after each of two steps."""
    covariance = {"covariance": "diag"} if kernel is sgmcmc.SGFS else {}
    made = kernel(TARGET, 1e-3, temperature=temperature, **covariance)
    state, found = STATE, [made.bootstrap_results(STATE)]
    for seed in range(2):
        state, after = made.one_step(state, found[-1], seed=seed)
        found.append(after)
    tf.nest.assert_same_structure(found[0], found[-1])
    return [r.temperature for r in found]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_temperature_of_a_step_is_in_its_results(kernel: type) -> None:
    np.testing.assert_array_equal(results(kernel, 2.0), [2.0] * 3)
    each = np.array([1.0, 3.0], np.float32)
    np.testing.assert_array_equal(results(kernel, each), [each] * 3)
    falling = results(kernel, lambda step: 4.0 - tf.cast(step, tf.float32))
    np.testing.assert_array_equal(falling, [4.0, 4.0, 3.0])


@pytest.mark.parametrize("kernel", [sgmcmc.SGLD, sgmcmc.ModifiedSGLD])
def test_temperatures_of_parts_are_reported_by_part(kernel: type) -> None:
    np.testing.assert_array_equal(results(kernel, [1.0, 2.0]), [[1.0, 2.0]] * 3)
