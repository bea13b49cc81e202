"""Weights by step size against definitions, and against the exact variance of both means.

On N(0, 1/A) a step of SGLD with minibatches is linear in one dimension,

  theta' = (1 - epsilon_t A / 2) theta + (epsilon_t^2 / 4 Sigma + epsilon_t)^(1/2) xi_t,

so that a chain is theta = L xi with a known triangular L, and the variance of a linear estimate
w . theta is |L^T w|^2. No chain is drawn.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.diagnostics.folds import fold, states
from tfp_sgmcmc.diagnostics import (
    MixingDistanceReducer,
    WeightedExpectationReducer,
    effective_number_of_steps,
    indices_by_distance,
    weighted_expectation,
)

GENERATOR = np.random.default_rng(0)
A, SIGMA = 2.0, 3.0
NUM_STEPS = 4000
SCHEDULE = sgmcmc.schedules.PolynomialDecay.from_endpoints(0.2, 0.004, NUM_STEPS, gamma=0.55)
STEPS = SCHEDULE(tf.range(NUM_STEPS)).numpy().astype(np.float64)


def chain_of_noises(steps: np.ndarray) -> np.ndarray:
    """Returns L, `[T, T]`: the chain that starts at 0, as a function of its noises."""
    chain, theta = np.zeros([len(steps), len(steps)], np.float32), np.zeros(len(steps))
    for t, epsilon in enumerate(steps):
        theta = (1 - epsilon * A / 2) * theta
        theta[t] = np.sqrt(epsilon**2 / 4 * SIGMA + epsilon)
        chain[t] = theta
    return chain


CHAIN = chain_of_noises(STEPS)


def test_the_weighted_mean_beats_the_plain_mean_by_the_factor_of_theory() -> None:
    """The ratio of plain to weighted variance is sum epsilon sum 1/epsilon / T^2.

    The weighted variance is 4 / (A^2 sum epsilon), as for a mean over time. For a chain that starts
    at 0, a finite time lowers it by 3 / (A sum epsilon), 4 % here, and finite steps add less.
    """
    finite_time = 3 / (A * STEPS.sum())
    weighted = np.sum(weighted_expectation(CHAIN, STEPS) ** 2)
    plain = np.sum(CHAIN.mean(axis=0, dtype=np.float64) ** 2)
    factor = STEPS.sum() * (1 / STEPS).sum() / NUM_STEPS**2
    assert factor > 1.35
    np.testing.assert_allclose(plain / weighted, factor, rtol=finite_time)
    np.testing.assert_allclose(weighted, 4 / (A**2 * STEPS.sum()), rtol=finite_time)


def test_states_kept_by_distance_are_as_good_as_weights() -> None:
    """They lie at equal distances in time, here a fifth of the correlation time 2/A.

    The sum over exp(-|t| A/2) on such a grid exceeds the integral by (1/5)^2 / 12, and its points
    lie half a distance further from the start.
    """
    kept = indices_by_distance(STEPS, distance=0.2)
    weighted = np.sum(weighted_expectation(CHAIN, STEPS) ** 2)
    collected = np.sum(CHAIN[kept].mean(axis=0, dtype=np.float64) ** 2)
    np.testing.assert_allclose(collected, weighted, rtol=0.2**2 / 12 + 0.1 / STEPS.sum())
    assert len(kept) < NUM_STEPS / 10


def test_against_the_definition() -> None:
    values = {"a": GENERATOR.standard_normal([9, 2, 3]), "b": GENERATOR.standard_normal([9, 2])}
    steps = GENERATOR.uniform(size=[9])
    found = weighted_expectation(values, steps)
    for name, x in values.items():
        np.testing.assert_allclose(found[name], np.average(x, axis=0, weights=steps))
    by_chain = GENERATOR.uniform(size=[9, 2])
    found = weighted_expectation(values, by_chain)
    for chain in range(2):
        expected = np.average(values["a"][:, chain], axis=0, weights=by_chain[:, chain])
        np.testing.assert_allclose(found["a"][chain], expected)
    expected = by_chain.sum(axis=0) ** 2 / (by_chain**2).sum(axis=0)
    np.testing.assert_allclose(effective_number_of_steps(by_chain), expected)


@pytest.mark.thorough
def test_reducers_see_what_functions_see() -> None:
    num_steps, size = 50, 6
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    schedule = sgmcmc.schedules.PolynomialDecay(a=0.5)
    steps = schedule(tf.range(num_steps)).numpy()
    reducers = [
        WeightedExpectationReducer(),
        WeightedExpectationReducer(lambda x: {"norm": tf.reduce_sum(x**2, axis=-1)}),
        MixingDistanceReducer(distance=0.8, size=num_steps),
        MixingDistanceReducer(distance=0.8, size=size),
        states(num_steps),
    ]
    kernel = sgmcmc.SGLD(target, schedule)
    mean, squares, collected, full, chain = fold(kernel, tf.ones([2, 3]), num_steps, reducers)
    chain = chain.numpy()
    np.testing.assert_allclose(mean, weighted_expectation(chain, steps), rtol=1e-4)
    norm = weighted_expectation((chain**2).sum(axis=-1), steps)
    np.testing.assert_allclose(squares["norm"], norm, rtol=1e-4)
    kept = indices_by_distance(steps, distance=0.8)
    assert int(collected.num_kept) == len(kept) > size == int(full.num_kept)
    np.testing.assert_array_equal(collected.samples[: len(kept)], chain[kept])
    np.testing.assert_array_equal(collected.samples[len(kept) :], 0)
    np.testing.assert_array_equal(full.samples, chain[kept[:size]])


def test_collection_by_distance_does_not_drift_in_single_precision() -> None:
    """The chain travels twenty distances of a hundred equal steps each."""
    step, num_steps = np.float32(1e-4), 2000
    reducer = MixingDistanceReducer(1e-2, size=100, step_size_fn=lambda r: r)
    start = reducer.initialize(tf.zeros([]), step)

    @tf.function(autograph=False, jit_compile=True)
    def run() -> Any:
        return tf.while_loop(
            lambda t, _: t < num_steps,
            lambda t, own: (t + 1, reducer.one_step(tf.cast(t, tf.float32), own, step)),
            (tf.constant(0), start),
        )[1]

    found, expected = run(), indices_by_distance(np.full(num_steps, step), 1e-2)
    assert len(expected) == 20
    np.testing.assert_array_equal(found.samples[: int(found.num_kept)], expected)


def test_the_reducer_weights_chains_by_steps_of_their_own() -> None:
    values, steps = GENERATOR.standard_normal([5, 2, 3]), GENERATOR.uniform(size=[5, 2])
    reducer = WeightedExpectationReducer(step_size_fn=lambda r: r)
    own = reducer.initialize(values[0], steps[0])
    for x, step in zip(values, steps, strict=True):
        own = reducer.one_step(tf.constant(x), own, tf.constant(step))
    expected = weighted_expectation(values, steps)
    np.testing.assert_allclose(reducer.finalize(own), expected)
    number = own.total**2 / own.total_squares
    np.testing.assert_allclose(number, effective_number_of_steps(steps))


def test_bad_input() -> None:
    for bad in ([], [1.0, -1.0], [np.nan, 1.0], [0.0, 0.0], 1.0):
        with pytest.raises(ValueError, match="step_sizes must"):
            weighted_expectation(np.ones(2), bad)
        with pytest.raises(ValueError, match="step_sizes must"):
            effective_number_of_steps(bad)
        with pytest.raises(ValueError, match="step_sizes must"):
            indices_by_distance(bad, 1.0)
    with pytest.raises(ValueError, match=r"step_sizes, \(2,\). Received: \(3,\)"):
        weighted_expectation(np.ones(3), [1.0, 1.0])
    with pytest.raises(ValueError, match=r"step_sizes must have shape \[T\]. Received: \(2, 1\)"):
        indices_by_distance(np.ones([2, 1]), 1.0)
    with pytest.raises(ValueError, match="at least the largest step, 0.5. Received: 0.4"):
        indices_by_distance([0.1, 0.5], 0.4)
    with pytest.raises(ValueError, match="distance must be a positive finite number. Received: 0"):
        MixingDistanceReducer(0.0, 3)
    with pytest.raises(ValueError, match="size must be at least 1. Received: 0"):
        MixingDistanceReducer(1.0, 0)
    for fn in (lambda: 0.1, lambda a, b: 0.1):
        with pytest.raises(TypeError, match="step_size_fn must be callable with 1 argument"):
            MixingDistanceReducer(1.0, 3, step_size_fn=fn)
        with pytest.raises(TypeError, match="fn must be callable with 1 argument"):
            WeightedExpectationReducer(fn)
    reducer = MixingDistanceReducer(1.0, 3, step_size_fn=lambda r: r)
    with pytest.raises(ValueError, match="one number for all chains"):
        reducer.initialize(tf.ones([2]), tf.ones([2]))
    weighted = WeightedExpectationReducer(step_size_fn=lambda r: r)
    with pytest.raises(ValueError, match="one step size for all parts"):
        weighted.initialize([tf.ones([2]), tf.ones([2])], [0.1, 0.2])


def test_truth_values_and_integers_are_averaged_as_numbers() -> None:
    """Step sizes below 1 would be 0 as integers."""
    results = {"step_size": tf.constant(0.5)}
    for fn in (lambda x: x > 0.0, lambda x: tf.cast(x > 0.0, tf.int32)):
        reducer = WeightedExpectationReducer(fn, step_size_fn=lambda r: r["step_size"])
        own = reducer.initialize(tf.constant(0.0), results)
        for value in (1.0, -1.0, 1.0, 1.0):
            own = reducer.one_step(tf.constant(value), own, results)
        assert float(reducer.finalize(own)) == pytest.approx(0.75)


def test_an_expectation_without_weight_is_nan() -> None:
    """And not the zero with which the sum begins."""
    reducer = WeightedExpectationReducer()
    kernel = sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2), 0.1)
    start = tf.ones([2])
    own = reducer.initialize(start, kernel.bootstrap_results(start))
    assert np.isnan(reducer.finalize(own)).all()
