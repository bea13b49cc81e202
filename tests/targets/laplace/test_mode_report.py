"""The report of find_center: Hessian and Laplace's approximation, and the steps of Newton."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import datasets
import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.harness.gaussian_mean import GaussianMean
from tests.targets.logistic_regression import log_likelihood, log_prior
from tfp_sgmcmc.targets.laplace import mode
from tfp_sgmcmc.targets.laplace.newton import newton_ascent

tfb, tfd = tfp.bijectors, tfp.distributions
MODEL = GaussianMean(num_examples=40)
GENERATOR = np.random.default_rng(0)


def test_hessian_and_laplace_of_a_gaussian_are_the_posterior() -> None:
    """The three entries are two parts, so the Hessian has the order of the flattened state."""
    target = MODEL.target(10, tf.float64, parts=True, score_fn=None)
    start = [tf.zeros([1], tf.float64), tf.zeros([2], tf.float64)]
    center, report = sgmcmc.find_center(target, start, tolerance=1e-9)
    np.testing.assert_allclose(report.hessian, -MODEL.hessian, rtol=1e-10)
    exact = tfd.MultivariateNormalTriL(MODEL.mean, np.linalg.cholesky(np.linalg.inv(MODEL.hessian)))
    draws = report.laplace.sample(5, seed=[0, 1])
    assert [x.shape for x in draws] == [(5, 1), (5, 2)]
    np.testing.assert_allclose(
        report.laplace.log_prob(draws), exact.log_prob(tf.concat(draws, axis=-1)), rtol=1e-9
    )
    assert [x.shape for x in center] == [(1,), (2,)]


@pytest.mark.thorough
def test_nothing_is_computed_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return quadratic_at(*args)

    quadratic_at = mode.quadratic_at
    monkeypatch.setattr(mode, "quadratic_at", counted)
    _, report = sgmcmc.find_center(MODEL.target(10, score_fn=None), tf.zeros([3]))
    assert "expansion" not in repr(report) and repr(report).startswith("CenterReport(converged=")
    assert not calls
    assert report.laplace is report.laplace and report.hessian is report.hessian
    assert len(calls) == 1


def dense(hessian: Any) -> np.ndarray:
    is_operator = isinstance(hessian, tf.linalg.LinearOperator)
    return (hessian.to_dense() if is_operator else hessian).numpy()


@pytest.mark.parametrize("form", fast_settings(["full", "low_rank", "diag"], "diag"))
def test_laplace_has_the_curvature_of_its_form(form: Any) -> None:
    _, report = sgmcmc.find_center(
        MODEL.target(10, tf.float64, score_fn=None), np.zeros(3), tolerance=1e-9, hessian=form
    )
    curvature = np.diag(np.diag(MODEL.hessian)) if form == "diag" else MODEL.hessian
    np.testing.assert_allclose(-dense(report.hessian), curvature, rtol=1e-9, atol=1e-9)
    covariance = np.cov(report.laplace.sample(100_000, seed=[0, 1]).numpy().T)
    # The relative error of an entry has a standard deviation of at most sqrt(2 / 100,000).
    scale = np.sqrt(np.diag(np.linalg.inv(curvature)))
    error = (covariance - np.linalg.inv(curvature)) / np.outer(scale, scale)
    assert np.abs(error).max() < 6 * (2 / 100_000) ** 0.5


def scaled_normal(bijector: Any) -> tuple[sgmcmc.MinibatchLogProb, Any]:
    """x_i ~ N(loc, scale^2) with a flat prior on (loc, log scale): Laplace in closed form."""
    x = GENERATOR.normal(1.0, 2.0, 300)
    target = sgmcmc.MinibatchLogProb(
        lambda loc, scale: -tf.math.log(scale) + 0 * loc,
        lambda loc, scale, batch: tfd.Normal(loc[..., None], scale[..., None]).log_prob(batch),
        x,
        30,
        bijector=bijector,
    )
    return target, x


@pytest.mark.thorough
def test_laplace_is_in_the_coordinates_of_the_parameters() -> None:
    """The mode is (mean, log deviation), with variances s^2 / N and 1 / 2N and no covariance.

    The mean of a log-normal scale is exp(mode + variance / 2).
    """
    target, x = scaled_normal({"loc": None, "scale": tfb.Exp()})
    zero = tf.zeros([], tf.float64)
    center, report = sgmcmc.find_center(target, {"loc": zero, "scale": zero}, tolerance=1e-8)
    np.testing.assert_allclose([center["loc"], center["scale"]], [x.mean(), np.log(x.std())])
    expected = -np.diag([300 / x.var(), 600.0])
    np.testing.assert_allclose(report.hessian, expected, rtol=1e-7, atol=1e-6)
    at = {"loc": tf.constant([0.9, 1.3], tf.float64), "scale": tf.constant([1.8, 2.5], tf.float64)}
    exact = tfd.Normal(x.mean(), x.std() / 300**0.5).log_prob(at["loc"]) + tfd.LogNormal(
        np.log(x.std()), 600**-0.5
    ).log_prob(at["scale"])
    np.testing.assert_allclose(report.laplace.log_prob(at), exact, rtol=1e-6)


# The steps of Newton


def ill_conditioned(dim: int = 12) -> tuple[sgmcmc.MinibatchLogProb, np.ndarray, np.ndarray]:
    """A logistic regression of nearly collinear features with a N(0, 1) prior."""
    x = GENERATOR.standard_normal([400, 1]) + 10.0 ** np.linspace(-3, 1, dim) * (
        GENERATOR.standard_normal([400, dim])
    )
    y = (GENERATOR.random(400) < 1 / (1 + np.exp(-x[:, 0]))).astype(np.float64)
    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, {"x": x, "y": y}, 400), x, y


@pytest.mark.thorough
def test_newton_ends_what_lbfgs_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 8 iterations of L-BFGS, Newton reaches a gradient of 1e-6 in 10 steps at most."""
    target, x, y = ill_conditioned()
    options = dict(method="lbfgs", max_iterations=10, tolerance=1e-6)
    center, report = sgmcmc.find_center(target, np.zeros(12), **options)
    assert report.converged and 1 <= report.num_newton_steps <= 10
    theta = center.numpy()
    gradient = x.T @ (y - 1 / (1 + np.exp(-x @ theta))) - theta
    assert np.abs(gradient).max() < 1e-3
    # The control: L-BFGS alone does not arrive.
    monkeypatch.setattr(mode, "MOST_NEWTON_DIMENSIONS", 11)
    with pytest.warns(UserWarning, match="must end near a mode.*after 0 Newton steps"):
        _, report = sgmcmc.find_center(target, np.zeros(12), **options)
    assert not report.converged and report.num_newton_steps == 0


