"""One step of SGLD equals the formula of its docstring, for the draws of that step.

  theta <- theta + epsilon_t / 2 (M g + T div M) + sqrt(epsilon_t T) M^(1/2) z

The draws are recovered through `tfp_sgmcmc.random` from the seeds that a step splits off.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness import by_hand
from tests.harness.by_hand import FULL, HAND, MODEL, SEED, START, flat, two_parts
from tests.harness.gaussian_mean import PRECISION, PRIOR_PRECISION
from tfp_sgmcmc import random
from tfp_sgmcmc.preconditioners import Diagonal, FullMatrix, PositionDependent, RMSprop

BATCH = 4


def take(kernel: Any, target: Any, state: Any, num_steps: int = 1) -> list[by_hand.Step]:
    return by_hand.take(kernel, target, state, num_steps, num_seeds=3)


def step(
    theta: np.ndarray,
    g: np.ndarray,
    z: np.ndarray,
    epsilon: Any,
    temperature: float = 1.0,
    matrix: Any = None,
    divergence: Any = 0.0,
    root: Any = None,
) -> np.ndarray:
    """Returns the docstring's formula, with M as a matrix, or as a diagonal for each chain."""
    matrix = np.eye(3) if matrix is None else matrix
    root = np.linalg.cholesky(matrix) if root is None else root
    drift = np.einsum("...ij,...j->...i", matrix, g) + temperature * divergence
    noise = np.einsum("...ij,...j->...i", root, z)
    return theta + np.asarray(epsilon) / 2 * drift + np.sqrt(epsilon * temperature) * noise


@pytest.mark.parametrize(
    ("replacement", "noise"), [(False, "normal"), (True, "normal"), (True, "three_point")]
)
@pytest.mark.parametrize(
    ("preconditioner", "matrix"),
    [
        (None, np.eye(3)),
        (2.0, 2.0 * np.eye(3)),
        (np.array([1.0, 2.0, 3.0]), np.diag([1.0, 2.0, 3.0])),
        (Diagonal([1.0, 2.0, 3.0]), np.diag([1.0, 2.0, 3.0])),
        (FullMatrix(FULL), FULL),
    ],
    ids=["none", "number", "array", "diagonal", "full"],
)
def test_constant_preconditioners(
    preconditioner: Any, matrix: np.ndarray, replacement: bool, noise: Any
) -> None:
    target = MODEL.target(BATCH, tf.float64, replacement=replacement)
    kernel = sgmcmc.SGLD(target, 0.01, 0.7, preconditioner, noise)
    ((_, (batch, z), moved, results),) = take(kernel, target, tf.constant(START))
    g = HAND.gradient(START, batch)
    np.testing.assert_allclose(moved, step(START, g, z, 0.01, 0.7, matrix), rtol=1e-10)
    np.testing.assert_allclose(results.gradient_norm, np.linalg.norm(g, axis=-1))
    np.testing.assert_allclose(results.target_log_prob, HAND.log_prob(START, batch))
    assert results.step_size.numpy() == 0.01
    assert results.step.numpy() == 1 and results.step.dtype == tf.int64


@pytest.mark.parametrize("noise", ["normal", "three_point"])
def test_position_dependent_preconditioner(noise: Any) -> None:
    """With M = diag(1 + theta^2), S = M^(1/2) and div M = 2 theta."""
    preconditioner = PositionDependent(
        multiply_fn=lambda theta, v: (1 + theta**2) * v,
        sqrt_multiply_fn=lambda theta, z: tf.sqrt(1 + theta**2) * z,
        divergence_fn=lambda theta: 2 * theta,
    )
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.SGLD(target, 0.01, 0.7, preconditioner, noise)
    ((_, (batch, z), moved, _),) = take(kernel, target, tf.constant(START))
    matrix = (1 + START**2)[..., np.newaxis] * np.eye(3)
    expected = step(START, HAND.gradient(START, batch), z, 0.01, 0.7, matrix, 2 * START)
    np.testing.assert_allclose(moved, expected, rtol=1e-10)


@pytest.mark.parametrize("gamma", [True, False])
def test_rmsprop(gamma: bool) -> None:
    """Each step uses the last mean of squares. From the second on div M is not zero."""
    decay, epsilon, total = 0.5, 0.3, MODEL.num_examples
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.SGLD(target, 0.01, 0.7, RMSprop(decay, epsilon, gamma))
    hessian = -PRIOR_PRECISION - total * PRECISION  # the same for every minibatch here
    size, average = 0.0, np.zeros_like(START)
    steps = take(kernel, target, tf.constant(START), 3)
    for t, (theta, (batch, z), moved, results) in enumerate(steps):
        probe = random.rademacher_like(tf.constant(START), random.split(SEED + t, 3)[2])
        g = HAND.gradient(theta, batch)
        size = 1 + decay * size
        average += ((g / total) ** 2 - average) / size
        scale = 1 / (epsilon + np.sqrt(average))
        diagonal = probe * (probe @ hessian)
        slope = g * diagonal / total**2 / size / np.sqrt(average)
        divergence = -slope * scale**2 if gamma and t > 0 else 0.0
        matrix = scale[..., np.newaxis] * np.eye(3)
        expected = step(theta, g, z, 0.01, 0.7, matrix, divergence)
        np.testing.assert_allclose(moved, expected, rtol=1e-9)
        np.testing.assert_allclose(results.preconditioner_state.average, average, rtol=1e-9)


