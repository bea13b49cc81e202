"""One step of SGHMC equals the formula of its docstring, for the draws of that step.

  theta <- theta + h p / m
  p     <- p + h g(theta) - h A p / m + (2 h A T I - h^2 Sigma)^(1/2) z

The draws are recovered through `tfp_sgmcmc.random` from the seeds that a step splits off.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import sqrtm

import tfp_sgmcmc as sgmcmc
from tests.harness import by_hand
from tests.harness.by_hand import HAND, MASS, MODEL, MOMENTUM, SEED, START, flat, two_parts
from tests.harness.fast_settings import fast_settings
from tests.harness.known_covariance import KnownCovariance, KnownDiagonal
from tests.harness.thermostats import NoisyQuadratic
from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import Full, History
from tfp_sgmcmc.covariance.matrices import DenseMatrix, NoiseCovariance, Solver
from tfp_sgmcmc.kernels.noisy_gradients import remaining_noise

BATCH = 4
NOISE = MODEL.noise(BATCH, replacement=False)
H = 0.04


def known(target: sgmcmc.MinibatchLogProb, noise: np.ndarray = NOISE) -> KnownCovariance:
    return KnownCovariance(noise / target.noise_scale)


def step(
    theta: np.ndarray,
    p: np.ndarray,
    draws: by_hand.Draws,
    h: Any = H,
    friction: Any = 4.0,
    noise: np.ndarray | None = NOISE,
    mass: Any = 1.0,
    temperature: Any = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the formula. `h`, `friction` and `temperature` can have one number for each chain."""
    h, friction, temperature = (np.reshape(x, [-1, 1]) for x in (h, friction, temperature))
    theta = theta + h * p / mass
    g = HAND.gradient(theta, draws.batch)
    noise = np.zeros([3, 3]) if noise is None else noise
    shift, scale = (
        np.broadcast_to(x, [len(theta), 1]) for x in (2 * h * friction * temperature, h**2)
    )
    roots = [sqrtm(a * np.eye(3) - b * noise).real for a, b in zip(shift, scale, strict=True)]
    drawn = np.einsum("cij,cj->ci", np.stack(roots), draws.z)
    return theta, p + h * g - h * friction * p / mass + drawn


OPTIONS = {
    "plain": {},
    "mass": dict(mass=MASS),
    "temperature": dict(temperature=0.7),
    "mass and temperature": dict(mass=MASS, temperature=1.9),
    "numbers of each chain": dict(
        h=np.array([0.04, 0.02]), friction=np.array([4.0, 6.0]), temperature=np.array([1.0, 0.5])
    ),
}


# Mass and temperature alone are parts of "mass and temperature".
@pytest.mark.parametrize(
    "name", fast_settings(OPTIONS, "plain", "mass and temperature", "numbers of each chain")
)
@pytest.mark.parametrize("covariance", ["known", "none"])
def test_options(name: str, covariance: str) -> None:
    options = {"h": H, "friction": 4.0, **OPTIONS[name]}
    noise = NOISE if covariance == "known" else None
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.SGHMC(
        target,
        options["h"],
        options["friction"],
        known(target) if covariance == "known" else None,
        options.get("mass", 1.0),
        options.get("temperature", 1.0),
        initial_momentum=MOMENTUM,
    )
    ((_, draws, moved, results),) = by_hand.take(kernel, target, tf.constant(START))
    theta, p = step(START, MOMENTUM, draws, noise=noise, **options)
    np.testing.assert_allclose(moved, theta, rtol=1e-12)
    np.testing.assert_allclose(results.momentum, p, rtol=1e-7)
    energy = p**2 / options.get("mass", 1.0)
    np.testing.assert_allclose(results.kinetic_temperature, energy.mean(axis=-1), rtol=1e-7)
    np.testing.assert_allclose(results.friction, np.broadcast_to(options["friction"], [2]))
    assert not results.num_small_friction.numpy().any()
    assert results.step.numpy() == 1


def test_schedules() -> None:
    """Tests step size, friction and temperature at steps 0, 1 and 2."""
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.SGHMC(
        target,
        lambda t: 0.04 / (1 + tf.cast(t, tf.float64)),
        lambda t: 4.0 + tf.cast(t, tf.float64),
        known(target),
        temperature=lambda t: 1.0 + tf.cast(t, tf.float64),
    )
    p = np.zeros_like(START)
    for t, found in enumerate(by_hand.take(kernel, target, tf.constant(START), 3)):
        theta, p = step(found.theta, p, found.draws, 0.04 / (1 + t), 4.0 + t, temperature=1.0 + t)
        np.testing.assert_allclose(found.moved, theta, rtol=1e-7)
        np.testing.assert_allclose(found.results.momentum, p, rtol=1e-7)


