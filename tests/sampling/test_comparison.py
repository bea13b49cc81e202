"""Scores of `tune`: the same in all coordinates, with a minibatch for each state."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tfp_sgmcmc.sampling.comparison import Comparison, whitening

SEEDS = [tf.constant([0, i]) for i in range(4)]
DEVIATIONS = np.array([1.0, 0.01])  # of the posterior
UNMIXED = np.eye(2)


def draws(scale: Any = 1.0, num_results: int = 200, num_chains: int = 3) -> np.ndarray:
    z = np.random.default_rng(0).standard_normal([num_results, num_chains, 2])
    return z * DEVIATIONS * scale


def gaussian(precision: np.ndarray) -> sgmcmc.FullDataLogProb:
    return sgmcmc.FullDataLogProb(
        lambda x: -0.5 * tf.reduce_sum(x * tf.linalg.matvec(tf.constant(precision), x), axis=-1)
    )


def scores(states: list[np.ndarray], mix: np.ndarray = UNMIXED) -> np.ndarray:
    """Of states theta in coordinates `mix theta`."""
    inverse = np.linalg.inv(mix)
    target = gaussian(inverse.T @ np.diag(DEVIATIONS**-2) @ inverse)
    mixed = [tf.constant(x @ mix.T) for x in states]
    return Comparison(target, 1, True, 1.0, False)(mixed, SEEDS)


def test_scores_are_the_same_in_all_coordinates() -> None:
    states = [draws(0.5), draws(), draws(2.0)]
    expected = scores(states)
    for mix in (np.diag([1e-3, 7.0]), np.array([[1.0, 2.0], [-3.0, 0.5]])):
        np.testing.assert_allclose(scores(states, mix), expected, rtol=1e-6, atol=1e-9)
    assert np.argmin(expected) == 1


def test_the_narrowest_direction_does_not_decide_alone() -> None:
    """Too wide by a tenth where the posterior is narrow is better than not spread elsewhere."""
    wide, stuck = draws([1.0, 1.1]), draws([0.1, 1.0])
    found = scores([wide, stuck])
    assert found[0] < 0.1 * found[1]

    def as_they_are(x: np.ndarray) -> float:
        x = x.reshape(-1, 2)
        return float(sgmcmc.squared_kernel_stein_discrepancy(x, -x / DEVIATIONS**2))

    assert as_they_are(wide) > as_they_are(stuck)  # what the scores would be without whitening


def test_states_that_are_not_finite_have_an_infinite_score() -> None:
    broken = draws()
    broken[3, 1, 0] = np.nan
    found = scores([draws(), broken])
    assert np.isfinite(found[0]) and np.isinf(found[1])
    assert np.isinf(scores([broken, broken])).all()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_each_state_has_a_minibatch_of_its_own(jit_compile: bool) -> None:
    """Also where the target's chains share one, and the states are the same."""
    model = GaussianMean(num_examples=12)
    target = model.target(2, shared_batch=True)
    size = len(model.mean)
    states = tf.tile(tf.constant(model.mean, tf.float32), [8 * 5])
    states = tf.reshape(states, [8, 5, size])
    compare = Comparison(target, 1, False, 1.0, jit_compile)
    found = compare.gradients(states, SEEDS[0])
    assert found.shape == (40, size)
    # Of 40 draws of 66 pairs, about 30 differ; with one for all chains there were 8 at most.
    assert len(np.unique(found[:, 0].round(3))) > 20
    np.testing.assert_array_equal(found, compare.gradients(states, SEEDS[0]))
    exact = Comparison(target, 1, True, 1.0, jit_compile).gradients(states, SEEDS[0])
    np.testing.assert_allclose(exact, 0 * exact, atol=1e-2)


def test_of_few_states_deviations_alone_are_used() -> None:
    x = draws().reshape(-1, 2)[:19]
    forth, back = whitening([x])
    np.testing.assert_allclose(forth, 1 / x.std(axis=0))
    np.testing.assert_allclose(back, x.std(axis=0))


def test_chains_that_do_not_move_stay_as_they_are() -> None:
    for count in (5, 100):
        forth, back = whitening([np.full([count, 2], 3.0)])
        expected = np.ones(2) if count == 5 else np.eye(2)
        np.testing.assert_allclose(forth, expected)
        np.testing.assert_allclose(back, expected)