def test_schedules_of_step_size_and_temperature() -> None:
    epsilon = sgmcmc.schedules.PolynomialDecay(a=0.02, b=2.0, gamma=0.6)
    kernel = sgmcmc.SGLD(
        target := MODEL.target(BATCH, tf.float64),
        epsilon,
        temperature=lambda t: tf.where(t < 2, 0.0, 0.5),
    )
    steps = take(kernel, target, tf.constant(START), 4)
    for t, (theta, (batch, z), moved, results) in enumerate(steps):
        size = np.float32(0.02) * np.float32(2.0 + t) ** np.float32(-0.6)
        g = HAND.gradient(theta, batch)
        expected = step(theta, g, z, np.float64(size), 0.0 if t < 2 else 0.5)
        np.testing.assert_allclose(moved, expected, rtol=1e-6)
        np.testing.assert_allclose(results.step_size, size, rtol=1e-6)
        assert results.step.numpy() == t + 1


@pytest.mark.parametrize(
    ("structure", "sizes"),
    [
        ([0, 0], [0.02, 0.01]),
        ((0, 0), (0.02, 0.01)),
        ({"a": 0, "b": 0}, {"a": 0.02, "b": lambda t: 0.01}),
        ({"b": 0, "a": 0}, 0.02),
    ],
    ids=["list", "tuple", "dict", "one size"],
)
def test_states_of_two_parts(structure: Any, sizes: Any) -> None:
    target = MODEL.target(BATCH, tf.float64, parts=True)
    kernel = sgmcmc.SGLD(target, sizes)
    state = two_parts(START, structure)
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    batch, z = by_hand.draws(target, state, SEED, num_seeds=3)
    epsilon = 0.02 if sizes == 0.02 else np.array([0.02, 0.01, 0.01])
    expected = step(START, HAND.gradient(START, batch), z, epsilon)
    tf.nest.assert_same_structure(got, structure)
    assert type(got) is type(structure)
    np.testing.assert_allclose(flat(got), expected, rtol=1e-7)
    np.testing.assert_allclose(tf.nest.flatten(results.step_size)[0], 0.02)
    tf.nest.assert_same_structure(results.step_size, sizes)


def test_nested_state() -> None:
    """A part may itself be a nest."""
    quadratic = MODEL.target(BATCH, tf.float64, parts=True)
    target = sgmcmc.MinibatchLogProb(
        lambda outer, c: quadratic.log_prior([outer["a"][0], c]),
        lambda outer, c, batch: quadratic.log_likelihood([outer["a"][0], c], batch, BATCH),
        MODEL.data,
        BATCH,
        chunk_size=BATCH,
    )
    state = [{"a": [tf.constant(START[:, :1])]}, tf.constant(START[:, 1:])]
    kernel = sgmcmc.SGLD(target, [{"a": [0.02]}, 0.01])
    got, _ = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    tf.nest.assert_same_structure(got, state)
    batch, z = by_hand.draws(target, state, SEED, num_seeds=3)
    epsilon = np.array([0.02, 0.01, 0.01])
    expected = step(START, HAND.gradient(START, batch), z, epsilon)
    np.testing.assert_allclose(flat(got), expected, rtol=1e-10)


def test_a_plain_log_density_is_followed_by_its_exact_gradient() -> None:
    fn = tfp.distributions.Normal(tf.constant(1.0, tf.float64), 2.0).log_prob
    kernel = sgmcmc.SGLD(sgmcmc.FullDataLogProb(fn), 0.1)
    state = tf.constant([3.0, -1.0], tf.float64)
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    z = random.normal_like(state, random.split(SEED, 3)[1]).numpy()
    g = -(state.numpy() - 1.0) / 4.0
    np.testing.assert_allclose(got, state + 0.05 * g + np.sqrt(0.1) * z)
    np.testing.assert_allclose(results.target_log_prob, fn(state))
    np.testing.assert_allclose(results.gradient_norm, np.abs(g))


@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_mode_takes_the_step_of_its_own_draws(jit: bool) -> None:
    target = MODEL.target(BATCH, tf.float64, replacement=True)
    kernel = sgmcmc.SGLD(target, 0.01, 0.7, FullMatrix(FULL))
    one_step = by_hand.compiled(kernel, target, jit, num_seeds=3)
    _, (batch, z), moved, results = one_step(tf.constant(START))
    expected = step(START, HAND.gradient(START, batch), z, 0.01, 0.7, FULL)
    np.testing.assert_allclose(moved, expected, rtol=1e-10)
    value = HAND.log_prob(START, batch)
    np.testing.assert_allclose(results.target_log_prob, value, rtol=1e-10)
