"""The base of samplers with momenta: mass, temperature, first momenta, kinetic temperature."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal.nest import num_entries
from tfp_sgmcmc.kernels.base import number_at
from tfp_sgmcmc.kernels.momentum import kinetic_temperature, scaled

NORMAL = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
TWO_PARTS = sgmcmc.FullDataLogProb(
    lambda a, b: -0.5 * (tf.reduce_sum(a**2, axis=-1) + tf.reduce_sum(b**2, axis=-1))
)
KERNELS = [sgmcmc.NOGIN, sgmcmc.UnderdampedLangevin]
TWO = [np.zeros([4, 1], np.float32), np.zeros([4, 2], np.float32)]


def first(kernel: type, state: Any, target: Any = NORMAL, **options: Any) -> Any:
    return kernel(target, 0.1, **options).bootstrap_results(state)


# The first momenta


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "given",
    [
        2.0,
        [1.0, 2.0, 3.0],
        np.array([1.0, 2.0, 3.0]),
        tf.constant([1, 2, 3]),
        np.arange(4.0)[:, np.newaxis],
        np.arange(12.0).reshape(4, 3),
    ],
    ids=["number", "list", "array", "integers", "one a chain", "all"],
)
def test_initial_momentum_broadcasts_with_the_state(kernel: type, given: Any) -> None:
    for dtype in (tf.float32, tf.float64):
        found = first(kernel, tf.ones([4, 3], dtype), initial_momentum=given).momentum
        assert found.dtype == dtype and found.shape == [4, 3]
        np.testing.assert_array_equal(found, np.broadcast_to(np.asarray(given), [4, 3]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_initial_momentum_chains_start_at_rest(kernel: type) -> None:
    results = first(kernel, TWO, TWO_PARTS)
    for p, x in zip(results.momentum, TWO, strict=True):
        assert p.shape == x.shape and not np.any(p)
    np.testing.assert_array_equal(results.kinetic_temperature, np.zeros(4))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pack", [list, tuple, lambda x: dict(zip("ab", x, strict=True))])
def test_initial_momentum_has_the_structure_of_the_state(kernel: type, pack: Any) -> None:
    given = [np.ones([4, 1]), [2.0, 3.0]]
    found = first(kernel, pack(TWO), TWO_PARTS, initial_momentum=pack(given)).momentum
    tf.nest.assert_same_structure(found, pack(TWO))
    a, b = tf.nest.flatten(found)
    np.testing.assert_array_equal(a, np.ones([4, 1]))
    np.testing.assert_array_equal(b, [[2.0, 3.0]] * 4)
    a, b = tf.nest.flatten(first(kernel, pack(TWO), TWO_PARTS, initial_momentum=2.0).momentum)
    np.testing.assert_array_equal(a, np.full([4, 1], 2.0))
    np.testing.assert_array_equal(b, np.full([4, 2], 2.0))


@pytest.mark.parametrize("kernel", KERNELS)
def test_shapes_known_only_at_run_time(kernel: type) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    def momenta(state: tf.Tensor) -> tf.Tensor:
        return first(kernel, state, initial_momentum=[1.0, 2.0, 3.0]).momentum

    np.testing.assert_array_equal(momenta(tf.zeros([5, 3])), [[1.0, 2.0, 3.0]] * 5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([1.0, np.nan, 0.0], ValueError, "initial_momentum must be a finite number. Received: nan"),
        (tf.constant([np.inf]), ValueError, "initial_momentum must be a finite number.*inf"),
        ("fast", TypeError, "initial_momentum must be a number. Received: 'fast'"),
        (lambda t: 1.0, TypeError, "initial_momentum must be a number. Received: <function"),
    ],
)
def test_momenta_that_are_no_numbers(kernel: type, given: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        kernel(NORMAL, 0.1, initial_momentum=given)


@pytest.mark.parametrize("kernel", KERNELS)
def test_momenta_that_do_not_fit_the_state(kernel: type) -> None:
    with pytest.raises(ValueError, match=r"initial_momentum must broadcast .*: shape \(2,\)"):
        first(kernel, tf.zeros([4, 3]), initial_momentum=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"initial_momentum must broadcast .*: shape \(5, 4, 3\)"):
        first(kernel, tf.zeros([4, 3]), initial_momentum=np.zeros([5, 4, 3]))
    with pytest.raises(ValueError, match="initial_momentum must have the structure of the state"):
        first(kernel, TWO, TWO_PARTS, initial_momentum=[1.0, 2.0, 3.0])


# Mass


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("mass", "expected"),
    [
        (4.0, 4.0),
        ([0.5, 1.0, 2.0], [0.5, 1.0, 2.0]),
        (tf.constant(2), 2.0),
        (np.arange(1.0, 5.0)[:, np.newaxis], np.arange(1.0, 5.0)[:, np.newaxis]),
    ],
    ids=["number", "list", "integer", "one a chain"],
)
def test_masses_broadcast_with_the_state(kernel: type, mass: Any, expected: Any) -> None:
    """The kinetic temperature of the first momenta, p^T m^-1 p / d, shows the masses."""
    p = np.arange(1.0, 13.0).reshape(4, 3)
    results = first(kernel, tf.zeros([4, 3], tf.float64), mass=mass, initial_momentum=p)
    np.testing.assert_allclose(results.kinetic_temperature, np.mean(p**2 / expected, axis=-1))


@pytest.mark.parametrize("kernel", KERNELS)
def test_masses_of_parts(kernel: type) -> None:
    masses = [2.0, np.array([4.0, 8.0])]
    results = first(kernel, TWO, TWO_PARTS, mass=masses, initial_momentum=[2.0, 4.0])
    np.testing.assert_allclose(results.kinetic_temperature, np.full(4, (2 + 4 + 2) / 3))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("mass", "error", "message"),
    [
        (0.0, ValueError, "mass must be a positive finite number. Received: 0.0"),
        ([1.0, -1.0, 1.0], ValueError, "mass must be a positive finite number. Received: -1.0"),
        (np.array([1.0, np.inf, 1.0]), ValueError, r"mass must be a positive .*: \[ 1. inf  1.\]"),
        (lambda t: 1.0, TypeError, "mass must be numbers that stay the same. Received: a sch"),
        (None, TypeError, "mass must be a number. Received: None"),
    ],
)
def test_wrong_masses(kernel: type, mass: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        kernel(NORMAL, 0.1, mass=mass)


@pytest.mark.parametrize("kernel", KERNELS)
def test_masses_that_do_not_fit_the_state(kernel: type) -> None:
    with pytest.raises(ValueError, match=r"mass must broadcast .* Received: shape \(2,\)"):
        first(kernel, tf.zeros([4, 3]), mass=[1.0, 2.0])
    with pytest.raises(ValueError, match="mass must have the structure of the state"):
        first(kernel, TWO, TWO_PARTS, mass=[1.0])


# Step size, friction, temperature


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["friction", "temperature"])
def test_numbers_that_no_sampler_takes(kernel: type, name: str) -> None:
    for value in (0.0, -1.0, float("nan"), np.array([1.0, 0.0])):
        with pytest.raises(ValueError, match=f"{name} must be a positive finite .*: .*"):
            kernel(NORMAL, 0.1, **{name: value})
    with pytest.raises(ValueError, match=f"{name} at step 0 must be a positive finite .*: -1.0"):
        kernel(NORMAL, 0.1, **{name: lambda t: -1.0})
    with pytest.raises(TypeError, match=f"{name} must be a number. Received: None"):
        kernel(NORMAL, 0.1, **{name: None})


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["step_size", "friction", "temperature"])
def test_numbers_that_do_not_fit_the_chains(kernel: type, name: str) -> None:
    for value in (np.ones([3]), np.ones([4, 1]), lambda t: tf.ones([5])):
        options = {"step_size": 0.1, name: value}
        with pytest.raises(ValueError, match=rf"{name} must be a scalar, or .*: shape \(.*\)"):
            kernel(NORMAL, **options).bootstrap_results(tf.zeros([4, 3]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_nests_where_one_number_is_expected(kernel: type) -> None:
    with pytest.raises(ValueError, match=r"step_size must be one number .*: \[0.1, 0.2\]"):
        kernel(TWO_PARTS, [0.1, 0.2])
    for name in ("friction", "temperature"):
        with pytest.raises(ValueError, match=rf"{name} must be a number, or an .*: \[1.0, 2.0\]"):
            first(kernel, TWO, TWO_PARTS, **{name: [1.0, 2.0]})


def test_number_at() -> None:
    state, step = tf.zeros([2, 3], tf.float64), tf.constant(4, tf.int64)
    exact = number_at(0.1, step, state, 1, "h")
    assert exact.dtype == tf.float64 and exact.numpy() == 0.1  # not through float32
    np.testing.assert_array_equal(number_at(tf.constant([1, 2]), step, state, 1, "h"), [1.0, 2.0])
    np.testing.assert_array_equal(number_at(lambda t: 2 * t, step, state, 1, "h"), 8.0)
    polynomial = sgmcmc.schedules.PolynomialDecay(a=1.0, b=1.0, gamma=0.5)
    np.testing.assert_allclose(number_at(polynomial, step, state, 1, "h"), 5**-0.5, rtol=1e-6)


def test_scaled() -> None:
    x = np.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_array_equal(scaled(tf.constant(2.0, tf.float64), tf.constant(x)), 2 * x)
    each = tf.constant([2.0, 3.0], tf.float64)
    expected = x * np.array([2.0, 3.0])[:, np.newaxis, np.newaxis]
    np.testing.assert_array_equal(scaled(each, tf.constant(x)), expected)


def test_kinetic_temperature_counts_entries_and_squares_momenta() -> None:
    """It averages the squares of all entries of a chain. |p| would heat the chain 2.5 times."""
    p = [tf.constant([[1.0], [2.0]]), tf.constant([[[3.0, 1.0]], [[0.0, 2.0]]])]
    assert num_entries(p, lead_ndims=1) == 3
    found = kinetic_temperature(p, [tf.constant(2.0), tf.constant([1.0, 4.0])], chain_ndims=1)
    np.testing.assert_allclose(found, [(0.5 + 9 + 0.25) / 3, (2 + 0 + 1) / 3])
    draws = tf.random.stateless_normal([200_000, 5], [0, 1])
    heat = kinetic_temperature(draws, tf.ones([]), chain_ndims=1).numpy()
    # d T is chi-square with d degrees of freedom: mean 1, variance 2 / d (5 standard errors).
    assert abs(heat.mean() - 1) < 5 * (2 / 5 / 200_000) ** 0.5
    assert abs(heat.var() - 0.4) < 0.02
