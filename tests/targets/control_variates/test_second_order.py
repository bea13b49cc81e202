"""Control variates of second order: exact moments over all draws, exact cases, and bad input."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.every_minibatch import check_moments, flat, give_every_minibatch
from tests.targets.logistic_regression import (
    CENTER,
    THETA,
    X,
    Y,
    at,
    log_likelihood,
    log_prior,
    probabilities_that_lower_the_variance,
    regression,
)
from tfp_sgmcmc.random import AliasTable

FAR = CENTER + [2.0, -1.5]  # there w < 1
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("theta", "num_examples", "batch_size", "options"),
    [
        pytest.param(
            theta,
            *sizes,
            options,
            marks=[] if theta is FAR and sizes == (6, 2) else [pytest.mark.thorough],
            id=f"{name}-{'far' if theta is FAR else 'near'}",
        )
        for theta in (THETA, FAR)
        for name, sizes, options in (
            ("without replacement", (6, 2), dict(replacement=False)),
            ("with", (5, 3), dict(replacement=True)),
            ("groups", (5, 4), dict(replacement=False, num_groups=2)),
        )
    ],
)
def test_moments_over_all_minibatches(
    theta: Any, num_examples: int, batch_size: int, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean is the full gradient and the covariance is c E[V hat], up to rounding."""
    base = regression(batch_size, num_examples, **options)
    target = sgmcmc.ControlVariate(base, CENTER, order=2)
    count = give_every_minibatch(monkeypatch, base)
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(theta))
    estimate = target.estimate(at(theta, count), [0, 0])
    covariance = check_moments(estimate, value, gradient)
    quick = target.estimate(at(theta, count), [0, 0], with_scores=False)
    np.testing.assert_allclose(quick.gradient, estimate.gradient, rtol=1e-9)
    np.testing.assert_allclose(quick.log_prob, estimate.log_prob, rtol=1e-9)
    if theta is THETA:
        first = sgmcmc.ControlVariate(base, CENTER).estimate(at(theta, count), [0, 0])
        assert np.trace(covariance) < 0.3 * np.trace(np.cov(flat(first.gradient, 1).T, ddof=0))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "center",
    [[0.0, 0.0], pytest.param([0.3, -0.2], marks=pytest.mark.slow)],
    ids=["at zero", "elsewhere"],
)
def test_moments_in_whitened_coordinates(center: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hessians that `whiten` keeps are valid at z = 0 only."""
    base, _ = sgmcmc.whiten(regression(2, 6), CENTER)
    target = sgmcmc.ControlVariate(base, tf.constant(center, tf.float64), order=2)
    count = give_every_minibatch(monkeypatch, base)
    for z in ([0.4, 0.1], [3.0, -2.0]):
        value, gradient = tfp.math.value_and_gradient(target, tf.constant(z, tf.float64))
        check_moments(target.estimate(at(np.array(z), count), [0, 0]), value, gradient)


@pytest.mark.parametrize(
    "theta", [pytest.param(THETA, marks=pytest.mark.thorough), FAR], ids=["near", "far"]
)
def test_moments_with_unequal_probabilities(theta: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 4^3 ordered draws, each with its probability: the mean is exactly the gradient."""
    base = regression(3, 4)
    target = sgmcmc.ControlVariate(base, CENTER, order=2, importance=[0.5, 1.0, 2.0, 4.0])
    q = target.second_order.probabilities
    np.testing.assert_allclose(q, np.array([0.5, 1, 2, 4]) / 7.5, rtol=1e-6)
    draws = np.array(list(itertools.product(range(4), repeat=3)))
    chance = q[draws].prod(axis=1)
    monkeypatch.setattr(AliasTable, "draw", lambda *_: tf.constant(draws, tf.int32))
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(theta))
    estimate = target.estimate(at(theta, len(draws)), [0, 0])
    np.testing.assert_allclose(chance @ estimate.gradient.numpy(), gradient, rtol=1e-10)
    np.testing.assert_allclose(chance @ estimate.log_prob.numpy(), value, rtol=1e-10)
    g, s = (estimate.gradient - gradient).numpy(), estimate.scores.numpy()
    centred = s - s.mean(axis=1, keepdims=True)
    within = np.einsum("k,kia,kib->ab", chance, centred, centred) / 2
    covariance = np.einsum("k,ka,kb->ab", chance, g, g)
    np.testing.assert_allclose(covariance, estimate.noise_scale * within, rtol=1e-9)
    # The control: the same draws with equal chances do not have this mean.
    assert np.abs(np.mean(estimate.gradient, axis=0) - gradient).max() > 1e-3


