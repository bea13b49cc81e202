"""Snapshots differ if and only if something that a function reads has another value."""

import collections
import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

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


class Follower:
    """A trace or a schedule, as a call and as a method."""

    def __init__(self, number: float):
        self.number, self.others = number, [1.0]

    def __call__(self, x: float) -> float:
        return self.number * x + self.others[0]

    def of(self, x: float) -> float:
        return self(x)

    @property
    def twice(self) -> float:
        return 2 * self.number


class Reader:
    """A trace that reads an attribute of an attribute."""

    def __init__(self, held: Any):
        self.held = held

    def __call__(self, x: float) -> float:
        return self.held.inner.number * x


def test_objects_are_what_they_hold() -> None:
    """Also large arrays, and objects behind the methods that a function calls."""
    large, follower, inner = np.zeros(2_000), Follower(1.0), types.SimpleNamespace(number=1.0)
    held = types.SimpleNamespace(inner=inner)
    kinds: list[tuple[Any, Callable[[], Any]]] = [
        (lambda: lambda x: large.sum() + x, lambda: large.__setitem__(5, 1.0)),
        (lambda: follower, lambda: setattr(follower, "number", 2.0)),
        (lambda: follower.of, lambda: follower.others.append(2.0)),
        (lambda: lambda x: follower.of(x), lambda: setattr(follower, "number", 3.0)),
        (lambda: functools.partial(follower, 1.0), lambda: setattr(follower, "number", 4.0)),
        (lambda: lambda x: held.inner.number * x, lambda: setattr(inner, "number", 2.0)),
        (lambda: lambda x: [held][0].inner.number, lambda: setattr(inner, "number", 3.0)),
        (lambda: Reader(held), lambda: setattr(inner, "number", 4.0)),
        (lambda: lambda x: follower.twice, lambda: setattr(follower, "number", 5.0)),
    ]
    for make, change in kinds:
        before = snapshot(make())
        assert is_same(before, snapshot(make()))
        change()
        assert not is_same(before, snapshot(make()))


def test_a_log_posterior_that_has_changed_is_compiled_anew() -> None:
    """A variable that it reads has another value. At the start, zero, the log posterior has not."""
    width = [1.0]

    def log_prob(x: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum((x / width[0]) ** 2, axis=-1)

    rows = np.zeros([20, 1], np.float32)
    target = sgmcmc.MinibatchLogProb(log_prob, lambda x, batch: batch[:, 0] + 0 * x, rows, 5)
    hmc = tfp.mcmc.HamiltonianMonteCarlo(log_prob, 0.5, 3)
    kernels = {
        "of another library": lambda: hmc,
        "with rows": lambda: sgmcmc.SGLD(target, 0.1),
        "of all data": lambda: sgmcmc.SGLD(full, 0.1),
    }
    full = sgmcmc.FullDataLogProb(log_prob)
    options: dict[str, Any] = dict(seed=1, jit_compile=False, progress_bar=False)
    for make in kernels.values():
        width[0] = 1.0
        first, same = (sgmcmc.sample_chain(make(), tf.zeros([1]), 20, **options) for _ in range(2))
        np.testing.assert_array_equal(first.states, same.states)
        width[0] = 0.5
        sgmcmc.sample_chain(make(), tf.zeros([1]), 20, **options)
        width[0] = 10.0  # once more, right after a change
        other = sgmcmc.sample_chain(make(), tf.zeros([1]), 20, **options)
        fresh = sgmcmc.sample_chain(copy.deepcopy(make()), tf.zeros([1]), 20, **options)
        np.testing.assert_array_equal(other.states, fresh.states)
        assert np.abs(other.states - first.states).max() > 0.01


def test_a_schedule_that_has_changed_is_compiled_anew() -> None:
    """Whatever it reads, such as an object that only another function looks into."""
    steps: list[tuple[Any, Callable[[Any], float], Callable[[Any, float], None]]] = [
        (collections.OrderedDict(h=0.1), lambda x: x["h"], lambda x, h: x.update(h=h)),
        ([Follower(0.1)], lambda x: x[0].number, lambda x, h: setattr(x[0], "number", h)),
    ]
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    for held, get, change in steps:
        kernel = sgmcmc.SGLD(target, lambda step, get=get, held=held: tf.constant(get(held)))
        weights = []
        for h in (0.1, 0.2):
            change(held, h)
            result = sgmcmc.sample_chain(kernel, tf.zeros([1]), 2, seed=1, jit_compile=False)
            weights.append(float(result.weights[-1]))
        np.testing.assert_allclose(weights, [0.1, 0.2], rtol=1e-6)


def test_a_kernel_can_be_copied_after_a_run() -> None:
    kernel = tfp.mcmc.HamiltonianMonteCarlo(lambda x: -0.5 * tf.reduce_sum(x**2, -1), 0.5, 3)
    options: dict[str, Any] = dict(seed=1, jit_compile=False, progress_bar=False)
    first = sgmcmc.sample_chain(kernel, tf.ones([1]), 5, **options)
    again = sgmcmc.sample_chain(copy.deepcopy(kernel), tf.ones([1]), 5, **options)
    np.testing.assert_array_equal(first.states, again.states)
