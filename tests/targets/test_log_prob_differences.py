"""Differences of log posteriors on one minibatch, and the estimates of their variance."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import PRECISION, PRIOR_PRECISION, GaussianMean
from tests.harness.statistics import Rejected, check_means
from tfp_sgmcmc.targets.anchored import comparable_target, log_prob_differences

MODEL = GaussianMean(num_examples=12)
BATCH = 4
STATES = np.array([[0.3, -0.5, 1.0], [1.2, 0.8, 0.6], [0.9, 1.1, 1.3]])  # R = 3
SEED = tf.constant([5, 6])


def log_likelihoods(states: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Returns `[R, ..., n]` for states `[R, ..., 3]` and examples `[..., n, 3]`."""
    residual = examples - states[..., np.newaxis, :]
    return -0.5 * np.sum(residual * (residual @ PRECISION), axis=-1)


def log_prior(states: np.ndarray) -> np.ndarray:
    return -0.5 * np.sum(states * (states @ PRIOR_PRECISION), axis=-1)


@pytest.mark.parametrize("options", [{}, {"replacement": True}, {"reshuffle": "epoch"}])
@pytest.mark.parametrize("chains", [[], pytest.param([2], marks=pytest.mark.thorough), [2, 3]])
def test_the_formula_with_the_draws_of_the_seed(chains: list[int], options: Any) -> None:
    """All states of a chain see the minibatch that the seed names for it."""
    target = MODEL.target(BATCH, tf.float64, **options)
    states = np.broadcast_to(STATES.reshape(3, *[1] * len(chains), 3), [3, *chains, 3])
    got, variance = log_prob_differences(target, tf.constant(states), SEED)
    indices = target.draw(SEED, tf.range(BATCH), chains).numpy()
    terms = np.diff(log_likelihoods(states, MODEL.data[indices]), axis=0)
    total = MODEL.num_examples
    expected = np.diff(log_prior(states), axis=0) + total / BATCH * terms.sum(axis=-1)
    c = total * (total if options.get("replacement") else total - BATCH) / BATCH
    assert got.shape == variance.shape == [2, *chains]
    np.testing.assert_allclose(got, expected, rtol=1e-10)
    np.testing.assert_allclose(variance, c * terms.var(axis=-1, ddof=1), rtol=1e-10)


@pytest.mark.parametrize("replacement", [False, True])
def test_without_bias_and_with_the_variance_it_says(replacement: bool) -> None:
    """Compares 60,000 chains with the mean and variance, which are known for the finite data.

    Finds errors of 5% of a standard deviation, 10% of the squared errors, and 5% of the variances.
    """
    target = MODEL.target(BATCH, tf.float64, replacement=replacement)
    states = np.broadcast_to(STATES[:, np.newaxis], [3, 60_000, 3])
    got, variance = log_prob_differences(target, tf.constant(states), SEED)
    terms = np.diff(log_likelihoods(STATES, MODEL.data), axis=0)
    exact = np.diff(log_prior(STATES)) + terms.sum(axis=-1)
    total = MODEL.num_examples
    true = terms.var(axis=-1) * total**2 / BATCH
    if not replacement:
        true = true * (total - BATCH) / (total - 1)
    check_means(got.numpy().T, exact, 0.05 * np.sqrt(true), "differences")
    check_means((got.numpy().T - exact) ** 2, true, 0.1 * true, "squared errors")
    check_means(variance.numpy().T, true, 0.05 * true, "variances")
    other = MODEL.target(BATCH, tf.float64, replacement=not replacement)
    with pytest.raises(Rejected):  # the variance of the other way of drawing
        mistaken = variance.numpy().T * other.noise_scale / target.noise_scale
        check_means(mistaken, true, 0.05 * true)


def test_common_minibatches_make_differences_of_near_states_precise() -> None:
    """The variance falls with the squared distance, far below the one with two minibatches."""
    target = MODEL.target(BATCH, tf.float64)
    values = log_likelihoods(STATES, MODEL.data[target.draw(SEED, tf.range(BATCH), []).numpy()])
    separate = 2 * target.noise_scale * values[1].var(ddof=1)
    variances = []
    for distance in (0.01, 0.001):
        near = tf.constant(np.stack([STATES[1], STATES[1] + distance]))
        variances.append(log_prob_differences(target, near, SEED)[1].numpy()[0])
    assert variances[0] < 0.01 * separate
    np.testing.assert_allclose(variances[0] / variances[1], 100, rtol=0.05)


def test_shared_minibatches_and_parts() -> None:
    target = MODEL.target(BATCH, tf.float64, parts=True, shared_batch=True)
    states = tf.constant(np.broadcast_to(STATES[:, np.newaxis], [3, 5, 3]))
    got, variance = log_prob_differences(target, [states[..., :1], states[..., 1:]], SEED)
    plain = MODEL.target(BATCH, tf.float64)
    expected = log_prob_differences(plain, states[:, 0], SEED)
    np.testing.assert_allclose(got, np.tile(expected[0].numpy()[:, np.newaxis], 5), rtol=1e-10)
    np.testing.assert_allclose(variance, np.tile(expected[1].numpy()[:, np.newaxis], 5), rtol=1e-9)


def test_full_data_have_no_variance() -> None:
    whole = MODEL.target(MODEL.num_examples, tf.float64)
    exact = sgmcmc.FullDataLogProb(whole)
    expected = np.diff(whole(tf.constant(STATES)).numpy())
    for target in (whole, exact):
        got, variance = log_prob_differences(target, tf.constant(STATES), SEED)
        np.testing.assert_allclose(got, expected, rtol=1e-10)
        np.testing.assert_array_equal(variance, np.zeros(2))


def test_bijectors_count_with_their_jacobian() -> None:
    target = sgmcmc.MinibatchLogProb(
        lambda scale: -scale,
        lambda scale, batch: -batch / scale[..., tf.newaxis] - tf.math.log(scale)[..., tf.newaxis],
        data := np.array([0.5, 1.5, 2.5, 4.0]),
        batch_size=4,
        bijector=tfp.bijectors.Exp(),
    )
    states = np.array([0.1, 0.4])
    got, _ = log_prob_differences(target, tf.constant(states), SEED)
    scale = np.exp(states)
    log_prob = -scale + states - data.sum() / scale - 4 * states
    np.testing.assert_allclose(got, np.diff(log_prob))


def test_targets_that_can_be_compared() -> None:
    target = MODEL.target(BATCH)
    exact = sgmcmc.FullDataLogProb(target)
    assert comparable_target(target) is target
    assert comparable_target(sgmcmc.GrowingBatch(target)) is target
    assert comparable_target(exact) is exact
    with pytest.raises(ValueError, match="batch_size must be at least 2, .* Received: 1"):
        comparable_target(MODEL.target(1))

    class Strange(sgmcmc.FullDataLogProb):
        noise_scale = None

    with pytest.raises(ValueError, match="The target must be a MinibatchLogProb, .* a Strange"):
        comparable_target(Strange(target))
