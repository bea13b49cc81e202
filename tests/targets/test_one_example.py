"""Targets made of a callable are used again while it gives the same numbers."""

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.harness.programs import counted
from tfp_sgmcmc.targets.one_example import KeptTargets, one_example

tfd, tfb = tfp.distributions, tfp.bijectors
START = tf.zeros([2])


def log_prob(w: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum(w**2, axis=-1)


class Normal:
    """A log posterior with an attribute, as a method and as a call."""

    def __init__(self, mean: float):
        self.mean = mean

    def __call__(self, w: tf.Tensor) -> tf.Tensor:
        return log_prob(w - self.mean)

    def log_prob(self, w: tf.Tensor) -> tf.Tensor:
        return self(w)


class WithoutAttributes:
    __slots__ = ()

    def __call__(self, w: tf.Tensor) -> tf.Tensor:
        return log_prob(w)


def pinned() -> Any:
    joint = tfd.JointDistributionSequential(
        [tfd.Sample(tfd.Normal(0.0, 1.0), 2), lambda w: tfd.Independent(tfd.Normal(w, 1.0), 1)]
    )
    return joint.experimental_pin(None, [0.5, 0.5])


TARGETS: dict[str, Callable[[], Any]] = {
    "function": lambda: log_prob,
    "FullDataLogProb": lambda: sgmcmc.FullDataLogProb(log_prob),
    "object": lambda: Normal(0.0),
    "pinned joint": pinned,
}


def draws(target: Any, seed: int = 0, bijector: Any = None) -> np.ndarray:
    start = None if hasattr(target, "pins") else START
    options: dict[str, Any] = {"bijector": bijector, "progress_bar": False}
    result = sgmcmc.sample(target, start, 500, min_ess=20, seed=seed, **options)
    return np.asarray(tf.nest.flatten(result.states)[0])


@pytest.mark.parametrize("name", fast_settings(TARGETS, "FullDataLogProb", "object"))
def test_a_second_call_traces_and_compiles_nothing(name: str) -> None:
    target = TARGETS[name]()
    draws(target)
    with counted() as made:
        draws(target, seed=1)
    assert made.graphs == []
    assert made.maps[0] < 20  # a program of XLA takes about 50


def test_what_a_callable_reads_may_change() -> None:
    """Means of 2,000 draws have a standard error of about 0.03."""
    target = Normal(0.0)
    assert abs(draws(target.log_prob).mean()) < 0.3
    target.mean = 4.0
    with counted() as made:
        assert abs(draws(target.log_prob).mean() - 4.0) < 0.3
    assert made.graphs


def find(target: Any, bijector: Any = None) -> Any:
    return KeptTargets.of(target).find(target, bijector)


def keep(target: Any, bijector: Any = None) -> Any:
    problem = one_example(target, bijector)
    KeptTargets.of(target).keep(target, bijector, problem, START)
    return problem


def test_other_bijectors_make_other_targets() -> None:
    target = Normal(1.0)
    problem = keep(target, tfb.Scale(2.0))
    assert find(target, tfb.Scale(2.0)) is problem
    assert find(target, tfb.Scale(3.0)) is None and find(target) is None
    assert find(target, [tfb.Scale(2.0)]) is None


@pytest.mark.parametrize("change", [1e-6, 1.0])
def test_the_least_change_makes_another_target(change: float) -> None:
    target = Normal(1.0)
    problem = keep(target)
    assert find(target) is problem
    target.mean += change
    assert find(target) is None
    target.mean -= change
    assert find(target) is None  # it was dropped


@pytest.mark.parametrize("place", [20.0, -20.0])
def test_a_mode_far_away_is_compared(place: float) -> None:
    """At the start it adds exp(-200), which is lost by rounding."""
    modes = np.array([0.0, place], np.float32)

    def two_modes(w: tf.Tensor) -> tf.Tensor:
        return tf.reduce_logsumexp(log_prob(w[..., None, :] - modes[:, None]), axis=-1)

    problem = keep(two_modes)
    assert find(two_modes) is problem
    modes[1] *= 1.5
    assert find(two_modes) is None


def test_callables_without_constant_numbers_are_not_kept() -> None:
    rng = np.random.default_rng(0)
    noisy = lambda w: log_prob(w) + rng.normal()  # noqa: E731
    keep(noisy)
    assert find(noisy) is None

    def fails_far_away(w: tf.Tensor) -> tf.Tensor:
        if np.abs(w).max() > 0.5:
            raise ValueError("too far")
        return log_prob(w)

    keep(fails_far_away)
    assert find(fails_far_away) is None
    nowhere_finite = lambda w: log_prob(w) * np.nan  # noqa: E731
    keep(nowhere_finite)
    assert find(nowhere_finite) is None


def test_programs_stay_with_the_callable_and_in_the_process() -> None:
    target, other = Normal(1.0), Normal(1.0)
    problem = keep(target)
    keep(target.log_prob)
    assert find(other) is None and find(other.log_prob) is None
    assert find(target.log_prob) is not problem
    again = pickle.loads(pickle.dumps(target))
    assert again.mean == 1.0 and find(again) is None and find(copy.deepcopy(target)) is None
    assert find(target) is problem
    for other in (copy.copy(target), functools.wraps(target)(lambda w: log_prob(w - 1.0))):
        assert find(other) is None  # it has the attributes, but may change apart from the first
        assert find(target) is problem
    keep(WithoutAttributes())
    assert find(WithoutAttributes()) is None


def test_parts_of_a_named_tuple_go_by_position_where_the_function_has_other_names() -> None:
    class Parts(NamedTuple):
        x: Any
        y: Any

    def of_others(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return -(a**2) - 2 * b**2

    def of_names(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return -(x**2) - 2 * y**2

    state = Parts(tf.constant([1.0, 2.0]), tf.constant([0.5, 3.0]))
    for fn in (of_others, of_names):
        target = one_example(fn)
        rows = target.log_likelihood(state, target.rows(tf.range(1)), 1, [2])
        np.testing.assert_allclose(rows[:, 0], [-1.5, -22.0])
