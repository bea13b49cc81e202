"""One step of CCAdL equals the formula of its docstring, for the draws of that step.

theta <- theta + h p / m
p     <- p + h g(theta) - h^2 / (2 T) Sigma p / m - h xi p + sqrt(2 A T h m) z
xi    <- xi + h / mu (p.p / (m d) - T)

These are the equations of `scheme="euler"`. The other schemes are in `midpoint_step`, which solves
the implicit equation of friction at the mean of p before and after, and `split_step`.
"""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness import by_hand
from tests.harness.by_hand import HAND, MASS, MODEL, MOMENTUM, SEED, START, flat, two_parts
from tests.harness.known_covariance import KnownCovariance
from tfp_sgmcmc.covariance import Full, RunningMean

BATCH = 4
NOISE = MODEL.noise(BATCH, replacement=False)
H = 0.05


def step(
    theta: np.ndarray,
    p: np.ndarray,
    xi: np.ndarray,
    draws: by_hand.Draws,
    noise: Any = NOISE,
    mass: Any = 1.0,
    **numbers: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values = {"h": H, "friction": 3.0, "temperature": 1.0, "mu": 1.0, **numbers}
    h, friction, temperature, mu = (
        np.reshape(values[k], [-1, 1]) for k in ("h", "friction", "temperature", "mu")
    )
    theta = theta + h * p / mass
    g = HAND.gradient(theta, draws.batch)
    drag = h**2 / (2 * temperature) * np.einsum("...ij,...j->...i", noise, p / mass)
    drawn = np.sqrt(2 * friction * temperature * h * mass) * draws.z
    p = p + h * g - drag - h * xi[:, np.newaxis] * p + drawn
    energy = (p**2 / mass).mean(axis=-1)
    return theta, p, xi + (h / mu)[:, 0] * (energy - temperature[:, 0])


def split_step(
    theta: np.ndarray,
    p: np.ndarray,
    xi: np.ndarray,
    draws: by_hand.Draws,
    mass: Any = 1.0,
    **numbers: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A D O D A, then C B C."""
    values = {"h": H, "friction": 3.0, "temperature": 1.0, "mu": 1.0, **numbers}
    h, friction, temperature, mu = (
        np.reshape(values[k], [-1, 1]) for k in ("h", "friction", "temperature", "mu")
    )
    xi = xi[:, np.newaxis]

    def heated(xi: np.ndarray, p: np.ndarray) -> np.ndarray:
        return xi + h / (2 * mu) * ((p**2 / mass).mean(axis=-1, keepdims=True) - temperature)

    def damped(p: np.ndarray) -> np.ndarray:
        return p - h**2 / (4 * temperature) * np.einsum("ij,...j->...i", NOISE, p / mass)

    theta, xi = theta + h / 2 * p / mass, heated(xi, p)
    spread = np.sqrt(friction * temperature * mass * (1 - np.exp(-2 * xi * h)) / xi)
    p = np.exp(-xi * h) * p + spread * draws.z
    theta, xi = theta + h / 2 * p / mass, heated(xi, p)
    p = damped(damped(p) + h * HAND.gradient(theta, draws.batch))
    return theta, p, xi[:, 0]


def midpoint_step(
    theta: np.ndarray,
    p: np.ndarray,
    xi: np.ndarray,
    draws: by_hand.Draws,
    mass: Any = 1.0,
    **numbers: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p' = p + h g + 2 s z - (2 lambda^2 + h^2 / (2 T) Sigma / m) (p + p') / 2."""
    values = {"h": H, "friction": 3.0, "temperature": 1.0, "mu": 1.0, **numbers}
    h, friction, temperature, mu = (
        np.broadcast_to(values[k], [2])[:, np.newaxis]
        for k in ("h", "friction", "temperature", "mu")
    )
    mass = np.broadcast_to(mass, [3])
    theta = theta + h / 2 * p / mass
    g = HAND.gradient(theta, draws.batch)
    heat = (p * (p + h / 2 * g) / mass).mean(axis=-1, keepdims=True)
    xi = xi[:, np.newaxis] + h / mu * (heat - temperature)
    lambda2 = np.tanh(xi * h / 2)
    drawn = 2 * np.sqrt(friction * temperature * mass * lambda2 / xi) * draws.z
    half = (
        np.eye(3) * lambda2[..., np.newaxis]
        + (h**2 / (4 * temperature))[..., np.newaxis] * NOISE / mass
    )
    right = p + h * g + drawn - np.einsum("...ij,...j->...i", half, p)
    p = np.linalg.solve(np.eye(3) + half, right[..., np.newaxis])[..., 0]
    return theta + h / 2 * p / mass, p, xi[:, 0]


STEPS = {"euler": step, "midpoint": midpoint_step, "adodacbc": split_step}
OPTIONS = {
    "plain": {},
    "mass": dict(mass=MASS),
    "temperature": dict(temperature=0.7),
    "mass, temperature and thermal mass": dict(mass=MASS, temperature=1.7, mu=4.0),
    "numbers of each chain": dict(
        h=np.array([0.05, 0.02]),
        friction=np.array([3.0, 5.0]),
        temperature=np.array([1.0, 0.5]),
        mu=np.array([1.0, 3.0]),
    ),
}


# The last two have all options.
FAST = [
    ("mass, temperature and thermal mass", "midpoint"),
    *(("numbers of each chain", scheme) for scheme in ("euler", "adodacbc")),
]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        pytest.param(*pair, marks=[pytest.mark.thorough] * (pair not in FAST))
        for pair in itertools.product(OPTIONS, STEPS)
    ],
)
def test_three_steps(name: str, scheme: Any) -> None:
    options = OPTIONS[name]
    mass = options.get("mass", np.ones(3))
    target = MODEL.target(BATCH, tf.float64, parts=True)
    kernel = sgmcmc.CCAdL(
        target,
        options.get("h", H),
        options.get("friction", 3.0),
        KnownCovariance(NOISE / target.noise_scale),
        options.get("mu", 1.0),
        [mass[:1], mass[1:]],
        options.get("temperature", 1.0),
        initial_momentum=two_parts(MOMENTUM),
        scheme=scheme,
        num_estimation_steps=0,
    )
    take = STEPS[scheme]
    theta, p, xi = START, MOMENTUM, np.broadcast_to(options.get("friction", 3.0), [2])
    steps = by_hand.take(kernel, target, two_parts(START), 3)
    for _, draws, moved, results in steps:
        theta, p, xi = take(theta, p, xi, draws, **options)
        np.testing.assert_allclose(moved, theta, rtol=1e-11)
        np.testing.assert_allclose(flat(results.momentum), p, rtol=1e-11)
        np.testing.assert_allclose(results.thermostat, xi, rtol=1e-11)
        if scheme != "midpoint":
            np.testing.assert_allclose(results.kinetic_temperature, (p**2 / mass).mean(axis=-1))
    assert steps[-1].results.step.numpy() == 3


