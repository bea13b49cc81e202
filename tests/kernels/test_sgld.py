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
from tests.harness.by_hand import ByHand, flat
from tests.harness.gaussian_mean import PRECISION, PRIOR_PRECISION, GaussianMean
from tfp_sgmcmc import random
from tfp_sgmcmc.preconditioners import Diagonal, FullMatrix, PositionDependent, RMSprop

MODEL = GaussianMean(num_examples=12)
gradient, log_prob = ByHand(MODEL).gradient, ByHand(MODEL).log_prob
BATCH = 4
FULL = np.array([[1.0, -0.3, 0.2], [-0.3, 0.6, 0.1], [0.2, 0.1, 0.8]])
START = np.array([[0.3, -0.5, 1.0], [2.0, 0.1, -0.7]])  # two chains
SEED = tf.constant([5, 6])


class Draws:
    """The random numbers of one step on a state like `state`."""

    def __init__(self, target: sgmcmc.MinibatchLogProb, state: Any, seed: Any):
        batch_seed, noise_seed, probe_seed = random.split(random.as_seed(seed), 3)
        chains = target.chain_shape(state)
        self.batch = target.draw(batch_seed, tf.range(BATCH), chains).numpy()
        self.z = flat(random.normal_like(state, noise_seed))
        self.probe = flat(random.rademacher_like(state, probe_seed))


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


@pytest.mark.parametrize("replacement", [False, True])
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
def test_constant_preconditioners(preconditioner: Any, matrix: np.ndarray, replacement: bool):
    target = MODEL.target(BATCH, tf.float64, replacement=replacement)
    kernel = sgmcmc.SGLD(target, 0.01, 0.7, preconditioner)
    state = tf.constant(START)
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    draws = Draws(target, state, SEED)
    g = gradient(START, draws.batch)
    np.testing.assert_allclose(got, step(START, g, draws.z, 0.01, 0.7, matrix), rtol=1e-10)
    np.testing.assert_allclose(results.gradient_norm, np.linalg.norm(g, axis=-1))
    np.testing.assert_allclose(results.target_log_prob, log_prob(START, draws.batch))
    assert results.step_size.numpy() == 0.01
    assert results.step.numpy() == 1 and results.step.dtype == tf.int64


def test_position_dependent_preconditioner() -> None:
    """With M = diag(1 + theta^2), S = M^(1/2) and div M = 2 theta."""
    preconditioner = PositionDependent(
        multiply_fn=lambda theta, v: (1 + theta**2) * v,
        sqrt_multiply_fn=lambda theta, z: tf.sqrt(1 + theta**2) * z,
        divergence_fn=lambda theta: 2 * theta,
    )
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.SGLD(target, 0.01, 0.7, preconditioner)
    state = tf.constant(START)
    got, _ = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    draws = Draws(target, state, SEED)
    matrix = (1 + START**2)[..., np.newaxis] * np.eye(3)
    g = gradient(START, draws.batch)
    expected = step(START, g, draws.z, 0.01, 0.7, matrix, 2 * START)
    np.testing.assert_allclose(got, expected, rtol=1e-10)


@pytest.mark.parametrize("gamma", [True, False])
def test_rmsprop(gamma: bool) -> None:
    """Each step uses the last mean of squares. From the second on div M is not zero."""
    decay, epsilon, total = 0.5, 0.3, MODEL.num_examples
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.SGLD(target, 0.01, 0.7, RMSprop(decay, epsilon, gamma))
    state = tf.constant(START)
    results = kernel.bootstrap_results(state)
    hessian = -PRIOR_PRECISION - total * PRECISION  # the same for every minibatch here
    size, average = 0.0, np.zeros_like(START)
    for t in range(3):
        theta, seed = state.numpy(), SEED + t
        draws = Draws(target, state, seed)
        g = gradient(theta, draws.batch)
        size = 1 + decay * size
        average += ((g / total) ** 2 - average) / size
        scale = 1 / (epsilon + np.sqrt(average))
        diagonal = draws.probe * (draws.probe @ hessian)
        slope = g * diagonal / total**2 / size / np.sqrt(average)
        divergence = -slope * scale**2 if gamma and t > 0 else 0.0
        state, results = kernel.one_step(state, results, seed)
        matrix = scale[..., np.newaxis] * np.eye(3)
        expected = step(theta, g, draws.z, 0.01, 0.7, matrix, divergence)
        np.testing.assert_allclose(state, expected, rtol=1e-9)
        np.testing.assert_allclose(results.preconditioner_state.average, average, rtol=1e-9)


