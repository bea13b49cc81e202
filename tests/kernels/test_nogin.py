"""One step of NOGIN equals its docstring's formula, for the draws of that step.

theta += h/2 p/m;  p += k;  p = (T m - C) (T m + C)^-1 p;  p += k;  theta += h/2 p/m
k = h/2 g + lambda sqrt(T m) z,   C = T lambda^2 m + h^2/4 Sigma,   lambda^2 = tanh(friction h/2)
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import block_diag

import tfp_sgmcmc as sgmcmc
from tests.harness import by_hand
from tests.harness.by_hand import HAND, MASS, MODEL, MOMENTUM, SEED, START, flat, two_parts
from tests.harness.fast_settings import fast_settings
from tests.harness.known_scores import KnownScores
from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import Full, History, LowRank, RunningMean

BATCH = 4
SCALE = 12 * (12 - BATCH) / BATCH  # c
STEP, FRICTION = 0.2, 3.0


class Step(NamedTuple):
    theta: np.ndarray
    p: np.ndarray
    at: np.ndarray
    g: np.ndarray
    temperature: np.ndarray


def step(
    theta: np.ndarray,
    p: np.ndarray,
    z: np.ndarray,
    gradient: Any,
    covariance: Any,
    h: Any = STEP,
    friction: Any = FRICTION,
    mass: Any = 1.0,
    temperature: Any = 1.0,
) -> Step:
    """Takes a step by hand. `gradient` and `covariance` (Sigma) are functions of theta."""
    at = theta + h / 2 * p / mass
    g, sigma = gradient(at), covariance(at)
    kinetic = np.mean(p * (p + h / 2 * g) / mass, axis=-1)
    lambda2 = np.tanh(friction * h / 2)
    kick = h / 2 * g + np.sqrt(lambda2 * temperature * mass) * z
    heat = np.einsum("...i,ij->...ij", temperature * mass * np.ones_like(p), np.eye(3))
    quarter = np.reshape(np.square(h) / 4, [-1, 1, 1])
    noise = np.reshape(lambda2, [-1, 1, 1]) * heat + quarter * sigma
    p = np.linalg.solve(heat + noise, (p + kick)[..., np.newaxis])
    p = ((heat - noise) @ p)[..., 0] + kick
    return Step(at + h / 2 * p / mass, p, at, g, kinetic)


def averaged(
    estimates: list[np.ndarray], decay: float = 0.99, current: bool = False, power: float = 0.0
) -> Any:
    """Returns V at a step from the estimates of all minibatches, the current one last."""
    average = estimates[0]
    for t, estimate in enumerate(estimates[1 : None if current else -1], start=2):
        average = average + max((1 + power) / (t + power), 1 - decay) * (estimate - average)
    return average


def equal_weights(estimates: list[np.ndarray]) -> np.ndarray:
    """Returns V of `low_rank`, from up to four past minibatches."""
    return np.mean(estimates[-5:-1] or estimates, axis=0)


COVARIANCES = {
    "full": ("full", lambda v: averaged(v, power=2.0)),
    "diag": ("diag", lambda v: averaged(v, power=2.0) * np.eye(3)),
    "low_rank": (LowRank(History(4)), equal_weights),
    "full, last minibatch": (Full(RunningMean(0.0)), lambda v: averaged(v, 0.0)),
    "full, current minibatch too": (
        Full(RunningMean(0.6), include_current=True),
        lambda v: averaged(v, 0.6, current=True),
    ),
}


@pytest.mark.parametrize("name", fast_settings(COVARIANCES, "full"))
@pytest.mark.parametrize(
    ("mass", "temperature"),
    [pytest.param(1.0, 1.0, marks=pytest.mark.slow), (MASS, 0.7)],
)
def test_six_steps(name: str, mass: Any, temperature: float) -> None:
    covariance, average = COVARIANCES[name]
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.NOGIN(
        target,
        STEP,
        FRICTION,
        covariance,
        mass,
        temperature,
        initial_momentum=MOMENTUM,
        num_estimation_steps=0,
    )
    state = tf.constant(START)
    np.testing.assert_array_equal(kernel.bootstrap_results(state).momentum, MOMENTUM)
    theta, p, estimates = START, MOMENTUM, []
    for t, (_, (batch, z), moved, results) in enumerate(by_hand.take(kernel, target, state, 6)):

        def sigma(at: np.ndarray, batch: np.ndarray = batch) -> np.ndarray:
            estimates.append(HAND.covariance(at, batch))
            return SCALE * average(estimates)

        def gradient(at: np.ndarray, batch: np.ndarray = batch) -> np.ndarray:
            return HAND.gradient(at, batch)

        hand = step(theta, p, z, gradient, sigma, mass=mass, temperature=temperature)
        theta, p = hand.theta, hand.p
        np.testing.assert_allclose(moved, theta, rtol=1e-8)
        np.testing.assert_allclose(results.momentum, p, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(results.target_log_prob, HAND.log_prob(hand.at, batch))
        np.testing.assert_allclose(results.gradient_norm, np.linalg.norm(hand.g, axis=-1))
        np.testing.assert_allclose(results.kinetic_temperature, hand.temperature, rtol=1e-8)
        assert results.step_size.numpy() == STEP
        assert results.step.numpy() == t + 1 and results.step.dtype == tf.int64
        assert not np.any(results.covariance_state.num_skipped)


@by_hand.STRUCTURES
def test_states_of_two_parts_with_a_block_each(structure: Any) -> None:
    state, momentum, mass = (two_parts(x, structure) for x in (START, MOMENTUM, MASS))
    target = MODEL.target(BATCH, tf.float64, parts=True)
    kernel = sgmcmc.NOGIN(
        target, STEP, FRICTION, "block", mass, initial_momentum=momentum, num_estimation_steps=0
    )
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    batch, z = by_hand.draws(target, state, SEED)
    blocks = block_diag(1, np.ones([2, 2]))
    hand = step(
        START, MOMENTUM, z,
        lambda at: HAND.gradient(at, batch),
        lambda at: SCALE * HAND.covariance(at, batch) * blocks,
        mass=MASS,
    )  # fmt: skip
    for found in (got, results.momentum):
        tf.nest.assert_same_structure(found, structure)
        assert type(found) is type(structure)
    np.testing.assert_allclose(flat(got), hand.theta, rtol=1e-9)
    np.testing.assert_allclose(flat(results.momentum), hand.p, rtol=1e-9)


def test_numbers_of_each_chain_and_schedules() -> None:
    """Each chain has different numbers, and the schedule of the step size counts the steps."""
    frictions, temperatures = np.array([2.0, 5.0]), np.array([0.5, 3.0])
    noise = MODEL.noise(BATCH, replacement=False)
    target = MODEL.target(BATCH, tf.float64)
    known = KnownScores(target, noise / target.noise_scale)
    steps = [np.array([0.2, 0.1]), np.array([0.05, 0.3])]
    kernel = sgmcmc.NOGIN(
        known,
        lambda t: tf.gather(tf.constant(steps, tf.float64), t),
        frictions,
        temperature=lambda t: tf.constant(temperatures),
        initial_momentum=MOMENTUM,
        num_estimation_steps=0,
    )
    theta, p = START, MOMENTUM
    steps_taken = by_hand.take(kernel, target, tf.constant(START), 2)
    for t, (_, (batch, z), moved, results) in enumerate(steps_taken):
        hand = step(
            theta, p, z,
            lambda at, batch=batch: HAND.gradient(at, batch),
            lambda at: noise,
            h=steps[t][:, np.newaxis],
            friction=frictions[:, np.newaxis],
            temperature=temperatures[:, np.newaxis],
        )  # fmt: skip
        theta, p = hand.theta, hand.p
        np.testing.assert_allclose(moved, theta, rtol=1e-9)
        np.testing.assert_allclose(results.momentum, p, rtol=1e-9)
        np.testing.assert_allclose(results.step_size, steps[t])


def test_a_plain_log_density_has_exact_gradients_and_no_sigma() -> None:
    hessian = tf.constant(MODEL.hessian)
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x * (x @ hessian), axis=-1))
    kernel = sgmcmc.NOGIN(target, STEP, FRICTION, initial_momentum=MOMENTUM, num_estimation_steps=0)
    state = tf.constant(START)
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    z = random.normal_like(state, random.split(SEED, 2)[1]).numpy()
    hand = step(START, MOMENTUM, z, lambda at: -at @ MODEL.hessian, lambda at: np.zeros([3, 3]))
    np.testing.assert_allclose(got, hand.theta, rtol=1e-9)
    np.testing.assert_allclose(results.momentum, hand.p, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("covariance", "jit"),
    [
        ("full", True),
        pytest.param("full", False, marks=pytest.mark.slow),
        pytest.param("low_rank", True, marks=pytest.mark.slow),
        pytest.param("low_rank", False, marks=pytest.mark.slow),
    ],
)
def test_every_mode_takes_the_step_of_its_own_draws(covariance: str, jit: bool) -> None:
    target = MODEL.target(BATCH, tf.float64, replacement=True)
    kernel = sgmcmc.NOGIN(
        target, STEP, FRICTION, covariance, initial_momentum=MOMENTUM, num_estimation_steps=0
    )

    one_step = by_hand.compiled(kernel, target, jit)
    theta, p, moved, first = START, MOMENTUM, START, []
    results = kernel.bootstrap_results(tf.constant(START))
    for t in range(2):
        _, (batch, z), moved, results = one_step(tf.constant(moved), SEED + t, results)

        def sigma(at: np.ndarray, batch: np.ndarray = batch) -> np.ndarray:
            first.append(144 / BATCH * HAND.covariance(at, batch))
            return first[0]

        hand = step(theta, p, z, lambda at, batch=batch: HAND.gradient(at, batch), sigma)
        theta, p = hand.theta, hand.p
        np.testing.assert_allclose(moved, theta, rtol=1e-7)
        np.testing.assert_allclose(results.momentum, p, rtol=1e-7)


def test_one_chain_and_many_agree() -> None:
    """A chain that shares its minibatch moves as it would alone with the same z."""
    noise = MODEL.noise(BATCH, replacement=False)
    target = MODEL.target(BATCH, tf.float64, shared_batch=True)
    known = KnownScores(target, noise / target.noise_scale)
    batch_seed, _ = random.split(SEED, 2)
    batch = target.draw(batch_seed, tf.range(BATCH), []).numpy()
    many = tf.constant(np.stack([START] * 3))  # [3, 2] chains
    kernel = sgmcmc.NOGIN(known, STEP, FRICTION, num_estimation_steps=0)
    for state in (many, many[0], many[0, 1]):
        got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
        z = random.normal_like(state, random.split(SEED, 2)[1]).numpy()
        rows = np.reshape(state, [-1, 3])
        hand = step(
            rows, 0 * rows, z.reshape(-1, 3),
            lambda at: HAND.gradient(at, np.broadcast_to(batch, [len(at), BATCH])),
            lambda at: noise,
        )  # fmt: skip
        np.testing.assert_allclose(np.reshape(got, [-1, 3]), hand.theta, rtol=1e-9)
        assert results.kinetic_temperature.shape == state.shape[:-1]


def test_steps_of_estimation_move_nothing_and_teach_sigma() -> None:
    """V equals that of a chain that moves, as these scores have one covariance everywhere."""
    target, state = MODEL.target(BATCH, tf.float64), tf.constant(START)
    kernel = sgmcmc.NOGIN(
        target, STEP, covariance=Full(RunningMean()), initial_momentum=tf.constant(MOMENTUM),
        num_estimation_steps=3,
    )  # fmt: skip
    mover = kernel.copy(num_estimation_steps=0)
    results, moving = kernel.bootstrap_results(state), mover.bootstrap_results(state)
    moved = state
    for t in range(3):
        state, results = kernel.one_step(state, results, tf.constant([0, t]))
        moved, moving = mover.one_step(moved, moving, tf.constant([0, t]))
        np.testing.assert_array_equal(state, START)
        np.testing.assert_array_equal(results.momentum, MOMENTUM)
        assert np.abs(moved - START).min() > 1e-3
    learned, expected = (r.covariance_state.averages[0] for r in (results, moving))
    np.testing.assert_array_equal(learned.count, [3, 3])
    np.testing.assert_allclose(learned.value, expected.value, rtol=1e-9)
    state, _ = kernel.one_step(state, results, tf.constant([0, 3]))
    assert np.abs(state - START).min() > 1e-3


@pytest.mark.parametrize(("mass", "temperature"), [(1.0, 1.0), (2.0, 0.7)])
def test_a_matrix_lambda_draws_what_is_left_of_the_noise(mass: float, temperature: float) -> None:
    h, friction = 0.1, 10.0
    target = MODEL.target(BATCH, tf.float64)
    v = MODEL.score_covariance
    kernel = sgmcmc.NOGIN(
        KnownScores(target, v), h, friction, mass=mass, temperature=temperature,
        initial_momentum=MOMENTUM, num_estimation_steps=0, matrix_lambda=True,
    )  # fmt: skip
    (s,) = by_hand.take(kernel, target, tf.constant(START))
    lambda2 = np.tanh(friction * h / 2)
    left = lambda2 * temperature * mass * np.eye(3) - h**2 / 4 * SCALE * v
    values, vectors = np.linalg.eigh(left)
    assert values[0] > 0.05
    root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    at = START + h / 2 * MOMENTUM / mass
    kick = h / 2 * HAND.gradient(at, s.draws.batch) + s.draws.z @ root
    p = np.exp(-friction * h) * (MOMENTUM + kick) + kick
    np.testing.assert_allclose(s.results.momentum, p, rtol=1e-6)
    np.testing.assert_allclose(s.moved, at + h / 2 * p / mass, rtol=1e-6)


def test_a_matrix_lambda_takes_a_single_mass() -> None:
    for mass in (MASS, [1.0, 2.0]):
        with pytest.raises(ValueError, match="mass must be one number with matrix_lambda=True"):
            sgmcmc.NOGIN(MODEL.target(BATCH), STEP, mass=mass, matrix_lambda=True)
