"""Second-order control variates with curvature of low rank: exact moments, and large states."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.every_minibatch import check_moments, flat, give_every_minibatch
from tests.targets.logistic_regression import at, log_likelihood
from tfp_sgmcmc.targets.laplace import low_rank_hessian
from tfp_sgmcmc.targets.laplace.quadratic import hessian_products, weight

GENERATOR = np.random.default_rng(3)
X = GENERATOR.standard_normal([5, 3]) * [2.0, 1.0, 0.5]
Y = np.array([1.0, 0.0, 1.0, 1.0, 0.0])
SCALES = np.array([1.0, 2.0, 0.7])  # of the prior, so that Q d is not an orthogonal projection
CENTER = np.array([0.4, -0.2, 0.1])
NEAR, FAR = CENTER + [0.2, 0.1, -0.1], CENTER + [2.5, -2.0, 1.0]


def log_prior(theta: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum((theta / SCALES) ** 2, axis=-1)


def base(batch_size: int, num_examples: int, **options: Any) -> sgmcmc.MinibatchLogProb:
    data = {"x": X[:num_examples], "y": Y[:num_examples]}
    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, batch_size, **options)


@pytest.fixture
def rank_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_rank(monkeypatch, 1)


def limit_rank(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Lets matrices of many examples and of few have that rank at most."""
    monkeypatch.setattr(low_rank_hessian, "_MOST_RANK", most)
    monkeypatch.setattr(low_rank_hessian, "_FEW_EXAMPLES", 0)


