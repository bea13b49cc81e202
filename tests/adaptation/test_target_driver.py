"""The run without a kernel: predictions, the choice, the draws, and what it flags."""

import dataclasses
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf
import tensorflow_probability as tfp
import tree

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation import (
    coordinates,
    draw_checks,
    fallback,
    independent_draws,
    kernel_selector,
    langevin,
    mode_search,
    pilot,
    settings_file,
    target_driver,
)
from tfp_sgmcmc.adaptation.coordinates import whiten_at_mode, whiten_by_covariance
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import (
    ImproperError,
    NotNearGaussian,
    check_proper,
    with_prior_curvature,
)
from tfp_sgmcmc.adaptation.langevin import (
    FRICTION,
    MOST_MEAN,
    MOST_WORST,
    STEP_SIZES,
    BatchAndStep,
    ExcessVariance,
    batch_sizes,
    cheapest,
    excess_of,
    excess_of_parameters,
    excess_variance_factor,
    guarded_share,
    safe_settings,
    temperature,
)
from tfp_sgmcmc.adaptation.pilot import Gradients, convergence, gradient_fit
from tfp_sgmcmc.adaptation.settings import Choices, PreparedKernel, SampleCall
from tfp_sgmcmc.adaptation.timed_hmc import leapfrog
from tfp_sgmcmc.sampling.result import Flag
from tfp_sgmcmc.storage import npz
from tfp_sgmcmc.targets.control_variates.control_variate import RemainderCovariance
from tfp_sgmcmc.targets.laplace import quadratic
from tfp_sgmcmc.targets.laplace.quadratic import Hessians

tfd = tfp.distributions
RNG = np.random.default_rng(0)
X = RNG.normal(size=[300, 3]).astype(np.float32)
Y = (RNG.random(300) < 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.5]))).astype(np.float32)


def regression(data: Any = (X, Y), **options: Any) -> sgmcmc.MinibatchLogProb:
    return sgmcmc.MinibatchLogProb(
        lambda w: tf.reduce_sum(tfd.Normal(tf.zeros([], w.dtype), 1.0).log_prob(w), axis=-1),
        lambda w, batch: tfd.Bernoulli(tf.linalg.matvec(batch[0], w)).log_prob(batch[1]),
        data,
        10,
        **options,
    )


