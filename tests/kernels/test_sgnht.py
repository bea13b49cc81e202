"""One step of SGNHT equals the formulas of its docstring, for the draws of that step."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness import by_hand
from tests.harness.by_hand import HAND, MASS, MODEL, MOMENTUM, SEED, START, flat, two_parts
from tfp_sgmcmc import random
from tfp_sgmcmc.kernels.momentum import mean_decay

BATCH = 4
THERMOSTATS = ("scalar", "per_part", "per_coordinate")


class Formula:
    """The docstring's two schemes on two chains, with one xi for each coordinate, `[2, 3]`."""

    def __init__(self, thermostat: str, mass: Any = 1.0, **numbers: Any):
        values = {"h": 0.05, "friction": 3.0, "temperature": 1.0, "mu": 1.0, **numbers}
        self.h, self.friction, self.temperature, self.mu = (
            np.reshape(values[k], [-1, 1]) for k in ("h", "friction", "temperature", "mu")
        )
        self.thermostat, self.mass = thermostat, mass

    def heat(self, xi: np.ndarray, p: np.ndarray, h: np.ndarray) -> np.ndarray:
        energy = p**2 / self.mass
        if self.thermostat == "scalar":
            energy = energy.mean(axis=-1, keepdims=True)
        elif self.thermostat == "per_part":
            energy = np.concatenate(
                [energy[:, :1], np.tile(energy[:, 1:].mean(axis=-1, keepdims=True), 2)], axis=-1
            )
        return xi + h / self.mu * (energy - self.temperature)

    def euler(self, theta: np.ndarray, p: np.ndarray, xi: np.ndarray, draws: by_hand.Draws) -> Any:
        h = self.h
        theta = theta + h * p / self.mass
        noise = np.sqrt(2 * self.friction * self.temperature * h * self.mass) * draws.z
        p = p + h * HAND.gradient(theta, draws.batch) - h * xi * p + noise
        return theta, p, self.heat(xi, p, h)

    def adodab(self, theta: np.ndarray, p: np.ndarray, xi: np.ndarray, draws: by_hand.Draws) -> Any:
        h = self.h
        theta = theta + h / 2 * p / self.mass
        xi = self.heat(xi, p, h / 2)
        variance = self.friction * self.temperature * self.mass * (1 - np.exp(-2 * xi * h)) / xi
        p = np.exp(-xi * h) * p + np.sqrt(variance) * draws.z
        xi = self.heat(xi, p, h / 2)
        theta = theta + h / 2 * p / self.mass
        return theta, p + h * HAND.gradient(theta, draws.batch), xi


OPTIONS = {
    "plain": {},
    "mass and temperature": dict(mass=MASS, temperature=1.7),
    "thermal mass": dict(mu=4.0),
    "numbers of each chain": dict(
        h=np.array([0.05, 0.02]),
        friction=np.array([3.0, 5.0]),
        temperature=np.array([1.0, 0.5]),
        mu=np.array([1.0, 3.0]),
    ),
}


@pytest.mark.parametrize("scheme", ["euler", "adodab"])
@pytest.mark.parametrize(
    ("thermostat", "name"),
    [
        # One thermostat is tested with all options, several with different numbers in each chain.
        *(
            pytest.param("scalar", name, marks=[pytest.mark.thorough] * (name == "plain"))
            for name in OPTIONS
        ),
        *(
            pytest.param(
                thermostat, name, marks=[pytest.mark.slow] * (name != "numbers of each chain")
            )
            for thermostat in THERMOSTATS[1:]
            for name in OPTIONS
        ),
    ],
)
def test_three_steps(scheme: str, thermostat: str, name: str) -> None:
    options = OPTIONS[name]
    mass = options.get("mass", np.ones(3))
    target = MODEL.target(BATCH, tf.float64, parts=True)
    kernel = sgmcmc.SGNHT(
        target,
        options.get("h", 0.05),
        options.get("friction", 3.0),
        scheme,
        thermostat,
        options.get("mu", 1.0),
        [mass[:1], mass[1:]],
        options.get("temperature", 1.0),
        initial_momentum=two_parts(MOMENTUM),
    )
    formula = Formula(thermostat, **options)
    theta, p, xi = START, MOMENTUM, formula.friction + np.zeros([2, 3])
    steps = by_hand.take(kernel, target, two_parts(START), 3)
    for _, draws, moved, results in steps:
        theta, p, xi = getattr(formula, scheme)(theta, p, xi, draws)
        np.testing.assert_allclose(moved, theta, rtol=1e-11)
        np.testing.assert_allclose(flat(results.momentum), p, rtol=1e-10)
        expected = {
            "scalar": xi[:, 0],
            "per_part": [xi[:, 0], xi[:, 1]],
            "per_coordinate": [xi[:, :1], xi[:, 1:]],
        }[thermostat]
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11), results.thermostat, expected
        )
        np.testing.assert_allclose(results.kinetic_temperature, (p**2 / mass).mean(axis=-1))
    assert steps[-1].results.step.numpy() == 3


