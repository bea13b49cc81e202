"""Schedules give the values of their docstrings and survive serialisation."""

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfp_sgmcmc.schedules import (
    ConstantBelow,
    CosineTail,
    Cyclical,
    GeometricDecay,
    PolynomialDecay,
)

STEPS = np.array([0, 1, 2, 7, 100, 10**6])

SCHEDULES = [
    PolynomialDecay(a=0.3, b=5.0, gamma=0.55),
    ConstantBelow(PolynomialDecay(a=0.3, b=5.0), 0.01),
    Cyclical(0.1, num_steps=10, num_cycles=3, exploration_ratio=0.25),
    GeometricDecay(0.3, 0.01, num_steps=10),
    CosineTail(2.0, 0.2, num_steps=10, start=0.8),
    CosineTail(2.0, 0.2, num_steps=10, start=0.8, peak_value=8.0),
]


def test_polynomial_decay() -> None:
    values = [float(PolynomialDecay(a=0.3, b=5.0, gamma=0.55)(t)) for t in STEPS]
    np.testing.assert_allclose(values, 0.3 * (5.0 + STEPS) ** -0.55, rtol=1e-5)


@pytest.mark.parametrize(("first", "last", "num_steps"), [(1.0, 0.01, 1000), (1e-2, 5e-3, 2)])
def test_polynomial_decay_from_endpoints(first: float, last: float, num_steps: int) -> None:
    schedule = PolynomialDecay.from_endpoints(first, last, num_steps, gamma=0.7)
    ends = [float(schedule(0)), float(schedule(num_steps - 1))]
    np.testing.assert_allclose(ends, [first, last], rtol=1e-5)


def test_constant_below() -> None:
    schedule = ConstantBelow(lambda t: 1.0 / (1.0 + tf.cast(t, tf.float32)), 0.2)
    np.testing.assert_allclose([schedule(t) for t in (0, 1, 3, 4, 50)], [1, 0.5, 0.25, 0.2, 0.2])


def test_cyclical() -> None:
    schedule = Cyclical(0.1, num_steps=10, num_cycles=3, exploration_ratio=0.5)  # cycles of 4
    t = np.arange(10)
    r = t % 4 / 4
    np.testing.assert_allclose([schedule(i) for i in t], 0.05 * (np.cos(np.pi * r) + 1), rtol=1e-5)
    np.testing.assert_array_equal([bool(schedule.is_sampling(i)) for i in t], r >= 0.5)


def test_geometric_decay() -> None:
    values = [float(GeometricDecay(0.3, 0.01, 100)(t)) for t in (0, 25, 100, 200)]
    np.testing.assert_allclose(values, [0.3, 0.3 * 30**-0.25, 0.01, 0.01], rtol=1e-5)
    assert float(GeometricDecay(1.0, 100.0, 10)(5)) == pytest.approx(10.0)


def test_cosine_tail() -> None:
    schedule = CosineTail(2.0, 0.2, num_steps=100, start=0.5)
    values = [float(schedule(t)) for t in (0, 50, 75, 87.5, 100, 200)]
    tail = 0.2 + 1.8 * (1 + np.cos(np.pi * np.array([0.5, 0.75]))) / 2
    np.testing.assert_allclose(values, [2.0, 2.0, *tail, 0.2, 0.2], rtol=1e-5)


def test_cosine_tail_after_growth() -> None:
    schedule = CosineTail(1.0, 0.2, num_steps=100, start=0.5, peak_value=16.0)
    values = [float(schedule(t)) for t in (0, 12.5, 25, 50, 75, 100, 200)]
    np.testing.assert_allclose(values, [1.0, 2.0, 4.0, 16.0, 8.1, 0.2, 0.2], rtol=1e-5)
    with pytest.raises(ValueError, match=r"start must be .*in \[1e-06, 1\)"):
        CosineTail(1.0, 0.2, num_steps=100, start=0.0, peak_value=16.0)


@pytest.mark.parametrize(("length", "num_exploring"), [(25, 10), (49, 7), (50, 40), (100, 10)])
def test_the_phases_of_a_cycle_are_the_same_compiled(length: int, num_exploring: int) -> None:
    """With quotients, XLA rounded an r_t that equals the ratio to below it."""
    schedule = Cyclical(1.0, length, 1, num_exploring / length)
    for run in (schedule.is_sampling, tf.function(schedule.is_sampling, jit_compile=True)):
        found = [bool(run(tf.constant(t, tf.int64))) for t in range(length)]
        assert found == [t >= num_exploring for t in range(length)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_serialisation_returns_the_same_schedule(schedule: object) -> None:
    config = keras.saving.serialize_keras_object(schedule)
    assert keras.optimizers.schedules.serialize(schedule) == config
    for deserialize in (
        keras.saving.deserialize_keras_object,
        keras.optimizers.schedules.deserialize,
    ):
        copy = deserialize(config)
        assert type(copy) is type(schedule)
        assert [float(copy(t)) for t in STEPS] == [float(schedule(t)) for t in STEPS]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_keras_optimizers_take_schedules(schedule: object) -> None:
    optimizer = keras.optimizers.SGD(learning_rate=schedule)
    assert float(optimizer.learning_rate) == float(schedule(0))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float32])