def test_covariance_is_that_of_the_minibatch_before() -> None:
    """With a history of one, Sigma at the second step is c times the covariance of the first."""
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.SGHMC(target, H, 60.0, Full(History(1)))
    p, last = np.zeros([1, 3]), None
    for theta, draws, _, results in by_hand.take(kernel, target, tf.constant(START[:1]), 3):
        own = HAND.covariance(theta + H * p, draws.batch)[0] * target.noise_scale
        _, p = step(theta, p, draws, friction=60.0, noise=own if last is None else last)
        last = own
        np.testing.assert_allclose(results.momentum, p, rtol=1e-6)


@by_hand.STRUCTURES
def test_states_of_two_parts(structure: Any) -> None:
    state, momentum, mass = (two_parts(x, structure) for x in (START, MOMENTUM, MASS))
    target = MODEL.target(BATCH, tf.float64, parts=True)
    kernel = sgmcmc.SGHMC(target, H, 4.0, known(target), mass, initial_momentum=momentum)
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    theta, p = step(START, MOMENTUM, by_hand.draws(target, state, SEED), mass=MASS)
    tf.nest.assert_same_structure(got, structure)
    assert type(got) is type(structure)
    np.testing.assert_allclose(flat(got), theta, rtol=1e-12)
    np.testing.assert_allclose(flat(results.momentum), p, rtol=1e-7)


def test_a_plain_log_density_has_no_noise() -> None:
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2)
    kernel = sgmcmc.SGHMC(target, 0.1, 2.0, initial_momentum=[0.5, -1.0])
    state = tf.constant([3.0, -1.0], tf.float64)
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    z = random.normal_like(state, random.split(SEED, 2)[1]).numpy()
    p = np.array([0.5, -1.0])
    np.testing.assert_allclose(got, state + 0.1 * p)
    np.testing.assert_allclose(results.momentum, 0.8 * p - 0.1 * got + np.sqrt(0.4) * z)


# Friction that is too small

SMALLEST = H * np.linalg.eigvalsh(NOISE)[-1] / 2


@pytest.mark.parametrize(
    ("jit", "diagonal"),
    [*(pytest.param(jit, False, marks=pytest.mark.slow) for jit in (True, False)), (False, True)],
)
def test_small_friction_is_raised_and_counted_in_its_chain(jit: bool, diagonal: bool) -> None:
    """The one of two chains that has enough friction takes the same step as alone."""
    target = MODEL.target(BATCH, tf.float64)
    noise = np.diag(np.diag(NOISE)) if diagonal else NOISE
    covariance = KnownDiagonal(np.diag(noise) / target.noise_scale) if diagonal else known(target)
    smallest = H * np.linalg.eigvalsh(noise)[-1] / 2
    friction = smallest * np.array([0.2, 1.2])
    kernel = sgmcmc.SGHMC(target, H, friction, covariance, temperature=1.0)
    state = tf.constant(START)

    one_step = tf.function(kernel.one_step, jit_compile=jit, autograph=False)
    results = kernel.bootstrap_results(state)
    for t in range(2):
        state, results = one_step(state, results, SEED + t)
    np.testing.assert_array_equal(results.num_small_friction, [2, 0])
    np.testing.assert_allclose(results.friction, [smallest, friction[1]], rtol=1e-6)
    assert all(np.isfinite(x).all() for x in (results.momentum, results.kinetic_temperature))


def test_smallest_friction_falls_with_temperature() -> None:
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.SGHMC(target, H, 1e-3, known(target), temperature=4.0)
    state = tf.constant(START)
    _, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    np.testing.assert_allclose(results.friction, SMALLEST / 4, rtol=1e-3)


