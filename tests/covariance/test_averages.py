"""Averages over minibatches, compared at each step and for each chain with loops in NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.covariance import History, RunningMean

GENERATOR = np.random.default_rng(0)
STEPS = 9
WEIGHTS = [3.0, 0.0, 1.0]
AVERAGES = {
    "mean": RunningMean(),
    "exponential": RunningMean(0.7),
    "forgetful": RunningMean(0.7, power=2.0),
    "polynomial": RunningMean(power=2.5),
    "last": History(1),
    "equal": History(3),
    "weighted": History(WEIGHTS),
    "lagged": History(WEIGHTS, lag=2),
    "old": History(1, lag=1),
}


def lag(average: Any) -> int:
    """Returns the lag; with 0, the current minibatch may be included."""
    return average.lag if isinstance(average, History) else 0


def running(statistics: list[Any], decay: float | None, power: float = 0.0) -> Any:
    """Returns the average of the statistics that are not None, or zero if there are none."""
    value, t = 0.0, 0
    for statistic in statistics:
        if statistic is not None:
            t += 1
            kappa = (1 + power) / (t + power)
            kappa = kappa if decay is None else max(kappa, 1 - decay)
            value = value + kappa * (statistic - value)
    return value


def windowed(statistics: list[Any], average: History) -> Any:
    """Returns the weighted mean of the last statistics, or None if the weights add up to zero.

    With a lag, the first statistic stands for all before it. So does one that follows lag + K
    minibatches that were left out.
    """
    slots = average.lag + len(average.weights)
    good = [i for i, s in enumerate(statistics) if s is not None]
    firsts = [i for i in good if all(s is None for s in statistics[max(0, i - slots) : i])]
    if average.lag and firsts:
        statistics = [statistics[firsts[-1]]] * slots + statistics[firsts[-1] :]
    last = statistics[::-1][average.lag :]
    last = [(w, s) for w, s in zip(average.weights, last, strict=False) if s is not None]
    total = sum(w for w, _ in last)
    return sum(w * s for w, s in last) / total if total else None


def expected(average: Any, statistics: list[Any], include_current: bool) -> Any:
    """Returns what a chain uses at the last step; None in `statistics` is a minibatch left out."""
    past = statistics if include_current else statistics[:-1]
    if isinstance(average, RunningMean):
        no_past = all(s is None for s in past)
        return running(statistics if no_past else past, average.decay, average.power)
    values = (windowed(seen, average) for seen in (past, statistics))
    return next((value for value in values if value is not None), 0.0)


def run(
    average: Any, statistics: np.ndarray, accept: np.ndarray, include_current: bool, jit: bool
) -> np.ndarray:
    """Returns what is used at each step, `[STEPS, chains..., ...]`."""

    def all_steps(statistics: tf.Tensor, accept: tf.Tensor) -> tf.Tensor:
        own = average.init(statistics[0], accept.shape.rank - 1)

        def step(carried: Any, inputs: Any) -> Any:
            return average.update(carried[1], *inputs, include_current)

        start = (tf.zeros_like(statistics[0]), own)
        if jit:  # in a loop, as in samplers
            return tf.scan(step, (statistics, accept), start)[0]
        used = []
        for inputs in zip(statistics, accept, strict=True):
            start = step(start, inputs)
            used.append(start[0])
        return tf.stack(used)

    if jit:
        all_steps = tf.function(all_steps, jit_compile=True, autograph=False)
    return all_steps(tf.constant(statistics), tf.constant(accept)).numpy()


@pytest.mark.parametrize(
    ("chains", "jit"),
    [
        ((), False),
        pytest.param((3,), False, marks=pytest.mark.slow),
        ((2, 2), False),
        pytest.param((3,), True, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize(
    ("name", "include_current"),
    [(k, i) for k, a in AVERAGES.items() for i in (False, True) if not i or not lag(a)],
)
def test_what_is_used(name: str, chains: tuple[int, ...], include_current: bool, jit: bool) -> None:
    """Each chain leaves out other minibatches, which hold NaN."""
    average = AVERAGES[name]
    statistics = GENERATOR.standard_normal([STEPS, *chains, 2, 3])
    accept = GENERATOR.uniform(size=[STEPS, *chains]) < 0.7
    statistics[~accept] = np.nan
    used = run(average, statistics, accept, include_current, jit)
    for chain in np.ndindex(*chains):
        seen: list[Any] = []
        for t in range(STEPS):
            index = (t, *chain)
            seen.append(statistics[index] if accept[index] else None)
            right = np.broadcast_to(expected(average, seen, include_current), [2, 3])
            np.testing.assert_allclose(used[index], right, rtol=1e-12, atol=1e-14)


def test_the_current_minibatch_is_not_used() -> None:
    """The second step does not depend on its minibatch; the first step has no other one."""
    for average in AVERAGES.values():
        own = average.init(tf.zeros([2]), 0)
        accept = tf.constant(True)
        first, own = average.update(own, tf.constant([1.0, 2.0]), accept, False)
        np.testing.assert_array_equal(first, [1.0, 2.0])
        for current in (0.0, 1e6):
            used, _ = average.update(own, tf.fill([2], current), accept, False)
            np.testing.assert_array_equal(used, [1.0, 2.0])
            with_current, _ = average.update(own, tf.fill([2], current), accept, True)
            changed = with_current.numpy() != [1.0, 2.0]
            assert np.all(changed) or lag(average)


def test_a_long_average_in_single_precision_forgets_nothing() -> None:
    """Weights 1/t give the mean of 10,000 statistics, with small rounding errors."""
    statistics = GENERATOR.uniform(1.0, 2.0, 10_000).astype(np.float32)
    average, steps = RunningMean(), tf.ones([len(statistics)], tf.bool)
    used = run(average, statistics, steps.numpy(), True, jit=True)
    np.testing.assert_allclose(used[-1], statistics.astype(np.float64).mean(), rtol=1e-5)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, float("nan")])
def test_decay_out_of_range(decay: float) -> None:
    with pytest.raises(ValueError, match="decay must be None or a number in \\[0, 1\\)"):
        RunningMean(decay)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -0.1], "need not be a covariance"),
        ([0.0, 1.0], "the first positive"),
        ([1.0, float("nan")], "weights must be finite"),
        ([1.0, float("inf")], "weights must be finite"),
        ([], "weights must be an array with at least 1 axes and an entry"),
        (0, "weights must be a positive integer or .* Received: 0"),
        (-2, "weights must be a positive integer or .* Received: -2"),
        ([[1.0]], "a sequence of at least one number"),
        (2.5, "weights must be an array with at least 1 axes"),
    ],
)
def test_weights_that_make_no_average(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        History(weights)


def test_a_lag_that_is_none() -> None:
    with pytest.raises(ValueError, match="lag must be at least 0. Received: -1"):
        History(2, lag=-1)
    with pytest.raises(TypeError, match="lag must be an integer. Received: 1.5"):
        History(2, lag=1.5)
    for kind in (sgmcmc.covariance.Full, sgmcmc.covariance.LowRank):
        with pytest.raises(ValueError, match="include_current is True. Received: lag 1"):
            kind(History(2, lag=1), include_current=True)


def test_an_average_is_no_number() -> None:
    with pytest.raises(TypeError, match="average must be a RunningMean .* Received: 0.99"):
        sgmcmc.covariance.Full(average=0.99)


@pytest.mark.parametrize("jit", [True, False])
def test_a_lag_leaves_the_youngest_out(jit: bool) -> None:
    """Uses minibatches t - 3 and t - 4 with weights 2 and 1; the first stands for earlier ones."""
    values = np.random.default_rng(5).standard_normal([9, 2, 3])
    used = run(History([2.0, 1.0], lag=2), values, np.ones([9, 2], bool), False, jit)
    for t, got in enumerate(used):
        expected = (2 * values[max(t - 3, 0)] + values[max(t - 4, 0)]) / 3
        np.testing.assert_allclose(got, expected, rtol=1e-12)
