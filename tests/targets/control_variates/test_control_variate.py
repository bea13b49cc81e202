"""ControlVariate: exact moments over all minibatches, exact stationary laws, and bad input."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import run_chains
from tests.harness.every_minibatch import check_moments, give_every_minibatch
from tests.harness.gaussian_mean import GaussianMean, sgld_covariance
from tests.harness.linear_regression import LinearRegression
from tests.harness.mutation import mutant
from tests.harness.statistics import Rejected, check_covariance
from tests.targets.logistic_regression import CENTER, THETA, X, at, log_prior, regression, score
from tfp_sgmcmc.targets.anchored import AnchoredTarget

tfb, tfd = tfp.bijectors, tfp.distributions


@pytest.mark.parametrize(
    ("num_examples", "batch_size", "options"),
    [
        (6, 2, dict(replacement=False)),
        pytest.param(5, 3, dict(replacement=True), marks=pytest.mark.thorough),
        pytest.param(5, 4, dict(replacement=False, num_groups=2), marks=pytest.mark.thorough),
        pytest.param(4, 4, dict(replacement=True, num_groups=2), marks=pytest.mark.thorough),
        (5, 3, dict(replacement=False, score_fn=score)),
    ],
    ids=["without replacement", "with", "groups without", "groups with", "closed form"],
)
def test_mean_and_covariance_over_all_minibatches(
    num_examples: int, batch_size: int, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean is the full gradient and the covariance is c E[V hat], up to rounding."""
    base = regression(batch_size, num_examples, **options)
    target = sgmcmc.ControlVariate(base, CENTER)
    count = give_every_minibatch(monkeypatch, base)
    state = at(THETA, count)
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(THETA))
    covariance = check_moments(target.estimate(state, [0, 0]), value, gradient)
    plain = check_moments(base.estimate(state, [0, 0]), value, gradient)
    assert np.trace(covariance) < 0.5 * np.trace(plain)
    assert (target.num_examples, target.num_scores) == (num_examples, base.num_scores)
    assert target.noise_scale == base.noise_scale
    quick = target.estimate(state, [0, 0], with_scores=False)
    np.testing.assert_allclose(quick.gradient, target.estimate(state, [0, 0]).gradient, rtol=1e-9)
    np.testing.assert_allclose(np.mean(quick.log_prob), value, rtol=1e-10)
    assert quick.scores == () and quick.noise_scale == base.noise_scale