@pytest.mark.parametrize("include_current", [False, True])
def test_average_of_the_paper(include_current: bool) -> None:
    """Weights kappa_t = 1 / t, with the current minibatch as in the paper, or without it."""
    target = MODEL.target(BATCH, tf.float64)
    covariance = Full(RunningMean(), include_current=include_current)
    kernel = sgmcmc.CCAdL(target, H, 3.0, covariance, initial_momentum=MOMENTUM, scheme="euler")
    theta, p, xi, average = START, MOMENTUM, np.full([2], 3.0), np.zeros([2, 3, 3])
    for t, found in enumerate(by_hand.take(kernel, target, tf.constant(START), 3), start=1):
        own = HAND.covariance(theta + H * p, found.draws.batch) * target.noise_scale
        after = (1 - 1 / t) * average + own / t
        used = after if include_current or t == 1 else average
        theta, p, xi = step(theta, p, xi, found.draws, noise=used)
        average = after
        np.testing.assert_allclose(found.results.momentum, p, rtol=1e-10)


def test_schedules() -> None:
    target = MODEL.target(BATCH, tf.float64)
    kernel = sgmcmc.CCAdL(
        target,
        lambda t: 0.05 / (1 + tf.cast(t, tf.float64)),
        lambda t: 3.0 + tf.cast(t, tf.float64),
        KnownCovariance(NOISE / target.noise_scale),
        thermal_mass=lambda t: 1.0 + tf.cast(t, tf.float64),
        temperature=lambda t: 2.0 - 0.5 * tf.cast(t, tf.float64),
        scheme="euler",
    )
    theta, p, xi = START, np.zeros([2, 3]), np.full([2], 3.0)
    for t, found in enumerate(by_hand.take(kernel, target, tf.constant(START), 3)):
        theta, p, xi = step(
            theta, p, xi, found.draws,
            h=0.05 / (1 + t), friction=3.0 + t, mu=1.0 + t, temperature=2.0 - 0.5 * t,
        )  # fmt: skip
        np.testing.assert_allclose(found.moved, theta, rtol=1e-10)
        np.testing.assert_allclose(found.results.momentum, p, rtol=1e-10)


