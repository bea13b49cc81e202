"""Hessians from one product a row, against closed forms and against products with every axis."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.targets.logistic_regression import log_likelihood as logistic
from tests.targets.logistic_regression import log_prior
from tfp_sgmcmc.targets.laplace import quadratic
from tfp_sgmcmc.targets.laplace.quadratic import agrees, rank_one_hessian

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
