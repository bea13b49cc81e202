"""Hessians from one product a row, against closed forms and against products with every axis."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.targets.logistic_regression import log_likelihood as logistic
from tests.targets.logistic_regression import log_prior
from tfp_sgmcmc.targets.laplace import quadratic
from tfp_sgmcmc.targets.laplace.quadratic import agrees, rank_one_hessian

tfd = tfp.distributions
N, D = 203, 5
RNG = np.random.default_rng(0)
X = RNG.standard_normal([N, D]) * [1, 1e-3, 1e3, 1, 1] + [0, 0, 0, 2, 0]
Y = RNG.integers(2, size=N).astype(np.float64)
THETA = RNG.standard_normal(D) / X.std(axis=0)


def normal(theta: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """The last entry is a log scale, so each row has a Hessian of rank two."""
    x, y = batch["x"], batch["y"]
    z = tf.linalg.matvec(x[..., :-1], theta[..., :-1])
    log_scale = theta[..., -1, tf.newaxis]
    return -log_scale - 0.5 * ((y - z) * tf.exp(-log_scale)) ** 2


def target(log_likelihood) -> sgmcmc.MinibatchLogProb:
    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, {"x": X, "y": Y}, 10, dtype="float64")


@pytest.mark.parametrize("chunk", [2**22, pytest.param(50 * D, marks=pytest.mark.thorough)])
def test_gradient_and_hessian_are_exact(monkeypatch, chunk) -> None:
    monkeypatch.setattr("tfp_sgmcmc.targets.laplace.quadratic._CHUNK", chunk)
    like = tf.zeros([D], tf.float64)
    gradient, hessian = rank_one_hessian(target(logistic), like)(THETA)
    p = 1 / (1 + np.exp(-X @ THETA))
    np.testing.assert_allclose(gradient, X.T @ (Y - p), rtol=1e-9)
    expected = -(X.T * (p * (1 - p))) @ X
    np.testing.assert_allclose(hessian, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).min())
    assert agrees(hessian, lambda v: v @ expected)


@pytest.mark.parametrize(("log_likelihood", "is_kept"), [(logistic, True), (normal, False)])
def test_matrices_are_those_of_products(monkeypatch, log_likelihood, is_kept) -> None:
    """A likelihood without one predictor is found out, and its Hessian is right all the same."""
    like = tf.zeros([D], tf.float64)
    theta = THETA * [1, 1, 1, 1, 0.1]
    expected = quadratic.HessianFunction(target(log_likelihood), like).matrices(theta)
    monkeypatch.setattr(quadratic, "LEAST_WORK", 0)
    found = quadratic.HessianFunction(target(log_likelihood), like)
    for a, b in zip(found.matrices(theta), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * np.abs(b).max())
    assert found._has_predictor == is_kept


def test_steps_to_a_mode_are_checked_at_the_first_and_what_they_led_to_again(monkeypatch) -> None:
    """Where the first entry is positive, this likelihood has a Hessian of rank two a row."""

    def changing(theta: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        is_far = theta[..., 0, tf.newaxis] > 0
        return tf.where(is_far, normal(theta, batch), logistic(theta, batch))

    like, (near, far) = tf.zeros([D], tf.float64), (THETA * [s, 1, 1, 1, 0.1] for s in (-1, 1))
    if THETA[0] < 0:
        near, far = far, near
    expected = quadratic.HessianFunction(target(changing), like).matrices(far)
    monkeypatch.setattr(quadratic, "LEAST_WORK", 0)
    checks, check = [], quadratic.agrees
    monkeypatch.setattr(quadratic, "agrees", lambda *args: checks.append(1) or check(*args))
    found = quadratic.HessianFunction(target(changing), like)
    found.matrices(near, is_step=True)
    wrong = found.matrices(far, is_step=True)
    assert len(checks) == 1
    assert not np.allclose(wrong.likelihood, expected.likelihood, rtol=1e-2)
    for a, b in zip(found.matrices(far), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * np.abs(b).max())
    assert len(checks) == 2


def test_one_wrong_entry_is_found() -> None:
    """It is of a parameter that few rows tell of, in its own units."""
    exact = -np.diag([1e6, 1e6, 1e-6])
    wrong = exact.copy()
    wrong[2, 2] *= 1.02
    assert agrees(exact, lambda v: v @ exact)
    assert not agrees(wrong, lambda v: v @ exact)
    assert not agrees(exact * np.nan, lambda v: v @ exact)


@pytest.mark.thorough
def test_parts_of_a_state(monkeypatch) -> None:
    monkeypatch.setattr(quadratic, "LEAST_WORK", 0)

    def linear(a: tf.Tensor, b: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return logistic(tf.concat([a, b[..., tf.newaxis]], axis=-1), batch)

    problem = sgmcmc.MinibatchLogProb(
        lambda a, b: log_prior(a) - 0.5 * b**2,
        linear,
        {"x": X, "y": Y},
        10,
        dtype="float64",
    )
    like = {"a": tf.zeros([D - 1], tf.float64), "b": tf.zeros([], tf.float64)}
    found = quadratic.HessianFunction(problem, like)
    expected = quadratic.HessianFunction(target(logistic), tf.zeros([D], tf.float64))
    for a, b in zip(found.matrices(THETA), expected.matrices(THETA), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * np.abs(b).max())
    assert found._has_predictor and expected._has_predictor


GAP = 3e-4


@pytest.mark.parametrize("linear", [True, False])
def test_nearly_collinear_columns_are_resolved_in_single_precision(linear: bool) -> None:
    """Two columns differ by 3e-4 of their deviation.

    The least eigenvalue of the scaled precision is 4.9e-8, less than the rounding of a number, and
    products with unit vectors give 9.5e-8. Those with the flat direction have no such rounding.
    """
    rng = np.random.default_rng(1)
    first = rng.normal(size=1000)
    x = np.stack([np.ones(1000), first, first + GAP * rng.normal(size=1000)], -1)
    x, y = x.astype(np.float32), rng.normal(size=1000).astype(np.float32)
    likelihood: Any = sgmcmc.LinearModel(lambda eta, y: tfd.Normal(eta, 1.0).log_prob(y))
    if not linear:
        likelihood = lambda w, b: tfd.Normal(tf.linalg.matvec(b[0], w), 1.0).log_prob(b[1])  # noqa: E731
    flat = sgmcmc.MinibatchLogProb(
        lambda w: tf.reduce_sum(-0.5e-6 * w**2, -1), likelihood, (x, y), 10
    )
    double = x.astype(np.float64)
    precision = double.T @ double + 1e-6 * np.eye(3)
    mode = np.linalg.solve(precision, double.T @ y)
    found = quadratic.hessian_products(flat, tf.zeros([3])).matrices(mode)
    factor = np.linalg.cholesky(np.linalg.inv(precision))
    assert found.is_resolved
    np.testing.assert_allclose(-factor.T @ found.posterior @ factor, np.eye(3), atol=2e-3)
    whitened, bijector = sgmcmc.whiten(flat, tf.constant(mode, tf.float32))
    matrix = (bijector.forward(tf.eye(3)) - bijector.forward(tf.zeros([3]))).numpy().T
    np.testing.assert_allclose(matrix.T @ precision @ matrix, np.eye(3), atol=5e-3)
    curvature = whitened.curvature.likelihood.numpy()
    expected = matrix.T @ double.T @ double @ matrix
    np.testing.assert_allclose(-curvature, expected, atol=5e-3)


def test_a_direction_without_curvature_is_not_resolved() -> None:
    """The second column is twice the first one, and the prior is flat."""
    x = np.repeat(np.random.default_rng(1).normal(size=[1000, 1]), 2, axis=1) * [1, 2]
    flat = sgmcmc.MinibatchLogProb(
        lambda w: tf.zeros(w.shape[:-1]),
        sgmcmc.LinearModel(lambda eta, y: tfd.Normal(eta, 1.0).log_prob(y)),
        (x.astype(np.float32), np.ones(1000, np.float32)),
        10,
    )
    assert not quadratic.hessian_products(flat, tf.zeros([2])).matrices(np.zeros(2)).is_resolved