def test_schedules_of_step_size_and_temperature() -> None:
    epsilon = sgmcmc.schedules.PolynomialDecay(a=0.02, b=2.0, gamma=0.6)
    kernel = sgmcmc.SGLD(
        target := MODEL.target(BATCH, tf.float64),
        epsilon,
        temperature=lambda t: tf.where(t < 2, 0.0, 0.5),
    )
    state = tf.constant(START)
    results = kernel.bootstrap_results(state)
    for t in range(4):
        theta, seed = state.numpy(), SEED + t
        draws = Draws(target, state, seed)
        state, results = kernel.one_step(state, results, seed)
        size = np.float32(0.02) * np.float32(2.0 + t) ** np.float32(-0.6)
        g = gradient(theta, draws.batch)
        expected = step(theta, g, draws.z, np.float64(size), 0.0 if t < 2 else 0.5)
        np.testing.assert_allclose(state, expected, rtol=1e-6)
        np.testing.assert_allclose(results.step_size, size, rtol=1e-6)
        assert results.step.numpy() == t + 1


def parts_of(theta: np.ndarray, structure: Any) -> Any:
    return tf.nest.pack_sequence_as(structure, [tf.constant(theta[..., :1]), theta[..., 1:]])


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
    state = tf.nest.map_structure(tf.convert_to_tensor, parts_of(START, structure))
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    draws = Draws(target, state, SEED)
    epsilon = 0.02 if sizes == 0.02 else np.array([0.02, 0.01, 0.01])
    expected = step(START, gradient(START, draws.batch), draws.z, epsilon)
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
    draws = Draws(target, state, SEED)
    epsilon = np.array([0.02, 0.01, 0.01])
    expected = step(START, gradient(START, draws.batch), draws.z, epsilon)
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


def test_results_keep_their_structure_shapes_and_dtypes() -> None:
    """`tf.while_loop` needs this, with and without chains, for every state that is carried."""
    for dtype in (tf.float32, tf.float64):
        for state in (tf.zeros([3], dtype), tf.zeros([2, 5, 3], dtype)):
            target = MODEL.target(BATCH, dtype, reshuffle="epoch")
            kernel = sgmcmc.SGLD(target, 0.01, preconditioner=RMSprop())
            before = kernel.bootstrap_results(state)
            moved, after = kernel.one_step(state, before, SEED)
            assert moved.shape == state.shape and moved.dtype == dtype
            tf.nest.assert_same_structure(before, after)
            for x, y in zip(tf.nest.flatten(before), tf.nest.flatten(after), strict=True):
                assert (x.shape, x.dtype) == (y.shape, y.dtype)


def test_seeds_decide_everything() -> None:
    kernel = sgmcmc.SGLD(MODEL.target(BATCH), 0.01)
    state = tf.constant(START, tf.float32)
    results = kernel.bootstrap_results(state)
    first, again, other = (kernel.one_step(state, results, seed)[0].numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)
    with pytest.raises(ValueError, match="seed must be an integer or a pair"):
        kernel.one_step(state, results)


@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_mode_takes_the_step_of_its_own_draws(jit: bool) -> None:
    """Normals and split seeds differ between modes. The formula holds with each mode's draws."""
    target = MODEL.target(BATCH, tf.float64, replacement=True)
    kernel = sgmcmc.SGLD(target, 0.01, 0.7, FullMatrix(FULL))
    state = tf.constant(START)

    @tf.function(jit_compile=jit, autograph=False)
    def run(state: tf.Tensor, seed: tf.Tensor) -> Any:
        moved, results = kernel.one_step(state, kernel.bootstrap_results(state), seed)
        batch_seed, noise_seed, _ = random.split(seed, 3)
        indices = target.draw(batch_seed, tf.range(BATCH), [2])
        return moved, results.target_log_prob, indices, random.normal_like(state, noise_seed)

    moved, value, indices, z = (x.numpy() for x in run(state, SEED))
    expected = step(START, gradient(START, indices), z, 0.01, 0.7, FULL)
    np.testing.assert_allclose(moved, expected, rtol=1e-10)
    np.testing.assert_allclose(value, log_prob(START, indices), rtol=1e-10)


def test_parameters_rebuild_the_kernel() -> None:
    kernel = sgmcmc.SGLD(MODEL.target(BATCH), 0.01, temperature=0.5, preconditioner=2.0)
    copy = kernel.copy(step_size=0.02)
    assert copy.step_size == 0.02 and kernel.step_size == 0.01
    assert copy.target_log_prob_fn is kernel.target_log_prob_fn
    assert set(kernel.parameters) == {
        "target_log_prob_fn",
        "step_size",
        "temperature",
        "preconditioner",
    }
    assert not kernel.is_calibrated
