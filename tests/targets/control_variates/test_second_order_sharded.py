"""Control variates of second order on shards: exact moments over all draws, and the exact law."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.every_minibatch import check_moments, flat
from tests.targets.logistic_regression import (
    CENTER,
    THETA,
    X,
    Y,
    at,
    log_likelihood,
    log_prior,
    probabilities_that_lower_the_variance,
)
from tests.targets.shards import in_shards
from tests.targets.test_sharded import give_every_minibatch
from tfp_sgmcmc.random import AliasTable
from tfp_sgmcmc.targets.stratified import StratifiedLogProb

FAR = CENTER + [2.0, -1.5]  # there w < 1


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def regression(
    sizes: tuple[int, ...], batch_size: int, is_linear: bool = False, **options: Any
) -> sgmcmc.ShardedLogProb:
    load_shard, likelihood = in_shards(sizes, X, Y), log_likelihood
    if is_linear:
        load_shard = lambda s: tuple(in_shards(sizes, X, Y)(s).values())  # noqa: E731
        likelihood = sgmcmc.LinearModel(lambda eta, y: y * eta - tf.math.softplus(eta))
    return sgmcmc.ShardedLogProb(
        log_prior, likelihood, load_shard, len(sizes), sum(sizes), batch_size, **options
    )


def remainders(sizes: tuple[int, ...], theta: np.ndarray) -> list[np.ndarray]:
    """Returns each shard's remainders, by the equations of `ControlVariate`."""
    x, y = X[: sum(sizes)], Y[: sum(sizes)]

    def scores(at: np.ndarray) -> np.ndarray:
        return (y - 1 / (1 + np.exp(-x @ at)))[:, np.newaxis] * x

    p, d = 1 / (1 + np.exp(-x @ CENTER)), theta - CENTER
    hessian = np.eye(2) + (p * (1 - p) * x.T) @ x
    w = min(1.0, 1.5 * 2 / (d @ hessian @ d))
    bends = -(p * (1 - p) * (x @ d))[:, np.newaxis] * x
    found = scores(theta) - scores(CENTER) - w * bends
    return np.split(found, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize(
    "theta", [pytest.param(THETA, marks=pytest.mark.thorough), FAR], ids=["near", "far"]
)
@pytest.mark.parametrize(
    ("sizes", "batch_size", "options"),
    [
        ((2, 3), 4, {}),
        slow((3, 4), 4, dict(replacement=True)),
        slow((4, 4), 8, dict(num_groups=4)),
        slow((3, 4), 4, dict(is_linear=True)),
    ],
    ids=["without replacement", "with", "groups", "LinearModel"],
)
def test_moments_over_all_minibatches(
    theta: np.ndarray,
    sizes: tuple[int, ...],
    batch_size: int,
    options: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean is the gradient. The covariance is c E[V hat], as for a stratified sum."""
    base = regression(sizes, batch_size, **options)
    target = sgmcmc.ControlVariate(base, CENTER, order=2)
    count = give_every_minibatch(monkeypatch, base, sizes)
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(theta))
    estimate = target.estimate(at(theta, count), [0, 0])
    covariance = check_moments(estimate, value, gradient)
    m, expected = batch_size // len(sizes), np.zeros([2, 2])
    for own in remainders(sizes, theta):
        size, ddof = len(own), 0 if base.replacement else 1
        expected += size * (size - m * ddof) / m * np.cov(own, rowvar=False, ddof=ddof)
    np.testing.assert_allclose(covariance, expected, rtol=1e-8, atol=1e-12)
    quick = target.estimate(at(theta, count), [0, 0], with_scores=False)
    np.testing.assert_allclose(quick.gradient, estimate.gradient, rtol=1e-9)
    np.testing.assert_allclose(quick.log_prob, estimate.log_prob, rtol=1e-9)
    # Control: rows that do not count for their shard's size.
    if len(set(sizes)) > 1:
        monkeypatch.setattr(StratifiedLogProb, "weighted", lambda _, values: values)
        with pytest.raises(AssertionError):
            check_moments(target.estimate(at(theta, count), [0, 0]), value, gradient)


@pytest.mark.parametrize(
    "theta", [pytest.param(THETA, marks=pytest.mark.thorough), FAR], ids=["near", "far"]
)
@pytest.mark.parametrize(
    ("sizes", "batch_size", "options"),
    [
        slow((2, 2), 4, {}),
        ((3, 4), 4, {}),
        slow((2, 6), 8, dict(num_groups=4, replacement=True)),
        slow((3, 4), 4, dict(is_linear=True)),
    ],
    ids=["equal shards", "unequal shards", "groups", "LinearModel"],
)
def test_moments_with_unequal_probabilities(
    theta: np.ndarray,
    sizes: tuple[int, ...],
    batch_size: int,
    options: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All ordered draws of each shard, each with its probability: the mean is the gradient."""
    base = regression(sizes, batch_size, **options)
    given = np.array([0.5, 1.0, 2.0, 4.0, 3.0, 0.7, 1.3, 2.5])[: sum(sizes)]
    target = sgmcmc.ControlVariate(base, CENTER, order=2, importance=given)
    within = [x / x.sum() for x in np.split(given, np.cumsum(sizes)[:-1])]
    q = target.second_order.probabilities
    np.testing.assert_allclose(q, np.concatenate(within) / len(sizes), rtol=1e-6)
    rs = [x * len(sizes) for x in np.split(q, np.cumsum(sizes)[:-1])]  # rounded as the tables are

    m = batch_size // len(sizes)
    each = [list(itertools.product(range(n), repeat=m)) for n in sizes]
    every = [np.array(x) for x in zip(*itertools.product(*each), strict=True)]  # of each shard
    chance = np.prod([r[x].prod(axis=1) for r, x in zip(rs, every, strict=True)], axis=0)
    np.testing.assert_allclose(chance.sum(), 1)
    coming = itertools.cycle(every)
    monkeypatch.setattr(AliasTable, "draw", lambda *_: tf.constant(next(coming), tf.int32))

    value, gradient = tfp.math.value_and_gradient(target, tf.constant(theta))
    estimate = target.estimate(at(theta, len(chance)), [0, 0])
    np.testing.assert_allclose(chance @ estimate.gradient.numpy(), gradient, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(chance @ estimate.log_prob.numpy(), value, rtol=1e-9)
    g, s = (estimate.gradient - gradient).numpy(), flat(estimate.scores, 2)
    centred = s - s.mean(axis=1, keepdims=True)
    v = np.einsum("k,kia,kib->ab", chance, centred, centred) / (s.shape[1] - 1)
    covariance = np.einsum("k,ka,kb->ab", chance, g, g)
    np.testing.assert_allclose(covariance, estimate.noise_scale * v, rtol=1e-8, atol=1e-12)
    expected = np.zeros([2, 2])
    for own, r in zip(remainders(sizes, theta), rs, strict=True):
        total = own.sum(axis=0)
        expected += ((own.T / r) @ own - np.outer(total, total)) / m
    np.testing.assert_allclose(covariance, expected, rtol=1e-8, atol=1e-12)
    quick = target.estimate(at(theta, len(chance)), [0, 0], with_scores=False)
    np.testing.assert_allclose(quick.gradient, estimate.gradient, rtol=1e-9)
    # Control: equal chances have another mean.
    assert np.abs(np.mean(estimate.gradient, axis=0) - gradient).max() > 1e-3


@pytest.mark.slow
def test_pilot_draws_examples_with_large_remainders_of_each_shard() -> None:
    """Pilot probabilities lower the variance; each shard's sum to 1/S, and its order is kept."""
    scales = np.repeat([0.2, 5.0, 0.2, 5.0], [90, 10, 95, 5])[:, None]
    x = scales * np.random.default_rng(1).standard_normal([200, 2])
    y, sizes = np.arange(200) % 2.0, (100, 100)
    base = sgmcmc.ShardedLogProb(
        log_prior, log_likelihood, in_shards(sizes, x, y), 2, 200, 20, replacement=True
    )
    q = probabilities_that_lower_the_variance(base)
    np.testing.assert_allclose([q[:100].sum(), q[100:].sum()], 0.5)
    assert q[90:100].mean() > 10 * q[:90].mean() and q[195:].mean() > 10 * q[100:195].mean()


def test_another_batch_size_keeps_expansion_and_probabilities() -> None:
    target = sgmcmc.ControlVariate(regression((3, 5), 2), CENTER, order=2, importance=np.ones(8))
    larger = target.with_batch_size(6)
    assert (target.noise_scale, larger.noise_scale) == (64 / 2, 64 / 6)
    estimate = larger.estimate(tf.constant(THETA), tf.constant([0, 1]))
    assert estimate.scores.shape == (6, 2) and estimate.noise_scale == 64 / 6
    without = sgmcmc.ControlVariate(regression((3, 5), 2), CENTER, order=2).with_batch_size(6)
    assert without.noise_scale == 8 * 2 / 6