@pytest.mark.usefixtures("rank_one")
@pytest.mark.parametrize(
    ("num_examples", "batch_size", "replacement", "theta", "is_whitened"),
    [
        pytest.param(4, 3, True, FAR, False, marks=pytest.mark.thorough),
        pytest.param(5, 2, False, NEAR, False, marks=pytest.mark.thorough),
        (5, 2, False, FAR, True),
        pytest.param(4, 3, True, NEAR, True, marks=pytest.mark.slow),
    ],
)
def test_the_mean_over_all_minibatches(
    num_examples: int,
    batch_size: int,
    replacement: bool,
    theta: Any,
    is_whitened: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1 of 3: the mean is exactly the gradient, also far away, where w < 1."""
    target, center, form = (
        base(batch_size, num_examples, replacement=replacement),
        CENTER,
        "low_rank",
    )
    if is_whitened:
        target, bijector = sgmcmc.whiten(target, center, "low_rank")
        theta, center, form = bijector.inverse(tf.constant(theta)).numpy(), np.zeros(3), "auto"
    control = sgmcmc.ControlVariate(target, center, order=2, hessian=form)
    found = control.second_order.quadratic
    assert found.vectors.shape == found.products.shape == (3, 1)
    w = float(weight(found, tf.constant(theta - center))[0])
    assert w < 0.9 if np.linalg.norm(theta - center) > 1 else w == 1
    count = give_every_minibatch(monkeypatch, target)
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(theta))

    def mean() -> np.ndarray:
        estimate = control.estimate(at(theta, count), [0, 0], with_scores=False)
        return np.mean(estimate.gradient, axis=0), np.mean(estimate.log_prob)

    np.testing.assert_allclose(mean()[0], gradient, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(mean()[1], value, rtol=1e-10)
    if replacement and not is_whitened:
        check_moments(control.estimate(at(theta, count), [0, 0]), value, gradient)
    # Controls: products of other data; and all of d taken off where only Q d is added.
    control.second_order.quadratic = dataclasses.replace(found, products=0.9 * found.products)
    assert np.abs(mean()[0] - gradient).max() > 1e-3
    monkeypatch.setattr(type(found), "kept", lambda self, d: d)
    control.second_order.quadratic = found
    assert np.abs(mean()[0] - gradient).max() > 1e-3


@pytest.mark.slow
def test_all_ranks_are_the_full_expansion() -> None:
    """With as many vectors as entries, Q = I, and H is exact."""
    target = base(2, 5)
    full, low = (
        sgmcmc.ControlVariate(target, CENTER, order=2, hessian=form)
        for form in ("full", "low_rank")
    )
    assert low.second_order.quadratic.values.shape == (3,)
    for theta in (NEAR, FAR):
        pair = [c.estimate(tf.constant(theta), tf.constant([0, 1])) for c in (full, low)]
        np.testing.assert_allclose(pair[0].gradient, pair[1].gradient, rtol=1e-8)
        np.testing.assert_allclose(pair[0].scores, pair[1].scores, rtol=1e-7, atol=1e-9)


D, N = 4100, 12
WIDE = GENERATOR.standard_normal([N, D]) / D**0.5 * 4
LABELS = GENERATOR.integers(0, 2, N).astype(np.float64)
WIDE_SCALES = np.linspace(0.5, 2.0, D)


def wide(dtype: Any = tf.float64, **options: Any) -> sgmcmc.MinibatchLogProb:
    scales = tf.constant(WIDE_SCALES, dtype)
    return sgmcmc.MinibatchLogProb(
        lambda t: -0.5 * tf.reduce_sum((t / scales) ** 2, axis=-1),
        log_likelihood,
        {"x": WIDE, "y": LABELS},
        10,
        dtype=dtype,
        **options,
    )


@pytest.mark.slow
def test_more_entries_than_fit_a_matrix() -> None:
    """12 examples have a Hessian of rank 12 in 4100 dimensions: L L^T is the inverse of -H.

    The inverse is from Woodbury's identity. The noise is below that of order 1.
    """
    target = wide()
    center, report = sgmcmc.find_center(target, np.zeros(D), tolerance=1e-3)
    p = 1 / (1 + np.exp(-WIDE @ center.numpy()))
    rows, prior = WIDE * (p * (1 - p))[:, None] ** 0.5, WIDE_SCALES**2
    inner = np.linalg.inv(np.eye(N) + rows * prior @ rows.T)
    v = GENERATOR.standard_normal([3, D])
    expected = prior * v - prior * (((prior * v) @ rows.T @ inner) @ rows)
    whitened, bijector = sgmcmc.whiten(target, center)
    curvature = whitened.curvature
    assert curvature.values.shape[0] <= N
    found = report._quadratic
    np.testing.assert_allclose(found.root(found.root(tf.constant(v), transposed=True)), expected)
    product = -report.hessian.matvec(tf.constant(expected))
    np.testing.assert_allclose(product, v, rtol=1e-7, atol=1e-7)
    log_det = 0.5 * (np.linalg.slogdet(inner)[1] + np.log(prior).sum())
    z = tf.constant(GENERATOR.standard_normal([2, D]))
    np.testing.assert_allclose(bijector.forward_log_det_jacobian(z[0], 1), log_det)
    theta = bijector.forward(tf.identity(z))
    np.testing.assert_allclose(bijector.inverse(tf.identity(theta)), z, atol=1e-9)
    z = 0.1 * z
    exact = tfp.math.value_and_gradient(whitened, z)[1].numpy()

    def noise(order: Any) -> float:
        control = sgmcmc.ControlVariate(whitened, np.zeros(D), order=order)
        run = tf.function(
            lambda z: control.estimate(z, [0, 1], with_scores=False).gradient, autograph=False
        )
        return float(np.mean((run(z).numpy() - exact) ** 2))

    # What is left is of third order in place of second, so at a tenth of a standard deviation the
    # variance has a hundredth of its ratio there.
    assert noise(2) < 0.05 * noise(1)


@pytest.mark.slow
def test_pilot_probabilities_by_low_rank() -> None:
    """The remainders are weighted by the inverse of the curvature, which both forms have here."""
    target = base(2, 5)
    pair = [
        sgmcmc.ControlVariate(target, CENTER, order=2, importance="pilot", hessian=form)
        for form in ("full", "low_rank")
    ]
    q = [c.second_order.probabilities for c in pair]
    # Their square roots differ by a rotation, so draws differ, which moves q by tens of percent.
    assert np.abs(np.log(q[0] / q[1])).max() < 1 and np.ptp(q[1]) > 0.05
    np.testing.assert_allclose(flat(q[1], 0).sum(), 1)


@pytest.mark.slow
def test_what_few_vectors_leave_out_does_not_make_steps_unstable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 6 vectors of 40, curvature in z is below 4, the limit of h = 1. The control exceeds it.

    Curvature far below 1 remains, where draws are wide.
    """
    limit_rank(monkeypatch, 6)
    x = GENERATOR.standard_normal([400, 40]) * 10.0 ** np.linspace(0.8, -1.5, 40)
    y = GENERATOR.integers(0, 2, 400).astype(np.float64)
    prior = tfp.distributions.MultivariateNormalDiag(np.zeros(40)).log_prob
    target = sgmcmc.MinibatchLogProb(prior, log_likelihood, {"x": x, "y": y}, 20)

    def largest() -> float:
        whitened, _ = sgmcmc.whiten(target, np.zeros(40), "low_rank")
        return sgmcmc.largest_curvature(whitened, tf.zeros([40], tf.float64))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # zero is no mode
        bounded = largest()
        monkeypatch.setattr(low_rank_hessian.LowRankHessian, "bounded", lambda self: self)
        assert 1 < bounded < 4 < largest()


def test_few_examples_need_as_many_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coordinates are whitened at the center, with more parameters than examples."""
    limit_rank(monkeypatch, 4)
    x = GENERATOR.standard_normal([12, 40])
    y = GENERATOR.integers(0, 2, 12).astype(np.float64)
    prior = tfp.distributions.MultivariateNormalDiag(np.zeros(40)).log_prob
    target = sgmcmc.MinibatchLogProb(prior, log_likelihood, {"x": x, "y": y}, 5)
    center, _ = sgmcmc.find_center(target, tf.zeros([40], tf.float64))

    def curvatures() -> np.ndarray:
        whitened, _ = sgmcmc.whiten(target, center, "low_rank")
        found = hessian_products(whitened, center).matrices(np.zeros(40))
        return np.linalg.eigvalsh(-found.posterior)

    assert np.ptp(curvatures()) > 1  # negative control
    monkeypatch.setattr(low_rank_hessian, "_FEW_EXAMPLES", 12)
    np.testing.assert_allclose(curvatures(), 1.0, atol=0.02)