@pytest.mark.parametrize("with_scores", [True, False])
def test_no_noise_at_the_center(with_scores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    base = regression(3, 5, score_fn=score)
    target = sgmcmc.ControlVariate(base, CENTER)
    count = give_every_minibatch(monkeypatch, base)
    estimate = target.estimate(at(CENTER, count), [0, 0], with_scores=with_scores)
    value, gradient = tfp.math.value_and_gradient(base, tf.constant(CENTER))
    np.testing.assert_allclose(estimate.gradient, at(gradient.numpy(), count), rtol=1e-12)
    np.testing.assert_allclose(estimate.log_prob, tf.fill([count], value), rtol=1e-12)
    if with_scores:
        np.testing.assert_array_equal(estimate.scores, np.zeros([count, 3, 2]))


MUTATIONS = {
    "full gradient forgotten": ("tf.add, gradient, anchor.gradient", "tf.add, gradient, gradient"),
    "full log likelihood forgotten": ("prior + anchor.log_likelihood", "prior"),
    "nothing subtracted": (
        "base.scores(anchor.state, batch, chains)",
        "tf.nest.map_structure(tf.zeros_like, base.scores(state, batch, chains))",
    ),
    "added for subtracted": ("tf.subtract,", "tf.add,"),
    "other examples at the center": (
        "base.scores(anchor.state, batch, chains)",
        "base.scores(anchor.state, tf.nest.map_structure(lambda x: x[::-1], batch), chains)",
    ),
    "scaled by n": ("self.num_examples, n\n", "self.num_examples, n * n // 2\n"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_estimates_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations fail; other examples at the center give no bias, but too much noise."""
    base = regression(3, 5, score_fn=score)
    target = sgmcmc.ControlVariate(base, CENTER)
    broken = mutant(AnchoredTarget, MUTATIONS[name])
    monkeypatch.setattr(
        target, "_estimate_from", lambda *args: broken._estimate_from(target, *args)
    )
    count = give_every_minibatch(monkeypatch, base)
    value, gradient = tfp.math.value_and_gradient(base, tf.constant(THETA))
    with pytest.raises(AssertionError):
        covariance = check_moments(target.estimate(at(THETA, count), [0, 0]), value, gradient)
        plain = check_moments(base.estimate(at(THETA, count), [0, 0]), value, gradient)
        assert np.trace(covariance) < 0.5 * np.trace(plain)


@pytest.mark.thorough
def test_every_pass_of_epochs_adds_up_to_the_full_gradient() -> None:
    base = regression(5, reshuffle="epoch", shared_batch=True, score_fn=score)
    target = sgmcmc.ControlVariate(base, CENTER)
    estimate = tf.function(target.estimate, autograph=False)
    carried, gradients = target.bootstrap(at(THETA, 2)), []
    for step in range(12):
        found = estimate(at(THETA, 2), tf.constant([7, step]), carried)
        carried = found.target_state
        gradients.append(found.gradient)
    _, gradient = tfp.math.value_and_gradient(base, at(THETA, 2))
    for one_pass in np.split(np.stack(gradients), 2):
        np.testing.assert_allclose(one_pass.mean(axis=0), gradient, rtol=1e-10)
    assert np.std(gradients, axis=0).min() > 0.01
    assert int(carried.step) == 12


@pytest.mark.thorough
def test_made_inside_a_compiled_function() -> None:
    base = regression(score_fn=score)

    @tf.function(jit_compile=True, autograph=False)
    def gradient(center: tf.Tensor) -> tf.Tensor:
        return sgmcmc.ControlVariate(base, center).estimate(at(THETA, 3), [1, 2]).gradient

    outside = sgmcmc.ControlVariate(base, CENTER)
    expected = outside.estimate(at(THETA, 3), [1, 2]).gradient
    np.testing.assert_allclose(gradient(tf.constant(CENTER)), expected, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(list, marks=pytest.mark.slow),
        pytest.param(tuple, marks=pytest.mark.thorough),
        dict,
    ],
)
def test_parts_and_bijectors(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A location [2] and a positive scale [] have an unconstrained center, like the state."""
    four = tf.constant(4.0, tf.float64)

    def pack(loc: Any, scale: Any) -> Any:
        return {"loc": loc, "scale": scale} if kind is dict else kind([loc, scale])

    base = sgmcmc.MinibatchLogProb(
        lambda loc, scale: log_prior(loc) - scale,
        lambda loc, scale, batch: tf.reduce_sum(
            tfd.StudentT(four, loc[..., None, :], scale[..., None, None]).log_prob(batch),
            axis=-1,
        ),
        X[:5],
        3,
        bijector=pack(None, tfb.Exp()),
    )
    target = sgmcmc.ControlVariate(base, pack(tf.constant(CENTER), tf.constant(-0.3, tf.float64)))
    count = give_every_minibatch(monkeypatch, base)
    one = pack(tf.constant(THETA), tf.constant(0.1, tf.float64))
    value, gradient, _ = sgmcmc.targets.base.value_and_gradient(
        lambda s: sgmcmc.targets.base.call_with_state(base, s), one
    )
    state = tf.nest.map_structure(lambda x: tf.stack([x] * count), one)
    target.bootstrap(state)
    estimate = target.estimate(state, [0, 0])
    check_moments(estimate, value, gradient)
    assert isinstance(estimate.gradient, kind)
    tf.nest.map_structure(lambda x, s: s.shape.assert_is_compatible_with(x.shape), gradient, one)


GAUSSIAN = GaussianMean(num_examples=12)
LINEAR = LinearRegression(num_examples=12)
STEP = 0.08
CHAINS = 10_000


def gaussian_samples(make: Any = sgmcmc.ControlVariate) -> np.ndarray:
    target = make(GAUSSIAN.target(4, replacement=True), np.array([2.0, 0.0, -1.0], np.float32))
    return run_chains(sgmcmc.SGLD(target, STEP), tf.ones([CHAINS, 3]), 50, 60, seed=1, jit=False)


@pytest.mark.thorough
def test_linear_scores_leave_no_noise() -> None:
    """On the Gaussian-mean model all examples have the same difference of scores, so g is exact.

    The law of SGLD solves the Lyapunov equation with Sigma = 0. The false-alarm rate is 1e-6, and
    an error of 3% in the variance in any direction is found. The check rejects the chain without
    control variates.
    """
    law = sgld_covariance(GAUSSIAN.hessian, np.zeros([3, 3]), STEP)
    check_covariance(gaussian_samples(), GAUSSIAN.mean, law, 0.03)
    with pytest.raises(Rejected):
        check_covariance(gaussian_samples(lambda t, _: t), GAUSSIAN.mean, law, 0.03)


OFF = LINEAR.mean + [0.8, -1.0]  # a center some standard deviations from the mean


@pytest.mark.slow
def test_law_with_noise_that_depends_on_the_state() -> None:
    """In linear regression the noise covariance is quadratic in theta, away from the center.

    The false-alarm rate is 1e-6, and an error of 5% in the variance in any direction is found. The
    laws without noise and with another center are rejected.
    """
    base = LINEAR.target(3, replacement=True)
    target = sgmcmc.ControlVariate(base, OFF.astype(np.float32))
    kernel = sgmcmc.SGLD(target, STEP)
    samples = run_chains(kernel, tf.zeros([CHAINS, 2]), 60, 100, seed=2, jit=False)
    law = LINEAR.covariance(base, STEP, center=OFF)
    check_covariance(samples, LINEAR.mean, law, 0.05)
    noise_free = sgld_covariance(LINEAR.hessian, np.zeros([2, 2]), STEP)
    for wrong in (noise_free, LINEAR.covariance(base, STEP, center=LINEAR.mean)):
        with pytest.raises(Rejected):
            check_covariance(samples, LINEAR.mean, wrong, 0.05)


@pytest.mark.slow
def test_nogin_is_exact_without_noise() -> None:
    """With V = 0 NOGIN's law is exactly the posterior. Finds an error of 5% in a variance."""
    base = GAUSSIAN.target(4, replacement=True, num_groups=2)
    target = sgmcmc.ControlVariate(base, np.zeros(3, np.float32))
    kernel = sgmcmc.NOGIN(
        target, step_size=0.3, friction=2.0, covariance="diag", num_estimation_steps=0
    )
    samples = run_chains(kernel, tf.ones([CHAINS, 3]), 40, 40, seed=3, jit=False)
    check_covariance(samples, GAUSSIAN.mean, np.linalg.inv(GAUSSIAN.hessian), 0.05)


@pytest.mark.parametrize(
    ("center", "error", "message"),
    [
        (np.zeros([4, 2]), ValueError, r"center must be one state without chain .* shape \(4,\)"),
        (np.array([0.0, np.nan]), ValueError, "center must be finite"),
        (np.array([0, 1]), TypeError, "center must have a floating dtype.* Received: dtype int64"),
    ],
)
def test_bad_centers(center: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        sgmcmc.ControlVariate(regression(), center)


def test_a_center_without_a_gradient() -> None:
    base = sgmcmc.MinibatchLogProb(
        lambda t: -(t**2), lambda t, x: tf.sqrt(t)[..., tf.newaxis] + 0 * x, X[:, 0], 4
    )
    with pytest.raises(ValueError, match="gradient with respect to center .* must be finite"):
        sgmcmc.ControlVariate(base, np.float64(0.0))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (tf.zeros([4, 3], tf.float64), r"center, float64, .* dtype float64, shape \(4, 3\)"),
        (tf.zeros([], tf.float64), r"center, float64, .* Received: dtype float64, shape \(\)"),
        (tf.zeros([4, 2], tf.float32), r"float64, and its shape \(2,\) .* Received: dtype float32"),
        ([tf.zeros([2], tf.float64)], r"center, \['center'\]. Received: \['state\[0\]'\]"),
    ],
    ids=["size", "rank", "dtype", "structure"],
)
def test_states_that_do_not_fit_the_center(state: Any, message: str) -> None:
    kernel = sgmcmc.SGLD(sgmcmc.ControlVariate(regression(), CENTER), 0.1)
    with pytest.raises(ValueError, match=message):
        kernel.bootstrap_results(state)


@pytest.mark.slow
def test_preflight_checks_the_center_too() -> None:
    """The likelihood is right at the state, but depends on its batch at the center."""
    sgmcmc.preflight(sgmcmc.ControlVariate(regression(), CENTER), at(THETA, 3))

    def faulty(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(batch, axis=-1, keepdims=True)
        return theta[..., tf.newaxis] * tf.where(theta[..., tf.newaxis] > 0, batch, mean**2)

    base = sgmcmc.MinibatchLogProb(lambda t: -(t**2), faulty, X[:, 0], 4)
    sgmcmc.preflight(base, tf.constant(0.5, tf.float64))
    with pytest.raises(ValueError, match="do not add up to the full one"):
        sgmcmc.preflight(sgmcmc.ControlVariate(base, np.float64(-0.5)), np.float64(0.5))