@pytest.mark.thorough
def test_linear_regression_has_no_noise() -> None:
    """Its log likelihood is quadratic, so every minibatch gives the exact gradient."""
    data = {"x": X, "y": X @ [1.0, -2.0] + 0.3 * Y}

    def log_likelihood(theta: Any, batch: Any) -> Any:
        return -0.5 * (batch["y"] - tf.linalg.matvec(batch["x"], theta)) ** 2 / 0.04

    base = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, 2)
    for importance in (None, np.arange(1.0, 31)):
        with pytest.warns(UserWarning, match="must be near a mode.*35.9 standard deviations"):
            target = sgmcmc.ControlVariate(base, CENTER, order=2, importance=importance)
        near = CENTER + [0.01, -0.02]  # w = 1
        value, gradient = tfp.math.value_and_gradient(target, tf.constant(near))
        estimates = tf.function(target.estimate, autograph=False)
        for seed in range(5):
            estimate = estimates(tf.constant(near), tf.constant([0, seed]))
            np.testing.assert_allclose(estimate.gradient, gradient, rtol=1e-8)
            np.testing.assert_allclose(estimate.log_prob, value, rtol=1e-10)
    first = sgmcmc.ControlVariate(base, CENTER)
    assert np.abs(first.estimate(tf.constant(near), [0, 0]).gradient - gradient).max() > 0.1


@pytest.mark.thorough
def test_pilot_draws_examples_with_large_remainders() -> None:
    """Pilot probabilities have less variance than uniform draws and than their inverse."""
    generator = np.random.default_rng(1)
    scales = np.repeat([0.2, 5.0], [190, 10])[:, None]
    data = {"x": scales * generator.standard_normal([200, 2]), "y": np.arange(200) % 2.0}

    base = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, 20, replacement=True)
    q = probabilities_that_lower_the_variance(base)
    assert q[190:].mean() > 10 * q[:190].mean()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The scores of single examples are computed one after another")
def test_scores_in_float32_without_xla() -> None:
    """For several chains oneDNN cannot vectorize them, so that a loop computes them."""
    rows = {"x": X.astype(np.float32), "y": Y.astype(np.float32)}
    single = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, rows, 6)
    center = tf.constant(CENTER, tf.float32)
    target = sgmcmc.ControlVariate(single, center, order=2)
    state = center + tf.constant(RNG.normal(size=[3, 2]), tf.float32)

    def scores(state: Any) -> Any:
        return target.estimate(state, tf.constant([1, 2]), with_scores=True).scores

    here, compiled = (
        tf.function(scores, jit_compile=jit, autograph=False)(state) for jit in (False, True)
    )
    np.testing.assert_allclose(here, compiled, rtol=1e-4, atol=1e-5)
    assert here.shape == [3, 6, 2] and np.std(here) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [list, dict])
