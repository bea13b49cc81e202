"""Gradient estimates and Sigma come from the same minibatches and skip bad ones."""

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import PRECISION, GaussianMean
from tests.harness.graphs import largest_tensor, trace
from tests.harness.thermostats import NoisyQuadratic
from tfp_sgmcmc.covariance import Full, RunningMean, Solver
from tfp_sgmcmc.kernels.noisy_gradients import GradientNoise

MODEL = GaussianMean(num_examples=12)
BATCH, CHAINS = 4, 3
STATE = np.random.default_rng(0).standard_normal([CHAINS, 3])
SEEDS = [tf.constant([1, i]) for i in range(6)]


def before(covariance_state: Any) -> Any:
    """Returns kernel results with such a state of the estimator, on a target without state."""
    return types.SimpleNamespace(target_state=(), covariance_state=covariance_state)


def matrix(sigma: Any) -> np.ndarray:
    """Returns Sigma of each chain, `[CHAINS, 3, 3]`."""
    columns = [sigma.multiply(tf.constant(np.tile(e, [CHAINS, 1]))) for e in np.eye(3)]
    return np.stack(columns, axis=-1)


def sample_covariances(target: sgmcmc.MinibatchLogProb, seed: tf.Tensor) -> np.ndarray:
    """Returns the covariance of each chain's scores, which does not depend on the state."""
    indices = target.draw(seed, tf.range(BATCH), [CHAINS]).numpy()
    scores = MODEL.data[indices] @ PRECISION
    return np.stack([np.cov(s, rowvar=False) for s in scores])


def test_sigma_is_c_times_the_mean_of_the_past_and_the_gradient_that_of_the_target() -> None:
    target = MODEL.target(BATCH, tf.float64)
    noise = GradientNoise(target, "full", RunningMean())
    state, past = tf.constant(STATE), []
    own = noise.init(state, 1)
    for seed in SEEDS:
        estimate, sigma, own = noise.estimate(state, seed, before(own))
        plain = target.estimate(state, seed, with_scores=False)
        np.testing.assert_allclose(estimate.gradient, plain.gradient, rtol=1e-10)
        np.testing.assert_allclose(estimate.log_prob, plain.log_prob, rtol=1e-10)
        current = sample_covariances(target, seed)
        v = np.mean(past or [current], axis=0)
        np.testing.assert_allclose(matrix(sigma), target.noise_scale * v, rtol=1e-9)
        past.append(current)


def test_another_multiple_of_v() -> None:
    target = MODEL.target(BATCH, tf.float64)
    noise = GradientNoise(target, "full", RunningMean())
    state = tf.constant(STATE)
    scale = tf.constant([1.0, 2.0, 3.0], tf.float64)
    estimate = target.estimate(state, SEEDS[0])
    scale *= estimate.noise_scale
    sigma, _ = noise.learn(estimate, scale, state, noise.init(state, 1))
    expected = target.noise_scale * sample_covariances(target, SEEDS[0])
    np.testing.assert_allclose(
        matrix(sigma), np.arange(1.0, 4.0)[:, np.newaxis, np.newaxis] * expected, rtol=1e-9
    )


BAD = {5: np.nan, 7: np.inf}  # from an example's index to its gradient


def target_that_fails(bad: dict[int, float], prior: float = 0.0) -> sgmcmc.MinibatchLogProb:
    """Returns a target with bad gradients of some examples, or of the prior above theta_0 = 0."""

    def log_likelihood(theta: tf.Tensor, batch: Any) -> tf.Tensor:
        value = -0.5 * tf.reduce_sum((batch["x"] - theta[..., tf.newaxis, :]) ** 2, axis=-1)
        slope = tf.gather(tf.constant(slopes, value.dtype), batch["i"])
        return value + slope * theta[..., tf.newaxis, 0]

    def log_prior(theta: tf.Tensor) -> tf.Tensor:
        slope = tf.where(theta[..., 0] > 0, tf.constant(prior, theta.dtype), 0.0)
        return -0.5 * tf.reduce_sum(theta**2, axis=-1) + slope * theta[..., 0]

    slopes = [bad.get(i, 0.0) for i in range(12)]
    data = {"x": MODEL.data, "i": np.arange(12)}
    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, BATCH, dtype=tf.float64)


@pytest.mark.thorough
@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_minibatch_that_is_not_finite_is_not_hidden_and_teaches_nothing(jit: bool) -> None:
    """In that chain the gradient is as it is, Sigma is as before, and the minibatch is counted."""
    target = target_that_fails(BAD)
    noise, state = GradientNoise(target, "full", RunningMean()), tf.constant(STATE)
    own = noise.init(state, 1)
    basis = [tf.constant(np.tile(e, [CHAINS, 1])) for e in np.eye(3)]

    def step(seed: tf.Tensor, own: Any) -> Any:
        estimate, sigma, own = noise.estimate(state, seed, before(own))
        return estimate.gradient, tf.stack([sigma.multiply(e) for e in basis], axis=-1), own

    if jit:
        step = tf.function(step, jit_compile=True, autograph=False)
    past: list[list[np.ndarray]] = [[] for _ in range(CHAINS)]
    skipped, seen = np.zeros(CHAINS), set()
    for seed in SEEDS:
        gradient, sigma, own = step(seed, own)
        expected = target.estimate(state, seed).gradient.numpy()
        indices = target.draw(seed, tf.range(BATCH), [CHAINS]).numpy()
        seen |= {tuple(i for i in BAD if i in row) for row in indices}
        hit = np.any(np.isin(indices, list(BAD)), axis=-1)
        skipped += hit
        np.testing.assert_array_equal(np.isfinite(gradient).all(axis=-1), ~hit)
        np.testing.assert_allclose(gradient, expected, rtol=1e-10)
        for k in range(CHAINS):
            current = np.cov(MODEL.data[indices[k]], rowvar=False)
            known = past[k] or ([] if hit[k] else [current])
            v = np.mean(known, axis=0) if known else np.zeros([3, 3])
            np.testing.assert_allclose(sigma[k], target.noise_scale * v, rtol=1e-9, atol=1e-12)
            past[k] += [] if hit[k] else [current]
        np.testing.assert_array_equal(own.num_skipped, skipped)
    assert np.all(skipped > 0) and np.all(skipped < len(SEEDS))
    assert {(5,), (7,)} <= seen  # each of them also occurs alone


