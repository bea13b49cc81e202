"""find_center: known modes, its report, and bad input."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tests.targets.logistic_regression import log_likelihood

tfb, tfd = tfp.bijectors, tfp.distributions

GENERATOR = np.random.default_rng(0)
N = 2000
SCALES = np.array([0.01, 1.0, 300.0])  # of the features, and so of the mode
X = GENERATOR.standard_normal([N, 3]) * SCALES
Y = (GENERATOR.random(N) < 1 / (1 + np.exp(-X @ (0.7 / SCALES)))).astype(np.float64)
GAUSSIAN = GaussianMean(num_examples=1000)


def regression(dtype: tf.DType = tf.float64, batch_size: int = 100, **options: Any) -> Any:
    """A logistic regression with features of very different scales and a flat prior."""
    return sgmcmc.MinibatchLogProb(
        lambda theta: -1e-8 * tf.reduce_sum(theta**2, axis=-1),
        log_likelihood,
        {"x": X, "y": Y},
        batch_size,
        dtype=dtype,
        **options,
    )


def newton() -> tuple[np.ndarray, np.ndarray]:
    """Returns the mode of `regression`, and the standard deviations there."""
    theta = np.zeros(3)
    for _ in range(30):
        p = 1 / (1 + np.exp(-X @ theta))
        hessian = (X * (p * (1 - p))[:, np.newaxis]).T @ X + 2e-8 * np.eye(3)
        theta = theta + np.linalg.solve(hessian, X.T @ (Y - p) - 2e-8 * theta)
    return theta, np.sqrt(np.diag(np.linalg.inv(hessian)))


@pytest.mark.parametrize(
    ("start", "dtype"),
    [
        pytest.param(np.zeros(3), tf.float64, marks=pytest.mark.thorough),
        (3.0 / SCALES, tf.float32),
    ],
    ids=["zero, float64", "far, float32"],
)
def test_lbfgs_finds_the_mode_whatever_the_scales(start: np.ndarray, dtype: tf.DType) -> None:
    mode, deviations = newton()
    center, report = sgmcmc.find_center(regression(dtype), tf.constant(start, dtype), "lbfgs")
    assert center.dtype == dtype and report.converged and report.offset <= 0.1
    assert np.max(np.abs(center - mode) / deviations) < 0.2
    assert report.num_passes < 40 and report.num_minibatches == 0


def test_a_small_tolerance_is_reached() -> None:
    mode, deviations = newton()
    center, report = sgmcmc.find_center(regression(), np.zeros(3), tolerance=1e-6)
    assert report.offset <= 1e-6
    assert np.max(np.abs(center - mode) / deviations) < 2e-6


def test_report_is_that_of_the_center() -> None:
    """Compares offset and norm with NumPy."""
    target = regression()
    start = np.array([5.0, 0.3, 0.001])
    with pytest.warns(UserWarning, match="after 1 Newton steps"):
        center, report = sgmcmc.find_center(target, start, max_iterations=1)
    value, gradient = tfp.math.value_and_gradient(target, center)
    p = 1 / (1 + np.exp(-X @ center.numpy()))
    curvature = (p * (1 - p)) @ X**2 + 2e-8
    offset = np.max(np.abs(gradient) / np.sqrt(curvature))
    np.testing.assert_allclose(report.offset, offset, rtol=1e-9)
    np.testing.assert_allclose(report.gradient_norm, np.linalg.norm(gradient), rtol=1e-9)
    np.testing.assert_allclose(report.log_prob, value, rtol=1e-9)
    assert not report.converged and report.offset > 0.1


@pytest.mark.thorough
def test_no_warning_where_it_has_converged() -> None:
    sgmcmc.find_center(GAUSSIAN.target(50), tf.zeros([3]))  # warnings are errors here


def test_a_start_at_the_mode_is_kept() -> None:
    mode, _ = newton()
    center, report = sgmcmc.find_center(regression(), mode)
    np.testing.assert_array_equal(center, mode)
    assert report.converged and report.num_newton_steps == 0


def test_passes_are_counted() -> None:
    """All data are one chunk here, so `log_likelihood_fn` sees them once in each pass."""
    passes = tf.Variable(0)

    def log_likelihood(theta: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        if x.shape[0] == 1000:
            passes.assign_add(1)
        return -tf.math.log1p((x - theta[..., tf.newaxis]) ** 2)

    data = GENERATOR.standard_normal(1000)
    target = sgmcmc.MinibatchLogProb(lambda t: -(t**2), log_likelihood, data, 10, chunk_size=1000)
    _, report = sgmcmc.find_center(target, np.float64(0.5), "lbfgs")
    assert report.num_passes == int(passes) > 1


@pytest.mark.thorough
def test_adam_comes_near_by_minibatches() -> None:
    """Adam is within two standard deviations after 30 passes; L-BFGS then finds the mode."""
    target = GAUSSIAN.target(50, tf.float64)
    center, report = sgmcmc.find_center(
        target, np.zeros(3), "adam", max_iterations=600, tolerance=2.0, learning_rate=0.05
    )
    deviations = np.sqrt(np.diag(np.linalg.inv(GAUSSIAN.hessian)))
    assert np.max(np.abs(center - GAUSSIAN.mean) / deviations) < 2
    assert report.converged and (report.num_passes, report.num_minibatches) == (2, 600)
    exact, report = sgmcmc.find_center(target, center, tolerance=1e-6)
    np.testing.assert_allclose(exact, GAUSSIAN.mean, rtol=1e-6)


@pytest.mark.slow
def test_adam_takes_schedules_and_epochs_and_repeats_itself() -> None:
    target = GAUSSIAN.target(50, reshuffle="epoch")
    schedule = sgmcmc.schedules.PolynomialDecay(a=0.1, b=1.0, gamma=0.5)

    def find(seed: int) -> np.ndarray:
        center, _ = sgmcmc.find_center(
            target, tf.zeros([3]), "adam", max_iterations=50, learning_rate=schedule,
            tolerance=100.0, seed=seed,
        )  # fmt: skip
        return center.numpy()

    np.testing.assert_array_equal(find(1), find(1))
    assert np.all(find(1) != find(2))


@pytest.mark.slow
def test_parts_matrices_and_bijectors() -> None:
    """A multinomial regression with a positive scale has an unconstrained center in a dict."""
    labels = GENERATOR.integers(0, 3, 200)
    features = GENERATOR.standard_normal([200, 2])
    target = sgmcmc.MinibatchLogProb(
        lambda w, s: (
            tf.reduce_sum(tfd.Normal(tf.zeros([], tf.float64), 1.0).log_prob(w), axis=[-2, -1]) - s
        ),
        lambda w, s, batch: tfd.Categorical(
            logits=tf.linalg.matmul(batch["x"], w) * s[..., tf.newaxis, tf.newaxis]
        ).log_prob(batch["y"]),
        {"x": features, "y": labels},
        20,
        bijector={"w": None, "s": tfb.Exp()},
    )
    start = {"w": tf.zeros([2, 3], tf.float64), "s": tf.zeros([], tf.float64)}
    center, report = sgmcmc.find_center(target, start, tolerance=1e-5)
    assert report.converged and center["w"].shape == (2, 3) and center["s"].shape == ()
    _, gradient = tfp.math.value_and_gradient(lambda w, s: target(w=w, s=s), [*center.values()])
    assert max(np.max(np.abs(g)) for g in gradient) < 1e-3
    control = sgmcmc.ControlVariate(target, center)
    found = control.estimate(center, [0, 1], with_scores=False).gradient["w"]
    np.testing.assert_allclose(found, dict(zip(center, gradient, strict=True))["w"], atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(method="bfgs"), "method must be one of .*'lbfgs', 'adam'.. Received: 'bfgs'"),
        (dict(max_iterations=0), "max_iterations must be at least 1. Received: 0"),
        (dict(tolerance=-1.0), "tolerance must be a positive finite number. Received: -1.0"),
        (dict(initial_state=np.zeros([4, 3])), r"initial_state must be one .* shape \(4,\)"),
        (dict(initial_state=np.full(3, np.nan)), "The initial_state must be finite. Received: NaN"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sgmcmc.find_center(**{"target": regression(), "initial_state": np.zeros(3), **options})


def test_a_tolerance_may_be_a_tensor_of_integers() -> None:
    _, found = sgmcmc.find_center(regression(), np.zeros(3), tolerance=tf.constant(1))
    assert found.converged


def test_a_search_that_leaves_the_finite() -> None:
    """The log posterior has no maximum, so Adam ends at an overflow."""
    target = sgmcmc.MinibatchLogProb(
        lambda t: tf.exp(t), lambda t, x: t[..., tf.newaxis] * tf.ones_like(x), np.ones(9), 3
    )
    with pytest.raises(ValueError, match="NaN or infinite at the state at which 'adam' ended"):
        sgmcmc.find_center(target, np.float64(0.0), "adam", max_iterations=20, learning_rate=500.0)


# The units of parameters

INCOMES = 60_000 + 30_000 * GENERATOR.standard_normal(100)
HEIGHTS = GENERATOR.normal(67.0, 4.0, 100)


def raw_regression(units: np.ndarray, dtype: Any = np.float64) -> sgmcmc.MinibatchLogProb:
    """Incomes by heights with unknown noise; the entries are (intercept, slope, log sigma)."""
    columns = (np.stack([np.ones(100), HEIGHTS], axis=1) * units).astype(dtype)

    def log_likelihood(theta: tf.Tensor, batch: Any) -> tf.Tensor:
        log_sigma = theta[..., 2:]
        errors = batch["y"] - tf.linalg.matvec(batch["x"], theta[..., :2])
        return -0.5 * (errors / tf.exp(log_sigma)) ** 2 - log_sigma

    return sgmcmc.MinibatchLogProb(
        lambda theta: theta[..., 2], log_likelihood, {"x": columns, "y": INCOMES.astype(dtype)}, 10
    )


def least_squares() -> tuple[np.ndarray, np.ndarray]:
    """Returns the mode of `raw_regression` in its usual units, and standard deviations there."""
    columns = np.stack([np.ones(100), HEIGHTS], axis=1)
    slopes, squares, _, _ = np.linalg.lstsq(columns, INCOMES, rcond=None)
    variance = squares[0] / 99  # the Jacobian of log sigma takes one of the 100 terms
    deviations = np.sqrt(np.diag(np.linalg.inv(columns.T @ columns)) * variance)
    return np.append(slopes, np.log(variance) / 2), np.append(deviations, 198**-0.5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("units", "dtype"),
    [
        ([1.0, 1.0], np.float64),
        pytest.param([1e-6, 1e6], np.float32, marks=pytest.mark.thorough),
        pytest.param([1e6, 1e-6], np.float64, marks=pytest.mark.thorough),
        pytest.param([1e6, 1e6], np.float32, marks=pytest.mark.thorough),
    ],
)
def test_the_mode_does_not_depend_on_units(units: list[float], dtype: Any) -> None:
    """Incomes in dollars from zeros: the mode is 20 standard deviations of the start away."""
    mode, deviations = least_squares()
    center, report = sgmcmc.find_center(raw_regression(np.array(units), dtype), np.zeros(3, dtype))
    assert report.converged and report.expected_gain < 1e-4
    scaled = center.numpy() * np.append(units, 1.0)
    # Intercept and slope are correlated by 0.998, which multiplies the rounding of float32.
    assert np.abs((scaled - mode) / deviations).max() < 1e-3


@pytest.mark.parametrize(
    "start",
    [
        pytest.param([0.0, 0.0, 30.0], marks=pytest.mark.thorough),
        pytest.param([1e9, 0.0, 0.0], marks=pytest.mark.thorough),
        [-3e5, 0.0, 13.0],
    ],
)
def test_the_mode_is_found_from_where_all_gradients_are_small(start: list[float]) -> None:
    mode, deviations = least_squares()
    center, report = sgmcmc.find_center(raw_regression(np.ones(2)), np.array(start))
    assert report.converged
    assert np.abs((center.numpy() - mode) / deviations).max() < 1e-2


@pytest.mark.thorough
def test_lbfgs_alone_ends_where_all_gradients_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without Newton steps the search ends away, and converged by its gradient."""
    monkeypatch.setattr("tfp_sgmcmc.targets.laplace.mode.MOST_NEWTON_DIMENSIONS", 0)
    mode, deviations = least_squares()
    center, report = sgmcmc.find_center(raw_regression(np.ones(2)), np.zeros(3), "lbfgs")
    assert report.converged and np.isnan(report.expected_gain)
    assert np.abs((center.numpy() - mode) / deviations).max() > 0.5
