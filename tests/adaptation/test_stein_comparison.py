"""The scores of `tune` do not depend on units, and use a minibatch for each state."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tfp_sgmcmc.adaptation.tuning import SteinComparison, spread

SEEDS = [tf.constant([0, i]) for i in range(4)]
DEVIATIONS = np.array([1.0, 0.01])  # of the posterior
ONES = np.ones(2)


def draws(scale: Any = 1.0, num_results: int = 200, num_chains: int = 3) -> np.ndarray:
    z = np.random.default_rng(0).standard_normal([num_results, num_chains, 2])
    return z * DEVIATIONS * scale


def gaussian(precision: np.ndarray) -> sgmcmc.FullDataLogProb:
    return sgmcmc.FullDataLogProb(
        lambda x: -0.5 * tf.reduce_sum(x * tf.linalg.matvec(tf.constant(precision), x), axis=-1)
    )


def scores(states: list[np.ndarray], units: np.ndarray = ONES) -> np.ndarray:
    """Returns the scores of states in other units."""
    target = gaussian(np.diag((units * DEVIATIONS) ** -2))
    return SteinComparison(target, 1, True, 1.0, False)(
        [tf.constant(x * units) for x in states], SEEDS
    )


def squared_discrepancy(x: np.ndarray, gradients: np.ndarray) -> float:
    return float(sgmcmc.diagnostics.squared_kernel_stein_discrepancy(x, gradients))


@pytest.mark.thorough
def test_scores_are_the_same_in_all_units() -> None:
    states = [draws(0.5), draws(), draws(2.0)]
    expected = scores(states)
    np.testing.assert_allclose(scores(states, np.array([1e-3, 7.0])), expected, rtol=1e-6)
    assert np.argmin(expected) == 1


def test_the_narrowest_direction_does_not_decide_alone() -> None:
    """An offset in a narrow direction is better than states that have not spread in a wide one.

    The two directions are mixed, so that deviations alone do not tell them apart.
    """
    turn = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2)
    off, stuck = (draws() + [0, 0.5] * DEVIATIONS) @ turn.T, draws([0.1, 1.0]) @ turn.T
    precision = turn @ np.diag(DEVIATIONS**-2) @ turn.T
    compare = SteinComparison(gaussian(precision), 1, True, 1.0, False)
    right = draws() @ turn.T
    found = compare([tf.constant(x) for x in (right, off, stuck)], SEEDS)
    assert found[1] < 0.1 * found[2]

    def as_they_are(x: np.ndarray) -> float:
        x = x.reshape(-1, 2)
        return squared_discrepancy(x, -x @ precision)

    assert as_they_are(off) > 10 * abs(as_they_are(stuck))


def test_chains_that_overshoot_do_not_win() -> None:
    """Their U-statistic is far below zero, and good chains have one near zero."""
    turns = np.power(-2.0, np.arange(60))[:, np.newaxis, np.newaxis] * np.ones([60, 1, 2])
    x = turns.reshape(-1, 2)
    assert squared_discrepancy(x, -x) < -1e6
    one_chain = dict(num_results=60, num_chains=1)
    found = scores([draws(**one_chain), draws(2.0, **one_chain), turns * DEVIATIONS])
    assert np.argmin(found) == 0 and np.argmax(found) == 2


@pytest.mark.thorough
def test_a_chain_that_was_thrown_far_away_does_not_win() -> None:
    """With bounded gradients its discrepancy is near zero, because its states are far apart.

    The log posterior is -sqrt(1 + x^2), with deviations of about 1.5. A chain thrown out by 10^5
    wanders there in steps of 10^4.
    """
    target = sgmcmc.FullDataLogProb(lambda x: -tf.reduce_sum(tf.sqrt(1.0 + x**2), axis=-1))
    steps = np.random.default_rng(1).standard_normal([200, 3, 2])
    good, stuck, thrown = 1.5 * steps, 1e-3 * steps + 2.0, 1e5 + 1e4 * np.cumsum(steps, axis=0)
    thrown *= np.random.default_rng(2).choice([-1.0, 1.0], [200, 3, 2])

    def discrepancy(x: np.ndarray) -> float:
        x = x.reshape(-1, 2) / 1.5
        return abs(squared_discrepancy(x, -1.5 * 1.5 * x / np.sqrt(1.0 + (1.5 * x) ** 2)))

    assert discrepancy(thrown) < 0.1 * discrepancy(good)  # so it would win by its discrepancy
    found = SteinComparison(target, 1, True, 1.0, False)(
        [tf.constant(x) for x in (thrown, stuck, good, thrown)], SEEDS
    )
    assert np.isinf(found[[0, 3]]).all() and found[2] < found[1] < np.inf


def test_minibatch_noise_alone_throws_nobody() -> None:
    """Log posteriors estimated from 2 of 10^4 examples differ by 10^4 at the same state."""
    x = np.random.default_rng(0).normal(0.0, 3.0, size=10_000).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda t: -0.5 * t**2, lambda t, batch: -0.5 * (batch - t[..., tf.newaxis]) ** 2, x, 2
    )
    z = np.random.default_rng(0).standard_normal([50, 4]).astype(np.float32)
    compare = SteinComparison(target, 1, False, 1.0, False)
    assert compare.estimates(tf.constant(0.01 * z), SEEDS[0])[0].std() > 1e4
    states = [tf.constant(0.01 * z), tf.constant(0.02 * z), tf.constant(1e3 + z)]
    assert np.isfinite(compare(states, SEEDS)).tolist() == [True, True, False]


def test_states_that_are_not_finite_have_an_infinite_score() -> None:
    broken = draws()
    broken[3, 1, 0] = np.nan
    found = scores([draws(), broken])
    assert np.isfinite(found[0]) and np.isinf(found[1])
    assert np.isinf(scores([broken, broken])).all()


@pytest.mark.thorough
@pytest.mark.parametrize("jit_compile", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_each_state_has_a_minibatch_of_its_own(jit_compile: bool) -> None:
    """This holds even if the target's chains share minibatches and the states are equal."""
    model = GaussianMean(num_examples=12)
    target = model.target(2, shared_batch=True)
    size = len(model.mean)
    states = tf.broadcast_to(tf.constant(model.mean, tf.float32), [8, 5, size])
    compare = SteinComparison(target, 1, False, 1.0, jit_compile)
    found = compare.estimates(states, SEEDS[0])[1]
    assert found.shape == (40, size)
    # About 30 of 40 draws of 66 pairs differ. If chains shared minibatches, at most 8 would.
    assert len(np.unique(found[:, 0].round(3))) > 20
    np.testing.assert_array_equal(found, compare.estimates(states, SEEDS[0])[1])
    exact = SteinComparison(target, 1, True, 1.0, jit_compile).estimates(states, SEEDS[0])[1]
    np.testing.assert_allclose(exact, 0 * exact, atol=1e-2)


def test_few_states_give_no_correlation() -> None:
    x = draws().reshape(-1, 2)[:19]
    deviations, correlation = spread([x])
    np.testing.assert_allclose(deviations, x.std(axis=0))
    assert correlation is None


def test_chains_that_do_not_move_stay_as_they_are() -> None:
    deviations, _ = spread([np.full([100, 2], 3.0)])
    np.testing.assert_array_equal(deviations, 1.0)