def test_a_prior_that_is_not_finite_is_not_hidden() -> None:
    """The prior does not depend on minibatches. The chain turns NaN, as it would without Sigma."""
    noise = GradientNoise(target_that_fails({}, prior=np.nan), "diag", RunningMean())
    state = tf.constant(np.abs(STATE) * [[1.0], [-1.0], [1.0]])
    estimate, _, own = noise.estimate(state, SEEDS[0], before(noise.init(state, 1)))
    np.testing.assert_array_equal(np.isnan(estimate.gradient[:, 0]), [True, False, True])
    np.testing.assert_array_equal(own.num_skipped, 0)


@pytest.mark.parametrize("mode", ["eager", pytest.param("xla", marks=pytest.mark.slow)])
def test_prepared_systems_are_solved_in_one_iteration(mode: str) -> None:
    """This holds at a step that factorises. Without preparation one iteration is not enough."""
    solver = Solver("lagged_cholesky", max_iterations=1, refactor_every=100)
    target = MODEL.target(BATCH, tf.float64, replacement=True)
    noise = GradientNoise(target, Full(solver=solver), RunningMean())
    state, v = tf.constant(STATE), tf.ones([CHAINS, 3], tf.float64)

    def solve(is_prepared: bool) -> Any:
        _, sigma, after = noise.estimate(state, SEEDS[0], before(noise.init(state, 1)))
        if is_prepared:
            sigma, after = noise.covariance.prepare(after, sigma, 2.0, 0.3)
        solution = sigma.solve(2.0, 0.3, v)
        return 2.0 * solution + 0.3 * sigma.multiply(solution) - v

    def residuals() -> list[tf.Tensor]:
        return [solve(is_prepared) for is_prepared in (True, False)]

    if mode == "xla":
        residuals = tf.function(residuals, jit_compile=True, autograph=False)
    exact = [np.linalg.norm(r) < 1e-9 for r in residuals()]
    assert exact == [True, False]


def test_exact_gradients_have_no_noise() -> None:
    target = sgmcmc.FullDataLogProb(lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1))
    noise, state = GradientNoise(target, "full", RunningMean()), tf.constant(STATE)
    estimate, sigma, _ = noise.estimate(state, SEEDS[0], before(noise.init(state, 1)))
    np.testing.assert_array_equal(estimate.gradient, -STATE)
    np.testing.assert_array_equal(matrix(sigma), 0)
    np.testing.assert_allclose(sigma.solve(2.0, 1.0, state), STATE / 2)


def test_noise_of_unknown_covariance_is_refused() -> None:
    with pytest.raises(ValueError, match="scores of .* a NoisyQuadratic, which gives none"):
        GradientNoise(NoisyQuadratic(1.0, 0.5), "full", RunningMean())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda: MODEL.target(1), r"needs at least 2 scores.*num_groups.* Received: 1"),
        (lambda: MODEL.target(4), "for a state of one part. Received: covariance='block'"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(target: Any, message: str) -> None:
    kernel = sgmcmc.NOGIN(target(), step_size=0.01, covariance="block")
    with pytest.raises(ValueError, match=message):
        kernel.bootstrap_results(tf.zeros([3]))


# What is held in memory

SIZE = 3000


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("covariance", "forms_one"),
    [
        pytest.param("diag", False, marks=pytest.mark.thorough),
        pytest.param("low_rank", False, marks=pytest.mark.thorough),
        ("full", True),
    ],
)
def test_no_matrix_of_all_entries_in_a_sampling_loop(covariance: str, forms_one: bool) -> None:
    """No tensor of NOGIN's graph on D = 3000 has D x D entries, except with `full` (control)."""
    data = np.random.default_rng(0).standard_normal([8, SIZE]).astype(np.float32)
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, x: -0.5 * (1.0 - tf.linalg.matvec(x, theta)) ** 2,
        data,
        batch_size=4,
    )
    kernel = sgmcmc.NOGIN(target, step_size=0.01, covariance=covariance)

    def run(state: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return tfp.mcmc.sample_chain(3, state, kernel=kernel, trace_fn=None, seed=seed)

    specs = tf.TensorSpec([SIZE]), tf.TensorSpec([2], tf.int32)
    largest = largest_tensor(trace(run, *specs))
    assert largest >= SIZE**2 if forms_one else largest <= 8 * 4 * SIZE  # 8 minibatches' scores