def test_steps_of_every_dtype_compiled(schedule: object, dtype: tf.DType) -> None:
    compiled = tf.function(schedule, jit_compile=True, autograph=False)
    for t in (0, 3):
        np.testing.assert_allclose(compiled(tf.constant(t, dtype)), schedule(t), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolynomialDecay(a=0.0), "a must be a positive finite number. Received: 0.0"),
        (
            lambda: PolynomialDecay(a=1.0, b=-1.0),
            "b must be a positive finite number. Received: -1.0",
        ),
        (
            lambda: PolynomialDecay(a=float("nan")),
            "a must be a positive finite number. Received: nan",
        ),
        (lambda: PolynomialDecay(a=1.0, gamma=-0.1), "gamma must be .* at least 0.*: -0.1"),
        (
            lambda: PolynomialDecay.from_endpoints(1.0, 2.0, 10),
            "first must be .* last = 2.0.*: 1.0",
        ),
        (lambda: PolynomialDecay.from_endpoints(1.0, 0.0, 10), "last must be a positive .*: 0.0"),
        (lambda: PolynomialDecay.from_endpoints(1.0, 0.1, 1), "num_steps must be at least 2.*: 1"),
        (lambda: PolynomialDecay.from_endpoints(math.inf, 0.1, 10), "first must be .*: inf"),
        (
            lambda: PolynomialDecay.from_endpoints(1.0, 0.1, 10, 1e-4),
            "gamma must be above .*: 0.0001",
        ),
        (lambda: PolynomialDecay(a=math.inf), "a must be a positive finite number.*: inf"),
        (lambda: PolynomialDecay(a=1.0, gamma=math.nan), "gamma must be a finite number.*: nan"),
        (lambda: ConstantBelow(SCHEDULES[0], math.inf), "critical_value must be .*: inf"),
        (
            lambda: ConstantBelow(lambda t: math.nan, 0.1)(0),
            "The value of schedule must be .*: nan",
        ),
        (lambda: Cyclical(math.inf, 10, 2), "initial_value must be .*: inf"),
        (lambda: ConstantBelow(SCHEDULES[0], 0.0), "critical_value must be a positive .*: 0.0"),
        (lambda: Cyclical(-1.0, 10, 2), "initial_value must be a positive .* Received: -1.0"),
        (lambda: Cyclical(1.0, 10, 11), "num_cycles must be in 1 .. 10. Received: 11"),
        (lambda: Cyclical(1.0, 0, 1), "num_steps must be at least 1. Received: 0"),
        (lambda: Cyclical(1.0, 10, 2, 1.0), r"exploration_ratio must be in \[0, 1\).*: 1.0"),
    ],
)
def test_bad_arguments(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_schedule_that_is_not_callable() -> None:
    with pytest.raises(TypeError, match="schedule must be a callable. Received: a float"):
        ConstantBelow(0.1, 0.01)
    with pytest.raises(TypeError, match="schedule must be callable with 1 argument"):
        ConstantBelow(lambda: 0.1, 0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolynomialDecay("1"), "a must be a positive finite number. Received: '1'"),
        (lambda: PolynomialDecay(1.0, gamma=True), "gamma must be a finite number.*: True"),
        (lambda: PolynomialDecay.from_endpoints(1.0, 0.1, 10.0), "num_steps must be an integer"),
        (lambda: Cyclical(1.0, 10.5, 2), "num_steps must be an integer. Received: 10.5"),
        (lambda: Cyclical(1.0, 10, True), "num_cycles must be an integer. Received: True"),
        (lambda: Cyclical(1.0, 10, 2, None), "exploration_ratio must be a number in .*: None"),
    ],
)
def test_arguments_of_wrong_types(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_cycles_of_any_length_end_above_zero():
    """In float32 cos(pi r) + 1 is 0 there. Near the end the step is (pi (1 - r) / 2)^2."""
    schedule = Cyclical(1e-3, num_steps=1_000_000, num_cycles=5)
    last = float(schedule(199_999))
    assert last == pytest.approx(1e-3 * (np.pi / 2 / 200_000) ** 2, rel=1e-5, abs=0)


def test_polynomial_decay_with_a_large_power():
    """Its factor a does not fit into float32."""
    schedule = PolynomialDecay.from_endpoints(1e-2, 1e-4, 10**6, gamma=8.0)
    assert schedule.a > 1e38
    np.testing.assert_allclose([schedule(0), schedule(10**6 - 1)], [1e-2, 1e-4], rtol=1e-4)
