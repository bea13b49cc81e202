"""Temperatures against definitions, and for chains with a known temperature.

The false-alarm rate is 1e-6 a test. An error of 3 % is found with probability 0.999.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.diagnostics.folds import fold, states
from tests.harness.gaussian_mean import GaussianMean, sgld_covariance
from tests.harness.statistics import Rejected, check_means
from tfp_sgmcmc.diagnostics import (
    ConfigurationalTemperatureReducer,
    configurational_temperature,
    kinetic_temperature,
)

GENERATOR = np.random.default_rng(0)
MODEL = GaussianMean(num_examples=12)
BATCH, STEP = 4, 0.08


def test_kinetic_temperature() -> None:
    p = [GENERATOR.standard_normal([5, 2]), GENERATOR.standard_normal([5, 2, 3])]
    found = kinetic_temperature(p, mass=[2.0, np.ones(3) * 0.5], chain_ndims=2)
    assert found.shape == [5, 2]
    expected = (p[0] ** 2 / 2 + (p[1] ** 2 / 0.5).sum(axis=-1)) / 4
    np.testing.assert_allclose(found, expected)
    with pytest.raises(ValueError, match="mass must broadcast"):
        kinetic_temperature(p[1], mass=np.ones(2))


def test_configurational_temperature() -> None:
    x, g = GENERATOR.standard_normal([2, 9, 2, 3])
    parts = ({"a": y[..., 0], "b": y[..., 1:]} for y in (x, g))
    found = configurational_temperature(*parts, chain_ndims=1)
    for chain in range(2):
        across = [np.cov(x[:, chain, i], g[:, chain, i])[0, 1] for i in range(3)]
        np.testing.assert_allclose(found[chain], -np.mean(across))
    alone = configurational_temperature(x[:, 0], g[:, 0])
    np.testing.assert_allclose(alone, found[0])


NUM_STEPS = 100


def stationary(temperature: float, matrix: float) -> np.ndarray:
    """Returns the stationary covariance of the states of SGLD."""
    noise = MODEL.noise(BATCH, replacement=True)
    return sgld_covariance(MODEL.hessian, noise, STEP, matrix, temperature)


def law(temperature: float, matrix: float) -> float:
    """Returns E[T_c] of SGLD, tr(A E[C]) / d, where C is the sample covariance of a chain.

    For a stationary chain, E[C] = T / (T - 1) (S - W), where S is the stationary covariance and W
    the covariance of the chain's mean, 1 / T^2 sum_st F^|s - t| S.
    """
    covariance = stationary(temperature, matrix)
    step, power = np.eye(3) - STEP / 2 * matrix * MODEL.hessian, np.eye(3)
    of_mean = NUM_STEPS * covariance
    for lag in range(1, NUM_STEPS):
        power = power @ step
        of_mean += (NUM_STEPS - lag) * (power @ covariance + covariance @ power.T)
    expected = (covariance - of_mean / NUM_STEPS**2) * NUM_STEPS / (NUM_STEPS - 1)
    return float(np.trace(MODEL.hessian @ expected)) / 3


def of_chains(temperature: float, matrix: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns T_c of many stationary chains, by the reducer and from exact gradients."""
    target = MODEL.target(BATCH, replacement=True)
    kernel = sgmcmc.SGLD(target, STEP, temperature, preconditioner=matrix)
    reducer = ConfigurationalTemperatureReducer(target, seed=5)
    deviations = np.linalg.cholesky(stationary(temperature, matrix))
    start = MODEL.mean + GENERATOR.standard_normal([2000, 3]) @ deviations.T
    reducers = [reducer, states(NUM_STEPS)]
    found, samples = fold(kernel, tf.constant(start, tf.float32), NUM_STEPS, reducers)
    gradients = (MODEL.mean - samples.numpy()) @ MODEL.hessian
    return found, configurational_temperature(samples, gradients, chain_ndims=1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("temperature", "matrix"), [pytest.param(1.0, 1.0, marks=pytest.mark.slow), (2.0, 0.7)]
)
def test_of_sgld_in_closed_form(temperature: float, matrix: float) -> None:
    expected = law(temperature, matrix)
    for found in of_chains(temperature, matrix):
        check_means(found, [expected], 0.03 * expected)
        with pytest.raises(Rejected):  # steps are large, so the chain is hotter than asked for
            check_means(found, [temperature], 0.03 * expected)


@pytest.mark.parametrize(("every", "jit"), [(1, None), (3, False)])
def test_the_reducer_is_the_function(every: int, jit: bool | None) -> None:
    target = sgmcmc.FullDataLogProb(lambda a, b: -0.25 * a**4 - 0.5 * tf.reduce_sum(b**2, axis=-1))
    reducer = ConfigurationalTemperatureReducer(target, seed=1, every=every)
    a, b = GENERATOR.standard_normal([10, 2]), GENERATOR.standard_normal([10, 2, 3])
    advance = reducer.one_step
    if jit is not None:
        advance = tf.function(advance, jit_compile=jit, autograph=False)
    own = reducer.initialize([a[0], b[0]])
    assert np.all(np.isnan(reducer.finalize(own)))
    for x, y in zip(a, b, strict=True):
        own = advance([tf.constant(x), tf.constant(y)], own)
    seen = slice(every - 1, None, every)
    expected = configurational_temperature(
        [a[seen], b[seen]], [-(a[seen] ** 3), -b[seen]], chain_ndims=1
    )
    np.testing.assert_allclose(reducer.finalize(own), expected)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"Received: shapes \(3, 2\) and \(3,\)"):
        configurational_temperature(np.ones([3, 2]), np.ones(3))
    with pytest.raises(ValueError, match="at least 2 results"):
        configurational_temperature(np.ones([1, 2]), np.ones([1, 2]))
    with pytest.raises(ValueError, match="with 2 dimensions of chains"):
        configurational_temperature(np.ones([3, 2]), np.ones([3, 2]), chain_ndims=2)
    with pytest.raises(ValueError, match="mass must be a positive finite number. Received: -1.0"):
        kinetic_temperature(np.ones([3, 2]), mass=-1.0)
    with pytest.raises(ValueError, match="every must be at least 1. Received: 0"):
        ConfigurationalTemperatureReducer(lambda x: -(x**2), seed=1, every=0)
    with pytest.raises(ValueError, match="seed must be an integer or a pair"):
        ConfigurationalTemperatureReducer(lambda x: -(x**2), seed=None)