def test_raised_friction_draws_the_noise_that_is_left() -> None:
    """At the smallest friction there is no noise along the leading eigenvector of Sigma.

    The covariance of 20,000 draws, whitened where there is noise, is the identity to 6 standard
    errors (false alarm below 1e-7). The leading direction has less than 1% of the full noise.
    """
    target = MODEL.target(BATCH, replacement=True)
    noise = MODEL.noise(BATCH, replacement=True)
    kernel = sgmcmc.SGHMC(target, H, 1e-3, known(target, noise))
    state, chains = tf.zeros([20_000, 3]), 20_000
    results = kernel.bootstrap_results(state)
    results = results._replace(
        eigenvector=tf.broadcast_to(
            tf.constant(np.linalg.eigh(noise)[1][:, -1], tf.float32), [chains, 3]
        )
    )
    _, results = kernel.one_step(state, results, SEED)
    batch_seed, _ = random.split(random.as_seed(SEED), 2)
    g = target.estimate(state, batch_seed).gradient
    drawn = (results.momentum - H * g).numpy().astype(np.float64)  # starts at rest at 0
    values, vectors = np.linalg.eigh(H * (np.linalg.eigvalsh(noise)[-1] * np.eye(3) - noise) * H)
    along = drawn @ vectors
    assert np.var(along[:, 0]) < 0.01 * values[-1]
    np.testing.assert_allclose(
        np.cov(along[:, 1:], rowvar=False) / np.sqrt(np.outer(values[1:], values[1:])),
        np.eye(2),
        atol=6 * np.sqrt(2 / chains),
    )


def refusing(dtype: Any = tf.float64) -> sgmcmc.SGHMC:
    target = MODEL.target(BATCH, dtype)
    friction = SMALLEST * np.array([0.2, 1.2])
    return sgmcmc.SGHMC(
        target, H, friction, known(target), initial_momentum=MOMENTUM, small_friction="refuse"
    )


def test_refused_friction_raises_with_both_numbers() -> None:
    kernel, state = refusing(), tf.constant(START)
    results = kernel.bootstrap_results(state)
    numbers = rf"(?s)friction \(x\) must be at least.*{0.2 * SMALLEST:.4f}.*{SMALLEST:.3f}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=numbers):
        kernel.one_step(state, results, SEED)
    with pytest.raises(tf.errors.InvalidArgumentError, match="friction .x. must be at least"):
        tf.function(kernel.one_step, autograph=False)(state, results, SEED)


@pytest.mark.slow
def test_refused_chain_stands_still_under_xla() -> None:
    kernel, state = refusing(), tf.constant(START)
    run = tf.function(kernel.one_step, autograph=False, jit_compile=True)
    got, results = run(state, kernel.bootstrap_results(state), SEED)
    np.testing.assert_array_equal(results.num_small_friction, [1, 0])
    np.testing.assert_array_equal(got[0], START[0])
    np.testing.assert_array_equal(results.momentum[0], MOMENTUM[0])
    assert not np.any(results.momentum[1].numpy() == MOMENTUM[1])


def test_an_eigenvalue_beyond_the_bound_gives_no_wild_draw() -> None:
    """Control: outside of its interval the series is wrong by orders of magnitude."""
    sigma = np.diag([1.0, 0.5, 2.0])  # the kernel is told that the largest eigenvalue is 1
    z = tf.constant([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], tf.float64)  # zero in one chain
    matrix = DenseMatrix(tf.constant(np.stack([sigma, sigma])), Solver())
    covariance = NoiseCovariance([matrix], [[0]], 1.0, z, chain_ndims=1)
    one = tf.ones([2], tf.float64)
    wild = covariance.sqrt_multiply(2.0, -1.0, 1.1 * one, z)
    assert np.linalg.norm(wild[0]) > 1e3
    got = remaining_noise(covariance, tf.constant(2.0, tf.float64), -one, one, z, chain_ndims=1)
    np.testing.assert_array_equal(got[0], np.zeros(3))
    np.testing.assert_allclose(got[1], [1.0, np.sqrt(1.5), 0.0], rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_mode_takes_the_step_of_its_own_draws(jit: bool) -> None:
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.SGHMC(target, H, 4.0, known(target), initial_momentum=MOMENTUM)
    _, draws, moved, results = by_hand.compiled(kernel, target, jit)(tf.constant(START))
    theta, p = step(START, MOMENTUM, draws)
    np.testing.assert_allclose(moved, theta, rtol=1e-10)
    np.testing.assert_allclose(results.momentum, p, rtol=1e-7)


def test_a_target_without_scores_wants_no_covariance() -> None:
    target = NoisyQuadratic(1.0, 0.5)
    sgmcmc.SGHMC(target, H, covariance=None).bootstrap_results(tf.zeros([3]))