def scheme(h: float, friction: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the matrix of a step of BAOAB for N(0, 1), and its noises from O and from B."""
    c = np.exp(-friction * h)
    a, b = np.array([[1, h / 2], [0, 1]]), np.array([[1, 0], [-h, 1]])
    of_o, of_b = b @ a @ [[0.0], [np.sqrt(1 - c**2)]], np.array([[0.0], [h]])
    return b @ a @ np.diag([1, c]) @ a, of_o @ of_o.T, of_b @ of_b.T


@pytest.mark.parametrize("h", STEP_SIZES)
def test_the_temperature_takes_the_mean_excess_off(h: float) -> None:
    """The stationary covariance with noise C of parameters theta = L z, for N(0, I) in z.

    Negative control: the mean over whitened directions in place of parameters.
    """
    factor, root = np.tril(RNG.normal(size=[3, 3])) + 2 * np.eye(3), RNG.normal(size=[3, 3])
    noise, n = root @ root.T, 10
    one_step, by_o, by_b = scheme(h, FRICTION)
    step, of_o, of_b = np.kron(one_step, np.eye(3)), np.kron(by_o, np.eye(3)), np.kron(by_b, noise)

    def ratio(mean: float) -> float:
        t = temperature(mean, 0.0, 0.01)
        z = scipy.linalg.solve_discrete_lyapunov(step, t * of_o + of_b / n)[:3, :3]
        return float(np.mean(np.diag(factor @ z @ factor.T) / np.diag(factor @ factor.T)))

    np.testing.assert_allclose(ratio(excess_of_parameters(noise, factor, h, n)), 1.0, rtol=1e-12)
    assert abs(ratio(excess_of(noise, h, n).mean) - 1) > 1e-4


@pytest.mark.parametrize("h", STEP_SIZES)
def test_draws_are_nearly_independent(h: float) -> None:
    """By the exact law, for means and, by squared correlations, for variances."""
    step, of_o, _ = scheme(h, FRICTION)
    covariance = scipy.linalg.solve_discrete_lyapunov(step, of_o)
    between = np.linalg.matrix_power(step, BatchAndStep(100, h, 0.0, 0.0).steps_per_draw)
    powers = (np.linalg.matrix_power(between, k) for k in range(1, 50))
    correlations = np.array([(x @ covariance)[0, 0] / covariance[0, 0] for x in powers])
    assert 1 / (1 + 2 * correlations.sum()) > 0.98
    assert 1 / (1 + 2 * (correlations**2).sum()) > 0.91


@pytest.mark.parametrize("importance", [None, pytest.param("pilot", marks=pytest.mark.thorough)])
def test_the_noise_of_a_minibatch_is_enumerated(importance: Any) -> None:
    """C / n is the covariance of the estimate of n = 1, over all examples, in NumPy."""
    target = regression(dtype="float64")
    center, _ = sgmcmc.find_center(target, tf.zeros([3], tf.float64))
    control = sgmcmc.ControlVariate(target, center, order=2, importance=importance)
    states = center + 0.3 * RNG.normal(size=[2, 3])
    found = RemainderCovariance(control, 2)(states.numpy())
    q = control.second_order.probabilities
    q = np.full(300, 1 / 300) if q is None else q

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    x, expected = X.astype(np.float64), 0.0
    hessian = control.second_order.quadratic.hessian.numpy()
    for theta in states.numpy():
        d = theta - center.numpy()
        w = min(1.0, 1.5 * 3 / (d @ -hessian @ d))
        p = sigmoid(x @ center.numpy())
        s = (p - sigmoid(x @ theta) + w * p * (1 - p) * (x @ d))[:, np.newaxis] * x
        mean = s.sum(axis=0)
        expected += ((s / q[:, np.newaxis]).T @ s - np.outer(mean, mean)) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


def test_the_choice_is_the_cheapest_of_all_that_are_safe() -> None:
    """Compared with a search over the whole grid, for noises over seven orders of magnitude."""
    for scale in np.logspace(-2, 5, 15):
        eigenvalues = scale * np.array([1.0, 0.1, 0.01])
        settings = safe_settings(np.diag(eigenvalues), 5000)
        grid = [
            (n, h)
            for h in (1.0, 0.5, 0.25)
            for n in batch_sizes(5000)
            if excess_variance_factor(h) * eigenvalues.mean() / n <= MOST_MEAN
            and excess_variance_factor(h) * eigenvalues.max() / n <= MOST_WORST
        ]
        for per_example in (1e-9, 1e-5):  # the overhead of a step dominates, or its examples

            def seconds(n: int, per_example: float = per_example) -> float:
                return 1e-5 + per_example * n

            found = cheapest(settings, seconds)
            if not grid:
                assert found is None
                continue
            best = min(round(2 / h) * seconds(n) for n, h in grid)
            assert found is not None
            assert found.steps_per_draw * seconds(found.batch_size) == best


def test_only_sizes_that_may_win_are_timed() -> None:
    settings = [BatchAndStep(100, h, 0.0, 0.0) for h in (1.0, 0.5, 0.25)]
    asked = []
    assert cheapest(settings, lambda n: float(asked.append(n) or 1.0)) == settings[0]
    assert asked == [100]


@pytest.mark.parametrize("dim", [1, 10, 100, pytest.param(1000, marks=pytest.mark.thorough)])
def test_hmc_accepts_most_of_a_standard_normal(dim: int) -> None:
    h, count = leapfrog(dim)
    assert 1.2 < h * count < 1.8
    q, p = RNG.normal(size=[2, 4000, dim])
    before = (q**2 + p**2).sum(axis=-1) / 2
    for _ in range(count):
        p = p - h / 2 * q
        q = q + h * p
        p = p - h / 2 * q
    accepted = np.minimum(1, np.exp(before - (q**2 + p**2).sum(axis=-1) / 2)).mean()
    assert 0.75 < accepted < 0.99


class Draws:
    """Draws whose law is known, with the gradients of N(0, I)."""

    def __init__(self, width: float = 1.0, shift: float = 0.0, stuck: float = 0.0):
        rng = np.random.default_rng(1)
        z = width * rng.standard_normal([500, 4, 20]) + shift
        self.z = z + stuck * rng.standard_normal([4, 20])

    def flags(self) -> list[str]:
        found = convergence(self.z)
        fit = gradient_fit(self.z, -self.z)
        return [
            *draw_checks.flags_of_convergence(found, 400),
            *draw_checks._flags_of_gradients(fit),
        ]


def test_sound_draws_have_no_flag() -> None:
    assert Draws().flags() == []
    assert Draws(width=1.01).flags() == []


@pytest.mark.parametrize(
    "options, told",
    [
        ({"width": 1.05}, "too wide"),
        ({"width": 0.95}, "too narrow"),
        ({"shift": 0.15}, "means are off"),
        ({"stuck": 0.5}, "chains disagree"),
    ],
)
def test_wrong_draws_are_flagged(options: dict[str, float], told: str) -> None:
    """Negative controls: a width 5 % off, means 0.15 sd off, chains that never met."""
    assert any(told in line for line in Draws(**options).flags())


def powers_of_an_hour(degree: int) -> tuple[np.ndarray, sgmcmc.MinibatchLogProb]:
    hour = np.random.default_rng(0).uniform(0, 24, 50)
    powers = np.stack([hour**k for k in range(degree + 1)], axis=1).astype(np.float32)

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        return -((batch[1] - tf.linalg.matvec(batch[0], w)) ** 2) / 2

    return powers, sgmcmc.MinibatchLogProb(
        lambda w: tf.zeros_like(w[..., 0]), log_likelihood, (powers, 0 * hour), dtype="float32"
    )


def test_curvature_below_rounding_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the eighth power the least eigenvalue of the scaled Hessian is 4e-11."""
    powers, target = powers_of_an_hour(8)
    monkeypatch.setattr(coordinates, "_find_center", lambda *_: (tf.zeros([9]), 1))
    factor = whiten_at_mode(target, tf.zeros([9])).factor
    assert factor is not None
    roots = powers.astype(np.float64) @ factor
    np.testing.assert_allclose(roots.T @ roots, np.eye(9), atol=0.01)


def test_a_center_that_is_off_along_a_flat_direction_is_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By 1.3 standard deviations, where gradients in single precision do not tell. The mode is 0.

    The Hessian that is evaluated anew tells, and a Newton step by it leads to the mode.
    """
    powers, target = powers_of_an_hour(8)
    root = np.linalg.qr(powers.astype(np.float64), mode="r")
    flattest = np.linalg.solve(root, np.eye(9)[-1])
    start = (tf.constant(1.3 * flattest, tf.float32), 1)
    monkeypatch.setattr(coordinates, "_find_center", lambda *_: start)
    found = whiten_at_mode(target, tf.zeros([9]))
    assert np.linalg.norm(root @ found.center.numpy()) < 0.1


def test_curvature_that_rounding_hides_has_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the twelfth power it is 6e-16, which products with flat directions do not tell."""
    _, target = powers_of_an_hour(12)
    monkeypatch.setattr(coordinates, "_find_center", lambda *_: (tf.zeros([13]), 1))
    with pytest.raises(NotNearGaussian, match="rounding in float32 hides") as error:
        whiten_at_mode(target, tf.zeros([13]))
    assert "dtype='float64'" in (error.value.remedy or "")


def test_draws_that_fail_in_degenerate_coordinates_have_the_remedy_of_rounding() -> None:
    """Two columns that are nearly equal; negative control: two that are not."""
    for least, told in ((1e-10, True), (1e-3, False)):
        precision = np.array([[1.0, 1 - least], [1 - least, 1.0]])
        center = tf.zeros([2], tf.float64)
        found = coordinates.Coordinates(regression(), None, center, None, precision, "hessian", 1)
        reason = NotNearGaussian("HMC is hardly ever accepted")
        assert (coordinates.with_known_remedy(reason, found) is not reason) == told
    assert coordinates.with_known_remedy(reason, None) is reason


def test_a_known_remedy_replaces_guesses() -> None:
    found = convergence(Draws(stuck=0.5).z)
    (guess,), (told,) = (
        draw_checks.flags_of_convergence(found, 0),
        draw_checks.flags_of_convergence(found, 0, "Scale it."),
    )
    assert "funnel" in guess.cause and "Scale it." not in guess
    assert "funnel" not in told and told.remedy == "Scale it."


def test_constants_are_no_draws() -> None:
    """A Cholesky factor of a correlation matrix has zeros and a one. Chains that stopped have none.

    Negative control: with the constants, R-hat is infinite.
    """
    factor = np.zeros([500, 4, 2, 2])
    factor[..., 0, 0], factor[..., 1, :] = 1, Draws().z[..., :2]
    varies = draw_checks._varying({"factor": factor, "x": Draws().z})
    np.testing.assert_array_equal(varies[0], [[False, False], [True, True]])
    flat = factor.reshape(500, 4, 4)
    assert convergence(flat[..., varies[0].ravel()]).rhat < 1.02
    assert np.isinf(convergence(flat).rhat)
    assert draw_checks._varying(np.zeros([9, 4, 2]))[0].all()
    offset = np.array([[np.nan, np.nan], [0.25, -0.5]])
    assert draw_checks._largest(varies[:1], offset) == 0.5


def test_independent_draws_that_stick_are_left_to_nuts() -> None:
    draws = PreparedKernel(None, None, None, None, (), certify=lambda x: None)  # ty: ignore
    stuck = draw_checks.DrawCheck([Flag("wrong", "few", "")], "", 6.0, {})
    assert target_driver.is_misfit(draws, stuck)
    assert target_driver.is_misfit(draws, stuck._replace(lacking=0.5))  # the weights disagree
    assert not target_driver.is_misfit(draws, stuck._replace(lacking=2.0))
    assert not target_driver.is_misfit(dataclasses.replace(draws, certify=None), stuck)


def test_trajectories_that_diverge_are_made_again_with_a_smaller_step() -> None:
    """They are, if nothing else is wrong and it does not take long."""
    diverging = np.arange(400).reshape(100, 4) < 20
    flag = draw_checks._flag_of_divergences(diverging)
    assert flag.grade == "wrong" and "20 of 400 trajectories diverged" in flag
    settings = {"step_size": 0.5}, None, "covariance", np.zeros(1), None, np.zeros([4, 1]), 0, 0, {}
    choices = Choices("NoUTurnSampler", *settings)
    kernel = tfp.mcmc.NoUTurnSampler(lambda x: -(x**2) / 2, 0.5)
    prepared = PreparedKernel(kernel, None, None, choices, ())
    found = draw_checks.DrawCheck([flag], "", 0.5, {}, only_diverges=True)
    better = target_driver.next_attempt(prepared, None, 100, found, seconds=1.0)
    assert better is not None and better.choices.arguments == {"step_size": 0.2}
    assert better.kernel.parameters["step_size"] == 0.2
    assert target_driver.next_attempt(prepared, None, 100, found, seconds=30.0) is None


def test_slow_draws_are_made_again_with_more_steps() -> None:
    """Chains go on from their end, but independent draws begin anew, and need their burn-in."""
    choices = Choices("IndependentMetropolis", {}, None, "covariance", None, None, None, 7, 1, {})
    prepared = PreparedKernel(None, None, None, choices, ())
    found = draw_checks.DrawCheck([], "", 2.5, {})
    better = target_driver.next_attempt(prepared, None, 100, found, seconds=1.0)
    assert better is not None
    assert (better.choices.num_burnin_steps, better.choices.num_steps_between_results) == (21, 5)
    of_chains = dataclasses.replace(prepared, gradients=lambda z, seed: z)
    better = target_driver.next_attempt(of_chains, None, 100, found, seconds=1.0)
    assert better is not None and better.choices.num_burnin_steps == 0


def test_the_search_goes_on_nearer_to_the_origin() -> None:
    """Negative control: the search alone stays where the log posterior is flat."""
    target = sgmcmc.MinibatchLogProb(
        lambda x: 0.0 * x,
        lambda x, batch: -((tf.minimum(x[..., None], 10.0) - batch) ** 2) / 2,
        X[:, 0],
    )
    far = tf.constant(15.0)
    with pytest.warns(UserWarning, match="find_center must end near a mode"):
        assert float(sgmcmc.find_center(target, far)[0]) > 10
    assert float(whiten_at_mode(target, far).center) == pytest.approx(X[:, 0].mean(), abs=0.01)


def test_noise_that_grew_is_flagged() -> None:
    assert (
        draw_checks._flag_of_noise(ExcessVariance(0.03, 0.08), ExcessVariance(0.02, 0.06)) is None
    )
    assert "grew" in draw_checks._flag_of_noise(
        ExcessVariance(0.09, 0.1), ExcessVariance(0.02, 0.06)
    )
    assert "grew" in draw_checks._flag_of_noise(
        ExcessVariance(0.02, 0.3), ExcessVariance(0.02, 0.06)
    )
    assert guarded_share(np.array([[2.0, 0.0], [0.1, 0.2]])) == 0.5


@pytest.mark.parametrize(
    "tail, is_proper",
    [
        (lambda x: -(x**2) / 2e8, True),  # hardly curved, but not flat
        (lambda x: -tf.abs(x), True),
        (lambda x: -tf.math.log1p(x**2), True),
        (lambda x: -0.45 * tf.math.log1p(x**2), False),  # falls like t^-0.9
        (lambda x: 0 * x, False),
        (lambda x: -tf.nn.softplus(-x), False),  # flat to one side
    ],
)
def test_a_posterior_without_a_finite_integral_is_told(tail: Any, is_proper: bool) -> None:
    def log_prob(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tail(b) - tf.reduce_sum(a**2, axis=-1)

    center, direction = {"a": tf.zeros([2]), "b": tf.zeros([])}, np.array([0.0, 0.0, 1.0])
    if is_proper:
        check_proper(log_prob, center, direction)
        return
    with pytest.raises(ImproperError, match="changes .*b.* most"):
        check_proper(log_prob, center, direction)


def test_a_wrong_sign_is_told_as_such() -> None:
    with pytest.raises(ImproperError, match="rises by .* Look for a wrong sign"):
        check_proper(lambda b: b**2, tf.constant(0.0), np.array([1.0]))


def test_a_model_that_raises_far_away_is_proper_there() -> None:
    """The inverse of a matrix raises where it underflows to zero."""

    def log_prob(rho: tf.Tensor) -> tf.Tensor:
        matrix = tf.exp(-(rho**2))[..., tf.newaxis, tf.newaxis]  # becomes zero
        return -tf.linalg.inv(matrix)[..., 0, 0]

    with pytest.raises(tf.errors.InvalidArgumentError):
        log_prob(tf.constant(1e3))
    check_proper(log_prob, tf.constant(0.0), np.array([0.1]))

    def broken(rho: tf.Tensor) -> tf.Tensor:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        check_proper(broken, tf.constant(0.0), np.array([0.1]))


def test_no_line_in_the_neck_of_a_funnel_is_judged() -> None:
    """Effects that agree with their mean to 1e-12 may move by 1e9 of their deviations.

    Negative control: a start in the neck.
    """

    def log_prob(mu: tf.Tensor, theta: tf.Tensor) -> tf.Tensor:
        return -((mu - theta) ** 2) * 1e24 - mu**2

    at, direction = tf.constant(0.1, tf.float64), np.full(2, 1e-12)
    center = {"mu": at, "theta": at}
    check_proper(log_prob, center, direction, {"mu": tf.zeros([]), "theta": tf.zeros([])})
    with pytest.raises(ImproperError):
        check_proper(log_prob, center, direction, center)


def test_the_mode_of_redundant_parameters_is_refused() -> None:
    target = sgmcmc.MinibatchLogProb(
        lambda w: tf.zeros_like(w[..., 0]),
        lambda w, x: -((tf.reduce_sum(w, axis=-1, keepdims=True) - x) ** 2),
        X[:, 0],
        10,
    )
    with pytest.raises(ImproperError, match="finite integral"):
        whiten_at_mode(target, tf.zeros([2]))


def test_words_fit_the_reason() -> None:
    shape = fallback._caveat(NotNearGaussian("draws went far"))
    assert "funnel" in shape and "draws went far" in shape
    kinks = fallback._caveat(NotNearGaussian("there are no second derivatives", has_shape=False))
    assert "funnel" not in kinks and "no second derivatives" in kinks


def test_gradients_come_in_blocks() -> None:
    z = RNG.normal(size=[53, 2, 3]).astype(np.float32)
    normal = sgmcmc.FullDataLogProb(lambda x: -tf.reduce_sum(x**2, axis=-1) / 2)
    np.testing.assert_allclose(Gradients(normal, False)(z, tf.constant([0, 1])), -z, rtol=1e-6)


def other_mode_from(at: Any, starts: np.ndarray) -> mode_search.OtherMode | None:
    return mode_search.find_other_mode(at, mode_search.climb(at, starts))


def test_another_mode_is_found() -> None:
    two = tfd.MixtureSameFamily(
        tfd.Categorical(probs=[0.5, 0.5]), tfd.Normal(np.float32([0.0, 20.0]), np.float32(1.0))
    )

    def of(law: Any) -> Any:
        def values(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = tfp.math.value_and_gradient(
                lambda z: law.log_prob(z[..., 0]), tf.constant(z, tf.float32)
            )
            return found[0].numpy(), found[1].numpy()

        return values

    starts = mode_search.far_starts(1, np.zeros(1), np.full([1, 1], 10.0), 0)
    found = other_mode_from(of(two), starts)
    assert found is not None
    np.testing.assert_allclose([found.log_prob, *found.z], [0.0, 20.0], atol=0.1)
    one = tfd.Normal(0.0, 1.0)
    assert other_mode_from(of(one), starts) is None


def test_a_flat_shelf_is_no_mode() -> None:
    """Climbs stop on it, 3 nats below the mode, but the way from there to the mode never dips."""

    def shelf(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        height = np.tanh(z**2 / 4)
        return -3 * height[:, 0], -1.5 * z * (1 - height**2)

    starts = mode_search.far_starts(1, np.zeros(1), np.full([1, 1], 10.0), 0)
    assert other_mode_from(shelf, starts) is None

    def with_mode(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # the negative control
        value, slope = shelf(z)
        bump = 2 * np.exp(-((z - 20) ** 2) / 50)
        return value + bump[:, 0], slope - bump * (z - 20) / 25

    found = other_mode_from(with_mode, starts)
    assert found is not None and abs(abs(found.z[0]) - 20) < 0.5


@pytest.fixture(
    scope="module", params=[pytest.param("independent", marks=pytest.mark.thorough), "chain"]
)
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a run of 400 results in two parts, in a directory, with either kind of draws."""
    if request.param == "chain":
        patch = pytest.MonkeyPatch()
        patch.setattr(independent_draws, "_MOST_ENTRIES", 0)
        patch.setattr(kernel_selector, "_FEWEST_ENTRIES", 0)
        request.addfinalizer(patch.undo)
        patch.setattr(pilot, "_TIMED_SECONDS", 2e-3)  # which setting is cheaper matters little
        patch.setattr(langevin, "_PILOT_DRAWS", 200)
    folder = tmp_path_factory.mktemp("automatic") / "run"
    options: dict[str, Any] = {"seed": 3, "progress_bar": False, "directory": folder}
    options["min_ess"] = 100  # of 400 draws and more, whose effective sizes are known to a fifth
    options["jit_compile"] = False  # compiling takes longer than these steps
    problem = regression()
    first = sgmcmc.sample(problem, tf.zeros([3]), 100, **options)
    assert first.num_results == 100
    return sgmcmc.sample(problem, tf.zeros([3]), 400, **options)


def test_a_run_goes_on_and_is_repeated_by_hand(run: Any) -> None:
    """The program in `choices` takes the same steps, to the last bit, in one go."""
    choices = run.choices
    assert run.is_trusted and run.states.shape == (400, 4, 3)
    assert len(run.explanation) >= 4 and choices.sampler in str(run)
    assert str(run.explanation).split("\n") == [*run.explanation]
    kernel: Any
    start, bijector = choices.start, run.bijector
    if choices.sampler == "IndependentMetropolis":
        start = np.tile(choices.center, [4, 1])
        kernel = sgmcmc.IndependentMetropolis(
            regression(), choices.center, choices.hessian, **choices.arguments
        )
    elif choices.batch_size is None:  # which is cheaper depends on the machine
        whitened, bijector = sgmcmc.whiten(regression(), choices.center)
        kernel = tfp.mcmc.HamiltonianMonteCarlo(whitened, **choices.arguments)
    else:
        whitened, bijector = sgmcmc.whiten(regression(), choices.center)
        whitened = whitened.with_minibatches(choices.batch_size)
        control = sgmcmc.ControlVariate(whitened, tf.zeros([3]), order=2, importance="pilot")
        kernel = sgmcmc.UnderdampedLangevin(control, **choices.arguments)
    by_hand = sgmcmc.sample_chain(
        kernel,
        start,
        400,
        seed=choices.seed,
        num_burnin_steps=choices.num_burnin_steps,
        num_steps_between_results=choices.num_steps_between_results,
        jit_compile=False,
        progress_bar=False,
        preflight_check=False,
    )
    draws = bijector.forward(by_hand.states).numpy()
    np.testing.assert_allclose(np.asarray(run.states), draws, rtol=1e-5, atol=1e-6)
    ends = (tree.flatten(x.final_kernel_results) for x in (run, by_hand))
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("is_usable", [True, False])
def test_a_precision_is_judged_whatever_its_units(is_usable: bool) -> None:
    """A matrix of rank 1 has a least eigenvalue of 1e-16 by rounding, and no inverse."""
    units, correlation = np.array([3e7, 1.0]), 0.5 if is_usable else 1.0
    precision = np.outer(units, units) * [[1, correlation], [correlation, 1]]
    found = Hessians(-precision, -precision, np.zeros(2))
    if is_usable:
        np.testing.assert_allclose(with_prior_curvature(found, np.zeros(2)), precision)
    else:
        assert np.linalg.eigvalsh(precision)[0] > 0
        with pytest.raises(NotNearGaussian):
            with_prior_curvature(found, np.zeros(2))


@pytest.mark.parametrize("num_examples", [6_000, 7_000])
def test_minibatches_of_few_numbers_are_not_tried(
    num_examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is N D = 20,000."""
    monkeypatch.setattr(kernel_selector, "_FEWEST_ENTRIES", 20_000)  # a fixture has another
    found = types.SimpleNamespace(factor=np.eye(3))
    whole: Any = object()
    monkeypatch.setattr(kernel_selector, "independent_draws", lambda *_: (None, found))
    monkeypatch.setattr(kernel_selector.KernelSelector, "_at_heaviest_mode", lambda *_: found)
    monkeypatch.setattr(kernel_selector.KernelSelector, "with_all_examples", lambda *_: whole)

    class Tried(Exception):
        pass

    def try_minibatches(*_: Any) -> None:
        raise Tried

    monkeypatch.setattr(kernel_selector, "LangevinSelector", try_minibatches)
    problem: Any = types.SimpleNamespace(num_examples=num_examples, bijector=None)
    select = kernel_selector.KernelSelector(
        problem, tf.zeros([3]), 4, tf.constant([0, 1]), jit_compile=False
    )
    if num_examples * 3 < 20_000:
        assert select(100) is whole and "was not tried" in select._runs.dropped[0]
    else:
        with pytest.raises(Tried):
            select(100)


@pytest.mark.thorough
def test_coordinates_by_the_covariance_of_draws() -> None:
    """Draws have mean 0 there, and the covariance that the formula leaves; not so before."""
    problem = regression()
    at_mode = whiten_at_mode(problem, tf.zeros([3]))
    scale = np.array([[2.0, 0, 0], [1, 1, 0], [0, 0, 0.5]])
    z = 1 + np.random.default_rng(0).standard_normal([50, 4, 3]) @ scale.T
    found = whiten_by_covariance(problem, at_mode, z)
    theta = at_mode.bijector.forward(tf.constant(z, tf.float32))
    draws = found.bijector.inverse(theta).numpy().reshape(-1, 3)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=1e-4)
    covariance = np.cov(z.reshape(-1, 3), rowvar=False)
    drawn = (200 * covariance + np.trace(covariance) * np.eye(3)) / 203
    left = np.linalg.eigvals(np.linalg.solve(drawn, covariance))
    whitened = np.linalg.eigvalsh(np.cov(draws, rowvar=False))
    np.testing.assert_allclose(whitened, np.sort(left), rtol=1e-3)
    assert np.abs(np.linalg.eigvalsh(covariance) - 1).max() > 1  # before
    np.testing.assert_allclose(
        found.precision @ found.factor @ found.factor.T, np.eye(3), atol=1e-8
    )


def test_choices_survive_the_file(run: Any) -> None:
    seed = sgmcmc.random.as_seed(3)
    found = settings_file.load(run.directory, regression(), tf.zeros([3]), seed, 4, False)
    assert found is not None
    assert found.choices.program() == run.choices.program()
    np.testing.assert_array_equal(found.choices.start, run.choices.start)
    with pytest.raises(ValueError, match="seed must be .*the seed of the run"):
        settings_file.load(
            run.directory, regression(), tf.zeros([3]), sgmcmc.random.as_seed(4), 4, False
        )
    with pytest.raises(ValueError, match="initial_state must have parts"):
        settings_file.load(run.directory, regression(), tf.zeros([2]), seed, 4, False)
    one_changed = X + np.float32(1e-3) * (np.arange(len(X)) == 5)[:, np.newaxis]
    with pytest.raises(ValueError, match="It has data: .*, but here"):
        settings_file.load(
            run.directory, regression((one_changed, Y)), tf.zeros([3]), seed, 4, False
        )
    with pytest.raises(ValueError, match="num_chains: 4, but here 6"):
        sgmcmc.sample(
            regression(),
            tf.zeros([3]),
            400,
            num_chains=6,
            directory=run.directory,
            jit_compile=False,
        )


@pytest.mark.parametrize(("size", "given", "expected"), [
    (40, None, False), (40, True, True), (8, None, True), (8, False, False),
])  # fmt: skip
def test_xla_is_left_out_where_lapack_is_faster(size: int, given: Any, expected: bool) -> None:
    """A Gaussian process; a matrix of 40 rows takes XLA on a CPU longer, one of 8 does not."""
    x = tf.linspace(0.0, 3.0, size)
    squares = (x - x[:, tf.newaxis]) ** 2

    def log_likelihood(scale: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        covariance = tf.exp(-squares / scale[..., None, None, None] ** 2) + tf.eye(size)
        return tfd.MultivariateNormalTriL(scale_tril=tf.linalg.cholesky(covariance)).log_prob(y)

    one_row = np.ones([1, size], np.float32)
    target = sgmcmc.MinibatchLogProb(tfd.Normal(0.0, 1.0).log_prob, log_likelihood, one_row, 1)
    settings = target_driver.TargetSettings(
        SampleCall(target, tf.constant(1.0), 10, num_chains=2, jit_compile=given), None
    )
    assert settings.jit_compile is expected


def test_a_run_goes_on_with_or_without_xla_as_it_began(run: Any, tmp_path: Path) -> None:
    """It began without; by itself this model would be compiled."""
    old, new = (
        target_driver.TargetSettings(
            SampleCall(regression(), tf.zeros([3]), 400, progress_bar=False), folder
        )
        for folder in (run.directory, tmp_path)
    )
    assert not old.jit_compile and old.load(None) is not None
    assert new.jit_compile and new.load(None) is None


@pytest.fixture
def saved(tmp_path: Path) -> PreparedKernel:
    """Returns a kernel whose choices are in `tmp_path`."""
    choices = Choices(
        sampler="HamiltonianMonteCarlo",
        arguments={"step_size": 0.5, "num_leapfrog_steps": 3},
        batch_size=None,
        coordinates="hessian",
        center=np.zeros(3, np.float32),
        hessian=None,
        start=np.ones([4, 3], np.float32),
        num_burnin_steps=0,
        num_steps_between_results=1,
        milliseconds={},
    )
    flags = (Flag("doubt", "Something was not checked.", "Check it."),)
    prepared = PreparedKernel(None, None, Gradients(None, False), choices, ("why",), flags)
    seed = sgmcmc.random.as_seed(3)
    settings_file.save(tmp_path, prepared, seed, regression(), tf.zeros([3]), True)
    return prepared


def test_choices_show_the_settings_that_apply(saved: PreparedKernel) -> None:
    choices = saved.choices
    text, page = str(choices), choices._repr_html_()
    assert "  arguments: step_size=0.5, num_leapfrog_steps=3" in text
    assert "batch_size" not in text and "milliseconds" not in text  # they do not apply
    assert "  start: array [4, 3]" in text and "\n  z, bijector = " in text
    assert "<table" in page and "array [4, 3]" in page and "z, bijector = " in page


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("_VERSION", 6, "format version 6. Received: version 3. "),
        ("_PLAIN", settings_file._PLAIN | {"friction"}, "version 3, lacks friction. "),
        ("_PLAIN", settings_file._PLAIN - {"seed"}, "version 3, has the unknown seed. "),
    ],
)
def test_choices_of_another_format_are_refused(
    name: str, value: Any, found: str, saved: PreparedKernel, tmp_path: Path, monkeypatch: Any
) -> None:
    del saved
    monkeypatch.setattr(settings_file, name, value)
    with pytest.raises(ValueError, match=re.escape(found)) as error:
        settings_file.load(tmp_path, regression(), tf.zeros([3]), None, 4)
    assert str(tmp_path / "choices.npz") in str(error.value)
    assert "use a new directory" in str(error.value)


def test_a_run_whose_choices_were_deleted_is_told(tmp_path: Path) -> None:
    kernel = sgmcmc.SGLD(sgmcmc.FullDataLogProb(lambda x: -tf.reduce_sum(x**2, axis=-1)), 0.1)
    options = {"num_results": 10, "progress_bar": False, "directory": tmp_path}
    sgmcmc.sample_chain(kernel, tf.zeros([4, 3]), **options)
    with pytest.raises(ValueError, match="has no choices.npz. It holds a run of a kernel"):
        sgmcmc.sample(regression(), tf.zeros([3]), **options)


def test_choices_without_a_version_are_read(
    saved: PreparedKernel, tmp_path: Path, monkeypatch: Any
) -> None:
    """Release 0.2.0 wrote none."""
    with npz.reading(tmp_path / "choices.npz", "save") as (header, array):
        arrays = {name: array(name, "float32") for name in ("center0", "start")}
    assert header.pop("version") == 3
    del header["call"]
    header["flags"] = [" ".join(flag[1:]) for flag in header["flags"]]
    npz.write(tmp_path / "choices.npz", header, arrays)
    monkeypatch.setattr(
        settings_file,
        "rebuild",
        lambda _, __, choices, ___: dataclasses.replace(saved, choices=choices),
    )
    found = settings_file.load(tmp_path, regression(), tf.zeros([3]), None, 4)
    assert found is not None
    assert found.flags == saved.flags and found.flags[0].grade == "wrong"
    assert found.lines == ("why",) and found.choices.program() == saved.choices.program()


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ("num_chains: 4, but here 6", {"num_chains": 6}),
        ("jit_compile: True, but here False", {"jit_compile": False}),
        ("initial_state: numbers", {"state": tf.ones([3])}),
        ("gradient of the log posterior", {"data": (X, 1 - Y)}),
        ("num_examples: 300, but here 299", {"data": (X[1:], Y[1:])}),
    ],
)
def test_a_run_cut_off_before_its_first_checkpoint_is_compared(
    told: str, options: dict[str, Any], saved: PreparedKernel, tmp_path: Path
) -> None:
    """The choices are in the directory then, and no checkpoint of the chain."""
    del saved
    given = {"state": tf.zeros([3]), "data": (X, Y), "num_chains": 4, "jit_compile": True} | options
    with pytest.raises(ValueError, match=re.escape(told)):
        settings_file.load(
            tmp_path,
            regression(given["data"]),
            given["state"],
            None,
            given["num_chains"],
            given["jit_compile"],
        )


def test_the_draws_have_the_moments_of_the_posterior(run: Any) -> None:
    """Against quadrature by importance sampling from Laplace's approximation, 200,000 draws.

    1600 nearly independent draws: means within 0.15 sd and sds within 12 % is six standard errors
    (false alarms below 1e-8). Laplace's approximation itself is not told apart here.
    """
    x, y = X.astype(np.float64), Y.astype(np.float64)
    center = np.asarray(run.choices.center, np.float64)
    p = 1 / (1 + np.exp(-x @ center))
    covariance = np.linalg.inv((x * (p * (1 - p))[:, np.newaxis]).T @ x + np.eye(3))
    factor = np.linalg.cholesky(covariance)
    z = np.random.default_rng(0).standard_normal([50_000, 3])
    w = center + z @ factor.T
    logits = w @ x.T
    log_prob = (y * logits - np.logaddexp(0, logits)).sum(axis=-1) - (w**2).sum(axis=-1) / 2
    log_weights = log_prob + (z**2).sum(axis=-1) / 2
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    mean = weights @ w
    sd = np.sqrt(weights @ (w - mean) ** 2)
    draws = np.asarray(run.states).reshape(-1, 3)
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean) / sd, 0.15)
    np.testing.assert_array_less(np.abs(draws.std(axis=0) / sd - 1), 0.12)


