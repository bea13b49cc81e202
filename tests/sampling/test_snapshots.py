"""Snapshots differ if and only if something that a function reads has another value."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.sampling.loop import start_of
from tfp_sgmcmc.sampling.programs import is_same, kept_loop, snapshot

NUMBER = 1.0


def of_this_module(x: float) -> float:
    return NUMBER * x


def through_another(x: float) -> float:
    return of_this_module(x) + 1


def through_itself(x: float) -> float:
    return x if x < NUMBER else through_itself(x - 1)


@pytest.mark.parametrize("function", [of_this_module, through_another, through_itself])
def test_variables_of_the_module(
    function: Callable[[float], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(function)
    assert is_same(before, snapshot(function))
    monkeypatch.setitem(globals(), "NUMBER", 2.0)
    assert not is_same(before, snapshot(function))


def enclosing(value: Any) -> tuple[Callable[[], Callable[[], Any]], Callable[[Any], None]]:
    """Returns a maker of equal lambdas, and a function that changes the variable they read."""

    def change(other: Any) -> None:
        nonlocal value
        value = other

    return lambda: lambda: value.inner.number if hasattr(value, "inner") else value, change


def nested(number: float) -> Any:
    return types.SimpleNamespace(inner=types.SimpleNamespace(number=number, unread=0))


@pytest.mark.parametrize(
    ("first", "equal", "other"),
    [
        (1.0, 1.0, 2.0),
        (1, 1, 1.0),
        ("a", "a", "b"),
        ([1, {"a": 2}], [1, {"a": 2}], [1, {"a": 3}]),
        (np.ones(3), np.ones(3), np.array([1.0, 1.0, 2.0])),
        (np.ones(3), np.ones(3), np.ones(3, np.float32)),
        (of_this_module, of_this_module, through_another),
    ],
    ids=["number", "dtype of a number", "name", "nest", "array", "dtype of an array", "function"],
)
def test_variables_of_enclosing_functions(first: Any, equal: Any, other: Any) -> None:
    make, change = enclosing(first)
    before = snapshot(make())
    for value, expected in ((equal, True), (other, False)):
        change(value)
        assert is_same(before, snapshot(make())) is expected


def test_values_that_are_changed_in_place() -> None:
    for value, write in (
        (np.zeros(3), lambda x: x.__setitem__(0, 1.0)),
        ({"a": [1]}, lambda x: x["a"].append(2)),
        (nested(1.0), lambda x: setattr(x.inner, "number", 2.0)),
    ):
        make, _ = enclosing(value)
        before = snapshot(make())
        assert is_same(before, snapshot(make()))
        write(value)
        assert not is_same(before, snapshot(make()))


def test_what_a_function_does_not_read_does_not_count() -> None:
    value = nested(1.0)
    make, _ = enclosing(value)
    before = snapshot(make())
    value.inner.unread = 1
    assert is_same(before, snapshot(make()))


def test_defaults_and_other_objects() -> None:
    makes = [lambda a=a: lambda x, y=a: x + y for a in (1, 2)]
    assert is_same(snapshot(makes[0]()), snapshot(makes[0]()))
    assert not is_same(snapshot(makes[0]()), snapshot(makes[1]()))
    one, other = object(), object()
    assert is_same(snapshot((one, 1)), snapshot((one, 1)))
    assert not is_same(snapshot((one, 1)), snapshot((other, 1)))
    assert not is_same(snapshot((1, 2)), snapshot([1, 2]))


def test_a_variable_without_a_value_yet() -> None:
    function = lambda: later  # noqa: E731
    before = snapshot(function)
    assert is_same(before, snapshot(function))
    later = 1
    assert not is_same(before, snapshot(function))


def test_a_kernel_finds_its_program_behind_one_with_another_tensor() -> None:
    """Lists that are compared by `==` would compare the tensors, which have no truth value."""
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    kernels = [
        sgmcmc.UnderdampedLangevin(target, 0.1, friction=1.0, mass=tf.constant(mass))
        for mass in ([1.0, 2.0], [2.0, 1.0])
    ]
    start = start_of(kernels[0], tf.zeros([2]))
    found = [kept_loop(kernels[i], None, start, False)._graph for i in (0, 1, 1, 0)]
    assert found[1] is found[2] and found[0] is found[3] and found[0] is not found[1]
