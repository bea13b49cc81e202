"""Centers and models that second-order control variates and whitening refuse, or warn of.

Each is refused in words that say what was expected and received, with control variates of order 1
as the way out, in every form of the curvature.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.targets.logistic_regression import CENTER, X, Y, at, log_prior, regression

DATA = {"x": X, "y": Y}


def model(log_likelihood: Any, prior: Any = log_prior) -> sgmcmc.MinibatchLogProb:
    return sgmcmc.MinibatchLogProb(prior, log_likelihood, DATA, 3)


def linear(theta: Any, batch: Any) -> Any:
    return tf.linalg.matvec(batch["x"], theta)


def check_refused(target: Any, center: Any, form: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sgmcmc.whiten(target, center, form)
    if form != "diag":
        with pytest.raises(ValueError, match=message):
            sgmcmc.ControlVariate(target, center, order=2, hessian=form)
    assert np.isfinite(
        sgmcmc.ControlVariate(target, center).estimate(center, [0, 1]).gradient
    ).all()


@pytest.mark.parametrize(
    "form",
    ["full", *(pytest.param(f, marks=pytest.mark.thorough) for f in ("low_rank", "diag"))],
)
@pytest.mark.parametrize(
    ("log_likelihood", "prior", "message"),
    [
        pytest.param(
            lambda t, b: -tf.abs(linear(t, b) - b["y"]),
            log_prior,
            "log_likelihood_fn must have second derivatives. Received: zeros .* order=1",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            lambda t, b: 0.2 * linear(t, b) ** 2,
            log_prior,
            "must be negative definite. Received: an eigenvalue of .*find_center.*order=1",
            marks=pytest.mark.thorough,
        ),
        (
            lambda t, b: -tf.math.pow(tf.abs(linear(t, b) - linear(CENTER, b)), 1.5),
            log_prior,
            "second derivatives at the center must be finite. Received: NaN or inf.*order=1",
        ),
    ],
    ids=["piecewise linear", "indefinite", "not finite"],
)
def test_models_that_are_refused(log_likelihood: Any, prior: Any, message: str, form: Any) -> None:
    check_refused(model(log_likelihood, prior), tf.constant(CENTER), form, message)


@pytest.mark.thorough
@pytest.mark.parametrize("form", [pytest.param("full", marks=pytest.mark.thorough), "low_rank"])
def test_a_saddle_of_the_prior_is_refused(form: Any) -> None:
    saddle = model(
        lambda t, b: 1e-3 * tf.sin(linear(t, b)), lambda t: 0.5 * t[..., 0] ** 2 - t[..., 1] ** 2
    )
    check_refused(saddle, tf.constant(CENTER), form, "must be negative definite")


def test_an_indefinite_diagonal_is_refused() -> None:
    upward = model(lambda t, b: 0.2 * linear(t, b) ** 2)
    with pytest.raises(ValueError, match="must be negative definite"):
        sgmcmc.whiten(upward, tf.constant(CENTER), "diag")


def test_a_center_that_is_no_mode_is_warned_of() -> None:
    """The estimate has no bias there: of all 30 examples it is exact."""
    far = CENTER + 20.0
    target = regression(30)
    for make in (sgmcmc.whiten, lambda t, c: sgmcmc.ControlVariate(t, c, order=2)):
        with pytest.warns(UserWarning, match="center must be near a mode.*standard deviations"):
            made = make(target, far)
    gradient = tfp.math.value_and_gradient(target, tf.constant(far + 1))[1]
    np.testing.assert_allclose(made.estimate(far + 1, [0, 1]).gradient, gradient)


def test_forms_and_priors_without_curvature() -> None:
    """P is the likelihood's diagonal where the prior is flat or a Laplace distribution."""
    flat = model(
        lambda t, b: -0.5 * (b["y"] - linear(t, b)) ** 2, lambda t: -tf.reduce_sum(tf.abs(t), -1)
    )
    whitened, bijector = sgmcmc.whiten(flat, CENTER, "low_rank")
    curvature = X.T @ X
    root = bijector.forward(tf.eye(2, dtype=tf.float64)) - bijector.forward(np.zeros(2))
    np.testing.assert_allclose(tf.transpose(root) @ root, np.linalg.inv(curvature), rtol=1e-9)
    _, bijector = sgmcmc.whiten(flat, CENTER, "diag")
    root = bijector.forward(tf.eye(2, dtype=tf.float64)) - bijector.forward(np.zeros(2))
    np.testing.assert_allclose(root, np.diag(np.diag(curvature) ** -0.5), rtol=1e-9)
    with pytest.raises(ValueError, match="hessian must be one of .*Received: 'dense'"):
        sgmcmc.whiten(flat, CENTER, "dense")  # type: ignore[arg-type]


def relu_network(theta: Any, batch: Any) -> Any:
    """Log likelihoods of a 2-2-1 network with relu, of 6 weights."""
    first, last = theta[..., :4], theta[..., 4:]
    first = tf.reshape(first, [*first.shape[:-1], 2, 2])
    logits = tf.linalg.matvec(tf.nn.relu(tf.linalg.matmul(batch["x"], first)), last)
    return batch["y"] * logits - tf.math.softplus(logits)


@pytest.mark.thorough
def test_a_relu_network_has_second_derivatives_almost_everywhere() -> None:
    """Two clusters stay on their sides of the units, so order 2 leaves far less noise."""
    side = np.where(np.arange(30) % 2, 1.0, -1.0)[:, None]
    data = {"x": side * [2.0, 1.0] + 0.3 * X, "y": np.where(Y == 1, 0.5 + 0.5 * side[:, 0], Y)}
    start = np.array([1.0, -1.0, 0.5, -0.5, 1.0, -1.0])
    target = sgmcmc.MinibatchLogProb(  # under a wide prior the mode would lie on a kink
        lambda t: -5 * tf.reduce_sum((t - start) ** 2, axis=-1),
        relu_network,
        data,
        5,
        replacement=True,
    )
    center, report = sgmcmc.find_center(target, start, tolerance=1e-3)
    assert report.converged
    theta = at(center.numpy() + 1e-3, 2000)
    active = [data["x"] @ np.reshape(t[:4], [2, 2]) > 0 for t in (center, theta[0])]
    np.testing.assert_array_equal(*active)
    assert 0 < active[0].mean() < 1

    def variance(order: Any) -> float:
        control = sgmcmc.ControlVariate(target, center, order=order)
        gradient = control.estimate(theta, tf.constant([0, 1]), with_scores=False).gradient
        return float(np.trace(np.cov(gradient.numpy().T)))

    assert variance(2) < 0.01 * variance(1)


def test_examples_that_would_hardly_be_drawn_are_refused() -> None:
    """Below 6e-8 of the mean the table would give the probability 0, and so the weight 1 / 0."""
    importance = np.ones(len(Y))
    importance[3] = 1e-8
    with pytest.raises(ValueError, match="importance must be .* Received: 1.*e-08 .* example 3"):
        sgmcmc.ControlVariate(regression(3), CENTER, order=2, importance=importance)
    importance[3] = 1e-3
    made = sgmcmc.ControlVariate(regression(3), CENTER, order=2, importance=importance)
    assert made.second_order.probabilities.min() > 0