@pytest.mark.parametrize(
    "options, told",
    [
        ({"num_burnin_steps": 10}, "num_burnin_steps must be 0"),
        ({"num_steps_between_results": 1}, "num_steps_between_results must be 0"),
        ({"trace_fn": lambda *_: ()}, "trace_fn must be None"),
        ({"min_ess": 0}, "min_ess must be at least 1"),
        ({"num_chains": 0}, "num_chains must be at least 1"),
        ({"directory": ""}, "directory must be a path"),
    ],
)
def test_what_a_target_excludes(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        sgmcmc.sample(regression(), tf.zeros([3]), 10, **options)


def test_other_wrong_calls() -> None:
    control = sgmcmc.ControlVariate(regression(), tf.zeros([3]))
    with pytest.raises(ValueError, match="makes control variates itself"):
        sgmcmc.sample(control, tf.zeros([3]), 10)
    with pytest.raises(ValueError, match="without chain dimensions"):
        sgmcmc.sample(regression(), tf.zeros([4, 3]), 10)
    with pytest.raises(TypeError, match="target must be a MinibatchLogProb, .* Received: a str"):
        sgmcmc.sample("posterior", tf.zeros([3]), 10)


@pytest.mark.slow
def test_a_mixture_is_sampled_in_both_modes_and_a_funnel_in_other_coordinates() -> None:
    """800 draws, of v from N(0, 9): four standard errors of means, shares and deviations.

    Draws of the mixture are worth 640 independent ones at the acceptance of 0.8 or more.
    """

    def mixture(x: tf.Tensor) -> tf.Tensor:
        parts = tfd.Normal(np.float32([-6.0, 6.0]), np.float32(1.0))
        return tfd.MixtureSameFamily(tfd.Categorical(probs=[0.5, 0.5]), parts).log_prob(x)

    def funnel(v: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        scale = tf.exp(v / 2)[..., tf.newaxis]
        prior = tfd.Normal(tf.zeros([], v.dtype), 3.0).log_prob(v)
        return prior + tf.reduce_sum(tfd.Normal(tf.zeros([], x.dtype), scale).log_prob(x), axis=-1)

    result = sgmcmc.sample(mixture, tf.constant(0.5), 200, seed=0, progress_bar=False)
    x = np.asarray(result.states)
    assert result.is_trusted
    assert abs((x > 0).mean() - 0.5) < 4 * 0.5 / 640**0.5
    assert abs(np.abs(x).mean() - 6) < 4 / 640**0.5
    start = [tf.zeros([]), tf.zeros([9])]
    result = sgmcmc.sample(funnel, start, 200, seed=0, progress_bar=False)
    assert result.is_trusted and result.choices.noncentered == tuple(range(1, 10))
    v = np.asarray(result.states[0])
    assert abs(v.mean()) < 4 * 3 / 800**0.5 and abs(v.std() - 3) < 4 * 3 / 1600**0.5


@pytest.mark.slow
def test_draws_that_are_too_few_to_be_checked_settle_no_doubt() -> None:
    """The density rises without bound."""
    with (
        pytest.warns(UserWarning, match="These draws may miss parts of the posterior"),
        pytest.warns(UserWarning, match="Fewer than 50 draws of a chain cannot be checked"),
    ):
        result = sgmcmc.sample(tf.square, tf.constant(0.0), 5, seed=0, progress_bar=False)
    assert [flag.grade for flag in result.flags] == ["doubt", "doubt"]


@pytest.mark.parametrize(
    ("num_parameters", "most"), [(40, 39), pytest.param(4100, 4096, marks=pytest.mark.slow)]
)
def test_more_parameters_than_a_matrix_is_for(
    monkeypatch: pytest.MonkeyPatch, num_parameters: int, most: int
) -> None:
    """Low rank and HMC on all data: independent entries, of which data inform ten."""
    for module in (coordinates, quadratic):
        monkeypatch.setattr(module, "MOST_DIMENSIONS", most)
    x = RNG.normal(size=[200, 10]).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda w: -tf.reduce_sum(w**2, axis=-1) / 2,
        lambda w, batch: -2 * (tf.linalg.matvec(batch, w[..., :10]) - 1) ** 2,
        x,
        10,
    )
    options: dict[str, Any] = {"seed": 0, "progress_bar": False, "jit_compile": most == 4096}
    result = sgmcmc.sample(target, tf.zeros([num_parameters]), 300, **options)
    assert result.choices.coordinates == "low rank"
    covariance = np.linalg.inv(4 * x.astype(np.float64).T @ x + np.eye(10))
    draws = np.asarray(result.states).reshape(-1, num_parameters)
    # Means of squares of 1200 draws are within six standard errors.
    assert abs((draws[:, 10:] ** 2).mean() - 1) < 6 * (2 / draws[:, 10:].size) ** 0.5 + 0.01
    ratio = draws[:, :10].std(axis=0) / np.diag(covariance) ** 0.5
    np.testing.assert_array_less(np.abs(ratio - 1), 0.25)


@pytest.mark.slow
def test_large_data_without_second_derivatives_take_nogin(monkeypatch: Any) -> None:
    """Absolute errors, N = 5000, and no time for NUTS; the median's law is known for large N."""
    monkeypatch.setattr(fallback, "_MOST_SECONDS", 0.0)
    y = RNG.laplace(size=5000).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda m: -(m**2) / 200,
        lambda m, batch: -tf.abs(batch - m[..., tf.newaxis]),
        y,
        100,
    )
    with pytest.warns(UserWarning, match="not predicted"):
        result = sgmcmc.sample(target, tf.zeros([]), 200, seed=0, progress_bar=False)
    assert result.choices.sampler == "NOGIN"
    assert [flag.grade for flag in result.flags] == ["doubt"]  # the checks of draws pass
    draws = np.asarray(result.states)
    assert abs(draws.mean() - np.median(y)) < 0.05
    assert 0.5 < draws.std() * 5000**0.5 < 2