def test_a_plain_log_density_is_that_of_sgnht() -> None:
    """Without gradient noise CCAdL and SGNHT are the same sampler."""
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    state = tf.constant(START)
    kernels = sgmcmc.CCAdL(target, H, 3.0, scheme="euler"), sgmcmc.SGNHT(target, H, 3.0)
    steps = [k.one_step(state, k.bootstrap_results(state), SEED) for k in kernels]
    for name in ("momentum", "thermostat", "kinetic_temperature"):
        ours, theirs = (getattr(results, name) for _, results in steps)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_the_midpoint_with_a_heavy_thermostat_is_nogin() -> None:
    """The same minibatch, noise and average of Sigma; masses and temperature of each kernel."""
    target = MODEL.target(BATCH, tf.float64, parts=True)
    mass = [MASS[:1], MASS[1:]]
    options = dict(mass=mass, temperature=0.7, initial_momentum=two_parts(MOMENTUM))
    kernels = (
        sgmcmc.NOGIN(target, H, 3.0, num_estimation_steps=1, **options),
        sgmcmc.CCAdL(target, H, 3.0, thermal_mass=1e30, num_estimation_steps=1, **options),
    )
    ends = []
    for kernel in kernels:
        state, results = two_parts(START), None
        results = kernel.bootstrap_results(state)
        for seed in range(4):
            state, results = kernel.one_step(state, results, seed)
        ends.append(np.concatenate([flat(state), flat(results.momentum)]))
        assert np.abs(flat(state) - START).max() > 0.01
    np.testing.assert_allclose(*ends, rtol=1e-9)


@pytest.mark.thorough
def test_the_first_steps_only_average_sigma() -> None:
    """By NOGIN's rule for the midpoint, at least 10, and none for the paper's scheme."""
    target = MODEL.target(BATCH, tf.float64)
    for options, still in (({}, 10), (dict(scheme="euler"), 0), (dict(num_estimation_steps=2), 2)):
        kernel = sgmcmc.CCAdL(target, H, 3.0, initial_momentum=MOMENTUM, **options)
        found = by_hand.take(kernel, target, tf.constant(START), still + 1)
        moved = [bool(np.any(x.results.momentum != MOMENTUM)) for x in found]
        assert moved == [False] * still + [True]
        assert np.all(found[max(still - 1, 0)].results.thermostat == 3.0) or not still


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_every_mode_takes_the_step_of_its_own_draws(jit: bool) -> None:
    target = MODEL.target(BATCH, tf.float64)
    covariance = KnownCovariance(NOISE / target.noise_scale)
    kernel = sgmcmc.CCAdL(target, H, 3.0, covariance, initial_momentum=MOMENTUM, scheme="euler")
    _, draws, moved, results = by_hand.compiled(kernel, target, jit)(tf.constant(START))
    theta, p, _ = step(START, MOMENTUM, np.full([2], 3.0), draws)
    np.testing.assert_allclose(moved, theta, rtol=1e-10)
    np.testing.assert_allclose(results.momentum, p, rtol=1e-10)