@pytest.mark.slow
def test_a9a_with_a_normal_prior_converges() -> None:
    """Its 123 features and a constant have a Hessian with a condition number of 24,000."""
    data = datasets.a9a()
    x = np.concatenate([np.ones([len(data.x_train), 1]), data.x_train], axis=1)
    target = sgmcmc.MinibatchLogProb(
        log_prior,
        log_likelihood,
        {"x": x, "y": data.y_train.astype(np.float32)},
        100,
        dtype=tf.float32,
    )
    center, report = sgmcmc.find_center(target, tf.zeros([124]))
    assert report.converged and report.num_newton_steps <= 7
    _, gradient = tfp.math.value_and_gradient(target, tf.identity(center))
    hessian = report.hessian.numpy().astype(np.float64)
    eigenvalues = np.linalg.eigvalsh(-hessian)
    assert eigenvalues[-1] > 2e4 * eigenvalues[0]
    slope = gradient.numpy()
    distance = np.sqrt(slope @ np.linalg.solve(-hessian, slope))
    assert distance < 0.1


def test_steps_are_damped_and_leave_maxima_of_the_potential() -> None:
    """For -sqrt(1 + x^2) a full step goes from x to -x^3; x^2/2 - x^4/4 has a minimum at 0."""

    def end(value: Any, slope: Any, curvature: Any, start: float) -> float:
        def derivatives(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return curvature(x)[:, np.newaxis], slope(x)

        ascent = newton_ascent(
            lambda x: float(value(x)[0]), derivatives, np.array([start]), 50, 2e-16
        )
        assert ascent is not None and ascent.is_maximum and ascent.expected_gain < 1e-6
        return float(ascent.theta[0])

    root = lambda x: np.sqrt(1 + x**2)  # noqa: E731
    assert (
        abs(end(lambda x: -root(x), lambda x: -x / root(x), lambda x: -(root(x) ** -3), 3.0)) < 1e-2
    )
    assert abs(-(3.0**3)) > 20  # the full step
    for start in (0.1, 0.0):  # at the minimum itself the gradient is zero
        value = lambda x: x**2 / 2 - x**4 / 4  # noqa: E731
        found = end(value, lambda x: x - x**3, lambda x: 1 - 3 * x**2, start)
        np.testing.assert_allclose(found, 1.0, atol=1e-3)


def test_models_without_second_derivatives_end_without_newton() -> None:
    """tf.custom_gradient hides the second derivative here; the warning has no Newton steps."""

    @tf.custom_gradient
    def kinked(x: tf.Tensor) -> Any:
        def first(upstream: tf.Tensor) -> tf.Tensor:
            return upstream * once(x)

        return -(x**4), first

    @tf.custom_gradient
    def once(x: tf.Tensor) -> Any:
        def second(_: tf.Tensor) -> tf.Tensor:
            raise NotImplementedError("no second derivative")

        return -4 * x**3, second

    target = sgmcmc.MinibatchLogProb(
        lambda x: -1e-3 * x**2, lambda x, b: kinked(x[..., None] - b), GENERATOR.normal(size=20), 5
    )
    with pytest.warns(UserWarning, match="after 0 Newton steps"):
        center, report = sgmcmc.find_center(
            target, np.float64(9.0), max_iterations=1, tolerance=1e-9
        )
    with pytest.raises(ValueError, match="must have second derivatives at the center.*order=1"):
        _ = report.hessian
    for make in (sgmcmc.whiten, lambda t, c: sgmcmc.ControlVariate(t, c, order=2)):
        with pytest.raises(ValueError, match="no second derivative"):
            make(target, center)
    sgmcmc.ControlVariate(target, center)  # order 1 works
