"""One step of modified SGLD equals the formula of its docstring, for the draws of that step.

theta <- theta + epsilon / 2 g + sqrt(epsilon T) (I - epsilon / (8 T) Sigma) z
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness import by_hand
from tests.harness.by_hand import HAND, KEPT, MODEL, SEED, START, flat, take, two_parts
from tfp_sgmcmc import random

BATCH = 5
SCALE = {True: 12**2 / 5, False: 12 * 7 / 5}  # c, with and without replacement


def make_target(dtype: Any = tf.float64, **options: Any) -> sgmcmc.MinibatchLogProb:
    return MODEL.target(BATCH, dtype, **options)


def step(
    theta: np.ndarray,
    g: np.ndarray,
    z: np.ndarray,
    sigma: np.ndarray,
    epsilon: Any,
    temperature: Any = 1.0,
) -> np.ndarray:
    """Returns the docstring's formula, where `epsilon` is a number or one for each entry."""
    root = np.sqrt(np.broadcast_to(epsilon, [3]))
    inner = root[:, np.newaxis] * sigma * root / (8 * temperature)
    injected = np.einsum("...ij,...j->...i", np.eye(3) - inner, z)
    return theta + root**2 / 2 * g + np.sqrt(temperature) * root * injected


def expected(found: by_hand.Step, v: np.ndarray, epsilon: Any, temperature: Any = 1.0) -> Any:
    """Returns the formula for a step without replacement, where Sigma is c V."""
    g = HAND.gradient(found.theta, found.draws.batch)
    return step(found.theta, g, found.draws.z, SCALE[False] * v, epsilon, temperature)


def covariance(found: by_hand.Step) -> np.ndarray:
    """Returns V of the minibatch of a step, `[chains, 3, 3]`."""
    return HAND.covariance(found.theta, found.draws.batch)


@pytest.mark.parametrize(
    ("kept", "replacement"),
    [
        *(
            pytest.param(kept, False, marks=[pytest.mark.thorough] * (kept != "diag"))
            for kept in KEPT
        ),
        *(pytest.param(kept, True, marks=[pytest.mark.slow] * (kept != "full")) for kept in KEPT),
    ],
)
def test_sigma_is_that_of_past_minibatches(kept: str, replacement: bool) -> None:
    """The first step uses its own minibatch, as there is no past. The third averages two."""
    target = make_target(parts=True, replacement=replacement)
    kernel = sgmcmc.ModifiedSGLD(target, 0.02, by_hand.as_estimator(kept), temperature=0.7)
    steps = take(kernel, target, two_parts(START), 3)
    v = [covariance(s) * KEPT[kept] for s in steps]
    # decay 0.99: the second minibatch weighs 1/2, as in a plain mean.
    for past, s in zip([v[0], v[0], (v[0] + v[1]) / 2], steps, strict=True):
        g = HAND.gradient(s.theta, s.draws.batch)
        moved = step(s.theta, g, s.draws.z, SCALE[replacement] * past, 0.02, 0.7)
        np.testing.assert_allclose(s.moved, moved, rtol=1e-10)
        np.testing.assert_allclose(s.results.gradient_norm, np.linalg.norm(g, axis=-1))
        assert s.results.step_size.numpy() == 0.02
    assert steps[-1].results.step.numpy() == 3 and steps[-1].results.step.dtype == tf.int64


def test_the_current_minibatch_can_be_included() -> None:
    target = make_target()
    estimator = sgmcmc.covariance.Full(include_current=True)
    kernel = sgmcmc.ModifiedSGLD(target, 0.02, estimator)
    first, second = take(kernel, target, tf.constant(START), 2)
    v = (covariance(first) + covariance(second)) / 2
    np.testing.assert_allclose(second.moved, expected(second, v, 0.02), rtol=1e-10)


def test_steps_of_their_own_for_the_parts() -> None:
    target = make_target(parts=True)
    kernel = sgmcmc.ModifiedSGLD(target, [0.03, lambda t: 0.01], temperature=0.7)
    (s,) = take(kernel, target, two_parts(START))
    epsilon = np.array([0.03, 0.01, 0.01])
    np.testing.assert_allclose(s.moved, expected(s, covariance(s), epsilon, 0.7), rtol=1e-8)
    np.testing.assert_allclose(s.results.step_size, [0.03, 0.01])


def test_schedules_of_step_size_and_temperature() -> None:
    target = make_target()
    kernel = sgmcmc.ModifiedSGLD(
        target,
        lambda t: tf.constant(0.02, tf.float64) / tf.cast(t + 1, tf.float64),
        "diag",
        temperature=lambda t: tf.cast(t + 1, tf.float64),
    )
    steps = take(kernel, target, tf.constant(START), 2)
    v = covariance(steps[0]) * np.eye(3)
    for t, s in enumerate(steps):
        epsilon = 0.02 / (t + 1)
        np.testing.assert_allclose(s.moved, expected(s, v, epsilon, t + 1.0), rtol=1e-10)
        np.testing.assert_allclose(s.results.step_size, epsilon)


@pytest.mark.thorough
def test_one_chain_without_chain_dimensions_and_a_dict() -> None:
    """`tf.vectorized_map` computes the scores."""
    target = make_target(parts=True, score_fn=None, chunk_size=BATCH)
    kernel = sgmcmc.ModifiedSGLD(target, 0.02)
    state = two_parts(START[0], {"b": 0, "a": 0})
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    (s,) = take(kernel, target, state)
    assert list(got) == ["b", "a"]
    np.testing.assert_allclose(flat(got), expected(s, covariance(s), 0.02), rtol=1e-10)
    assert results.target_log_prob.shape == []


def test_an_exact_gradient_makes_it_sgld() -> None:
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    state = tf.constant(START)
    kernel = sgmcmc.ModifiedSGLD(target, 0.1, temperature=0.5)
    moved, _ = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    z = random.normal_like(state, random.split(SEED, 2)[1])
    np.testing.assert_allclose(moved, START - 0.05 * START + np.sqrt(0.05) * z)


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_compiled_steps(jit: bool) -> None:
    target = make_target()
    kernel = sgmcmc.ModifiedSGLD(target, 0.02, temperature=0.7)
    s = by_hand.compiled(kernel, target, jit)(tf.constant(START))
    np.testing.assert_allclose(s.moved, expected(s, covariance(s), 0.02, 0.7), rtol=1e-10)