@pytest.mark.parametrize("xi", [0.0, -3.0, 1e-12])
def test_exact_ornstein_uhlenbeck_step_without_friction_and_with_negative(xi: float) -> None:
    """With xi = 0, held by a huge thermal mass, dp = sqrt(2 A) dW has the variance 2 A h."""
    kernel = sgmcmc.SGNHT(
        sgmcmc.FullDataLogProb(lambda x: 0.0 * x), 0.1, 3.0, "adodab", thermal_mass=1e30,
        initial_momentum=2.0,
    )  # fmt: skip
    state = tf.zeros([2], tf.float64)
    results = kernel.bootstrap_results(state)
    results = results._replace(thermostat=tf.fill([2], tf.constant(xi, tf.float64)))
    _, results = kernel.one_step(state, results, SEED)
    z = random.normal_like(state, random.split(SEED, 2)[1]).numpy()
    variance = 6.0 * (0.1 if abs(xi) < 1e-6 else (1 - np.exp(-0.2 * xi)) / (2 * xi))
    expected = 2.0 * np.exp(-0.1 * xi) + np.sqrt(variance) * z
    np.testing.assert_allclose(results.momentum, expected, rtol=1e-10)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_mean_decay_is_smooth_through_zero(dtype: tf.DType, jit: bool) -> None:
    x = np.concatenate([-np.geomspace(1e-30, 5, 200), [0.0], np.geomspace(1e-30, 5, 200)])
    got = tf.function(mean_decay, jit_compile=jit)(tf.constant(x, dtype)).numpy()
    x = tf.constant(x, dtype).numpy().astype(np.float64)
    series = 1 - x / 2 + x**2 / 6
    safe = np.where(np.abs(x) < 1e-5, 1.0, x)
    expected = np.where(np.abs(x) < 1e-5, series, (1 - np.exp(-safe)) / safe)
    np.testing.assert_allclose(got, expected, rtol=1e-6 if dtype == tf.float32 else 1e-10)


def test_schedules() -> None:
    target = MODEL.target(BATCH, tf.float64, parts=True)
    kernel = sgmcmc.SGNHT(
        target,
        lambda t: 0.05 / (1 + tf.cast(t, tf.float64)),
        lambda t: 3.0 + tf.cast(t, tf.float64),
        thermal_mass=lambda t: 1.0 + tf.cast(t, tf.float64),
        temperature=lambda t: 2.0 - 0.5 * tf.cast(t, tf.float64),
    )
    theta, p, xi = START, np.zeros([2, 3]), np.full([2, 3], 3.0)
    for t, found in enumerate(by_hand.take(kernel, target, two_parts(START), 3)):
        formula = Formula(
            "scalar", h=0.05 / (1 + t), friction=3.0 + t, mu=1.0 + t, temperature=2.0 - 0.5 * t
        )
        theta, p, xi = formula.euler(theta, p, xi, found.draws)
        np.testing.assert_allclose(found.moved, theta, rtol=1e-10)
        np.testing.assert_allclose(flat(found.results.momentum), p, rtol=1e-10)
        np.testing.assert_allclose(found.results.step_size, 0.05 / (1 + t))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "jit"),
    [("euler", False), pytest.param("adodab", False, marks=pytest.mark.thorough), ("adodab", True)],
)
def test_every_mode_takes_the_step_of_its_own_draws(scheme: Any, jit: bool) -> None:
    target = MODEL.target(BATCH, tf.float64, parts=True)
    kernel = sgmcmc.SGNHT(target, 0.05, 3.0, scheme, initial_momentum=two_parts(MOMENTUM))
    _, draws, moved, results = by_hand.compiled(kernel, target, jit)(two_parts(START))
    theta, p, _ = getattr(Formula("scalar"), scheme)(START, MOMENTUM, np.full([2, 3], 3.0), draws)
    np.testing.assert_allclose(moved, theta, rtol=1e-10)
    np.testing.assert_allclose(flat(results.momentum), p, rtol=1e-10)