def test_parts_bijectors_chains_and_xla(kind: type) -> None:
    """A location [2] and a positive scale, 3 chains: XLA and eager agree with the equation."""
    tfb, tfd = tfp.bijectors, tfp.distributions

    def pack(loc: Any, scale: Any) -> Any:
        return {"loc": loc, "scale": scale} if kind is dict else [loc, scale]

    base = sgmcmc.MinibatchLogProb(
        lambda loc, scale: log_prior(loc) - scale,
        lambda loc, scale, batch: tf.reduce_sum(
            tfd.Normal(loc[..., None, :], scale[..., None, None]).log_prob(batch), axis=-1
        ),
        X,
        30,
        bijector=pack(None, tfb.Exp()),
    )
    center, _ = sgmcmc.find_center(base, pack(tf.zeros([2], tf.float64), tf.zeros([], tf.float64)))
    target = sgmcmc.ControlVariate(base, center, order=2, importance="pilot")
    state = tf.nest.map_structure(lambda c: c + 0.1 * tf.ones([3, *c.shape], c.dtype), center)
    value, gradient, _ = sgmcmc.targets.base.value_and_gradient(
        lambda s: sgmcmc.targets.base.call_with_state(base, s), state
    )
    eager = target.estimate(state, tf.constant([1, 2]))
    compiled = tf.function(
        lambda s: target.estimate(s, tf.constant([1, 2]))[:3], jit_compile=True, autograph=False
    )
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8), eager[:3], compiled(state)
    )
    error = flat(eager.gradient, 1) - flat(gradient, 1)
    noise = np.sqrt(eager.noise_scale * flat(eager.scores, 2).var(axis=1, ddof=1))
    assert (np.abs(error) < 6 * noise + 1e-9).all()
    # Drawing every example once leaves no noise: the remainders must add up.
    full = sgmcmc.ControlVariate(base, center, order=2).estimate(state, tf.constant([1, 2]))
    np.testing.assert_allclose(flat(full.gradient, 1), flat(gradient, 1), rtol=1e-9)
    np.testing.assert_allclose(full.log_prob, value, rtol=1e-10)


def absolute(theta: Any, batch: Any) -> Any:
    return -tf.abs(tf.linalg.matvec(batch["x"], theta) - batch["y"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dict(order=3), "order must be in 1 .. 2. Received: 3"),
        (lambda: dict(importance="pilot"), "importance must be None with order=1"),
        (lambda: dict(order=2, importance="norm"), "importance must be None, 'pilot' or 30"),
        pytest.param(
            lambda: dict(order=2, importance=[1.0, 2.0]),
            "30 positive finite numbers.*shape",
            marks=pytest.mark.thorough,
        ),
        (lambda: dict(order=2, importance=np.zeros(30)), "30 positive finite numbers.*0"),
        pytest.param(
            lambda: dict(order=2, importance=np.full(30, np.nan)),
            "positive finite numbers.*nan",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sgmcmc.ControlVariate(regression(), CENTER, **make())


def test_a_center_without_curvature_is_refused() -> None:
    data = {"x": X, "y": Y}
    kinked = sgmcmc.MinibatchLogProb(log_prior, absolute, data, 3)
    with pytest.raises(ValueError, match="log_likelihood_fn must have second derivatives"):
        sgmcmc.ControlVariate(kinked, CENTER, order=2)
    saddle = sgmcmc.MinibatchLogProb(
        lambda t: 0.5 * t[..., 0] ** 2 - t[..., 1] ** 2,
        lambda t, batch: 1e-3 * tf.sin(tf.linalg.matvec(batch["x"], t)),
        data,
        3,
    )
    with pytest.raises(ValueError, match="negative definite.*Received: an eigenvalue of"):
        sgmcmc.ControlVariate(saddle, CENTER, order=2)
    with pytest.raises(ValueError, match="score_fn"):
        from tests.targets.logistic_regression import score

        sgmcmc.ControlVariate(regression(score_fn=score), CENTER, order=2)
    wide = sgmcmc.MinibatchLogProb(
        lambda t: -tf.reduce_sum(t**2, -1), lambda t, b: -(t[..., :1] ** 2) * b, np.ones(4), 2
    )
    with pytest.raises(ValueError, match="hessian must be 'auto'.*'full' for D = 5000"):
        sgmcmc.ControlVariate(wide, np.zeros(5000), order=2, hessian="full")
    with pytest.raises(ValueError, match="Received: 'diag'"):
        sgmcmc.ControlVariate(wide, np.zeros(5000), order=2, hessian="diag")
    with pytest.raises(ValueError, match="hessian must be 'auto' with order=1. Received: full"):
        sgmcmc.ControlVariate(wide, np.zeros(5000), hessian="full")
