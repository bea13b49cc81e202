"""One step of underdamped Langevin dynamics equals its docstring's formula, in every form.

  A_h: theta += h p/m,   B_h: p += h g(theta),   O_h: p = c p + sqrt(T (1 - c^2) m) z

with c = e^(-friction h); baoab: A_(h/2) O_h A_(h/2) B_h;  obabo: A_h B_(h/2) O_h B_(h/2);
aboba: A_(h/2) B_(h/2) O_h B_(h/2) A_(h/2).
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness import by_hand
from tests.harness.by_hand import HAND, MASS, MODEL, MOMENTUM, SEED, START, flat, two_parts
from tfp_sgmcmc import random

BATCH = 4
STEP, FRICTION = 0.05, 3.0
SCHEMES = ("baoab", "obabo", "aboba")


class Step(NamedTuple):
    theta: np.ndarray
    p: np.ndarray
    g: np.ndarray
    before_o: np.ndarray
    at: np.ndarray  # where the gradient is taken


def step(
    scheme: str,
    theta: np.ndarray,
    p: np.ndarray,
    z: np.ndarray,
    gradient: Any,
    h: Any = STEP,
    friction: Any = FRICTION,
    mass: Any = 1.0,
    temperature: Any = 1.0,
) -> Step:
    c = np.exp(-friction * h)

    def o(p: np.ndarray) -> np.ndarray:
        return c * p + np.sqrt(temperature * (1 - c**2) * mass) * z

    if scheme == "baoab":
        theta = theta + h / 2 * p / mass
        p = o(p)
        theta = at = theta + h / 2 * p / mass
        g = gradient(theta)
        before_o = p = p + h * g
    else:
        theta = at = theta + (h if scheme == "obabo" else h / 2) * p / mass
        g = gradient(theta)
        before_o = p + h / 2 * g
        p = o(before_o) + h / 2 * g
        if scheme == "aboba":
            theta = theta + h / 2 * p / mass
    return Step(theta, p, g, before_o, at)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("replacement", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("mass", "temperature", "noise"),
    [(1.0, 1.0, "normal"), (MASS, 0.7, "normal"), (MASS, 0.7, "three_point")],
)
def test_two_steps(
    scheme: str, replacement: bool, mass: Any, temperature: float, noise: Any
) -> None:
    target = MODEL.target(BATCH, tf.float64, replacement=replacement)
    kernel = sgmcmc.UnderdampedLangevin(
        target, STEP, FRICTION, scheme, mass, temperature, MOMENTUM, noise
    )
    state = tf.constant(START)
    np.testing.assert_array_equal(kernel.bootstrap_results(state).momentum, MOMENTUM)
    theta, p = START, MOMENTUM
    for t, (_, (batch, z), moved, results) in enumerate(by_hand.take(kernel, target, state, 2)):
        expected = step(
            scheme, theta, p, z, lambda x, batch=batch: HAND.gradient(x, batch),
            mass=mass, temperature=temperature,
        )  # fmt: skip
        theta, p = expected.theta, expected.p
        np.testing.assert_allclose(moved, theta, rtol=1e-10)
        np.testing.assert_allclose(results.momentum, p, rtol=1e-10)
        np.testing.assert_allclose(results.target_log_prob, HAND.log_prob(expected.at, batch))
        np.testing.assert_allclose(results.gradient_norm, np.linalg.norm(expected.g, axis=-1))
        heat = np.mean(expected.before_o**2 / mass, axis=-1)
        np.testing.assert_allclose(results.kinetic_temperature, heat)
        assert results.step_size.numpy() == STEP
        assert results.step.numpy() == t + 1 and results.step.dtype == tf.int64


class Textbook:
    """The five-part schemes in their usual form, with exact gradients."""

    def __init__(self, h: float, friction: float):
        self.h, self.friction = h, friction

    def g(self, theta: np.ndarray) -> np.ndarray:
        return -(theta - MODEL.mean) @ MODEL.hessian

    def o(self, p: np.ndarray, z: np.ndarray, h: float) -> np.ndarray:
        c = np.exp(-self.friction * h)
        return c * p + np.sqrt(1 - c**2) * z

    def baoab(self, theta: np.ndarray, p: np.ndarray, z: np.ndarray) -> Any:
        h = self.h
        p = p + h / 2 * self.g(theta)
        theta = theta + h / 2 * p
        p = self.o(p, z, h)
        theta = theta + h / 2 * p
        return theta, p + h / 2 * self.g(theta)

    def bab(self, theta: np.ndarray, p: np.ndarray) -> Any:
        h = self.h
        p = p + h / 2 * self.g(theta)
        theta = theta + h * p
        return theta, p + h / 2 * self.g(theta)


def trajectory(scheme: str, momentum: np.ndarray, num_steps: int) -> tuple[list, list]:
    """Returns the states of the kernel and the z of its steps."""
    kernel = sgmcmc.UnderdampedLangevin(
        MODEL.exact_target(), STEP, FRICTION, scheme, initial_momentum=momentum
    )
    state = tf.constant(START)
    results = kernel.bootstrap_results(state)
    states, normals = [], []
    for t in range(num_steps):
        normals.append(random.normal_like(state, random.split(SEED + t, 2)[1]).numpy())
        state, results = kernel.one_step(state, results, SEED + t)
        states.append(state.numpy())
    return states, normals


def test_one_gradient_a_step_gives_the_theta_of_baoab() -> None:
    """The kernel starts with the momenta that BAOAB has after its first half kick."""
    book = Textbook(STEP, FRICTION)
    momentum = MOMENTUM + STEP / 2 * book.g(START)
    theta, p = START, MOMENTUM
    for state, z in zip(*trajectory("baoab", momentum, 5), strict=True):
        theta, p = book.baoab(theta, p, z)
        np.testing.assert_allclose(state, theta, rtol=1e-10)


def test_one_gradient_a_step_gives_the_theta_of_obabo() -> None:
    """Two half steps of O with noises z1, z2 are one step with noise c z1 + z2, normalised."""
    book = Textbook(STEP, FRICTION)
    theta, p = START, MOMENTUM
    momentum = MOMENTUM + STEP / 2 * book.g(START)
    half = np.exp(-FRICTION * STEP / 2)
    other = np.random.default_rng(0).standard_normal([5, *START.shape])
    for state, z, z1 in zip(*trajectory("obabo", momentum, 5), other, strict=True):
        theta, p = book.bab(theta, p)
        np.testing.assert_allclose(state, theta, rtol=1e-10)
        z2 = z * np.sqrt(1 + half**2) - half * z1
        p = book.o(book.o(p, z1, STEP / 2), z2, STEP / 2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_gradient_a_step_and_none_before_the_first(scheme: str) -> None:
    """Counts calls that compute gradients, and finds no scores."""

    class Counting(sgmcmc.MinibatchLogProb):
        calls = 0

        def estimate(self, *args: Any, with_scores: bool = True, **kwargs: Any) -> Any:
            assert not with_scores
            Counting.calls += 1
            return super().estimate(*args, with_scores=False, **kwargs)

    target = Counting(
        lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
        lambda x, batch: -0.5 * tf.reduce_sum((batch - x[..., tf.newaxis, :]) ** 2, axis=-1),
        np.float32(MODEL.data),
        BATCH,
    )
    kernel = sgmcmc.UnderdampedLangevin(target, STEP, scheme=scheme)
    state = tf.constant(START, tf.float32)
    results = kernel.bootstrap_results(state)
    assert Counting.calls == 0
    for t in range(3):
        state, results = kernel.one_step(state, results, t)
    assert Counting.calls == 3


@pytest.mark.parametrize("scheme", SCHEMES)
@by_hand.STRUCTURES
def test_states_of_two_parts(scheme: str, structure: Any) -> None:
    state, momentum, mass = (two_parts(x, structure) for x in (START, MOMENTUM, MASS))
    target = MODEL.target(BATCH, tf.float64, parts=True)
    kernel = sgmcmc.UnderdampedLangevin(
        target, STEP, FRICTION, scheme, mass, initial_momentum=momentum
    )
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    batch, z = by_hand.draws(target, state, SEED)
    expected = step(scheme, START, MOMENTUM, z, lambda x: HAND.gradient(x, batch), mass=MASS)
    for found in (got, results.momentum):
        tf.nest.assert_same_structure(found, structure)
        assert type(found) is type(structure)
    np.testing.assert_allclose(flat(got), expected.theta, rtol=1e-10)
    np.testing.assert_allclose(flat(results.momentum), expected.p, rtol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "scheme", [pytest.param(s, marks=[pytest.mark.thorough] * (s != "obabo")) for s in SCHEMES]
)
@pytest.mark.parametrize("jit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_mode_takes_the_step_of_its_own_draws(scheme: str, jit: bool) -> None:
    target = MODEL.target(BATCH, tf.float64, replacement=True)
    kernel = sgmcmc.UnderdampedLangevin(target, STEP, FRICTION, scheme, initial_momentum=MOMENTUM)

    _, (batch, z), moved, results = by_hand.compiled(kernel, target, jit)(tf.constant(START))
    expected = step(scheme, START, MOMENTUM, z, lambda x: HAND.gradient(x, batch))
    np.testing.assert_allclose(moved, expected.theta, rtol=1e-10)
    np.testing.assert_allclose(results.momentum, expected.p, rtol=1e-10)
