"""SGNHT holds its temperature, adapts to the noise, and samples the law of its scheme.

In a stationary chain the mean kinetic temperature is T for every step size, because xi would drift
otherwise. With a large thermal mass xi stays at its mean, and (theta, p) has the law of a linear
scheme (`tests/harness/thermostats.py`), minibatch noise and bias included. False-alarm rate: 1e-6
for each test. The power is stated at each check, which verifies it.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.mutation import mutant
from tests.harness.phase_space import linear_scheme
from tests.harness.statistics import Rejected, check_cdf, check_covariance, check_means
from tests.harness.thermostats import (
    NoisyQuadratic,
    Run,
    adodab_law,
    balanced,
    euler_law,
    run_thermostat,
)

MODEL = GaussianMean(num_examples=12)
HESSIAN = MODEL.hessian
BATCH = 4
NOISE = MODEL.noise(BATCH, replacement=True)
MASS = np.array([0.5, 1.0, 2.0])
H, FRICTION = 0.04, 4.0
CHAINS = 4000
LAWS = {"euler": euler_law, "adodab": adodab_law}


def law(scheme: str, h: float = H, noise: np.ndarray = NOISE, **options: Any) -> Any:
    """The mean of xi and the covariance of (theta, p)."""
    return balanced(lambda xi: LAWS[scheme](HESSIAN, h, xi, FRICTION, noise, **options))


def check(run: Run, covariance: np.ndarray, error: float) -> None:
    check_covariance(run.samples, np.concatenate([MODEL.mean, np.zeros(3)]), covariance, error)


# The law with a large thermal mass


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", [pytest.param("euler", marks=pytest.mark.slow), "adodab"])
def test_law_of_minibatch_chains(scheme: Any) -> None:
    """With a thermal mass of 100 xi varies by 1%, and the law by less than 0.1%. Power: 6%."""
    mass, temperature = (MASS, 1.5) if scheme == "adodab" else (1.0, 1.0)
    xi, covariance = law(scheme, mass=mass, temperature=temperature)
    kernel = sgmcmc.SGNHT(
        MODEL.target(BATCH, replacement=True),
        H,
        FRICTION,
        scheme,
        thermal_mass=100.0,
        mass=np.float32(mass),
        temperature=temperature,
    )
    run = run_thermostat(kernel, tf.ones([CHAINS, 3]), 200, 250, seed=1, first=xi)
    check(run, covariance, error=0.08)
    temperature_after = np.mean(np.diag(covariance)[3:] / mass)
    check_means(run.kinetic_temperature.mean(axis=1), temperature_after, 0.05 * temperature)
    with pytest.raises(Rejected):  # control: no minibatch noise
        check(run, law(scheme, noise=0 * NOISE, mass=mass, temperature=temperature)[1], 0.08)


@pytest.mark.parametrize("scheme", ["euler", "adodab"])
@pytest.mark.parametrize(("mass", "temperature"), [(1.0, 1.0), (MASS, 0.7)])
def test_closed_form_is_that_of_the_code(scheme: Any, mass: Any, temperature: float) -> None:
    """With xi = A, which a large thermal mass holds there."""
    matrices = linear_scheme(
        lambda quadratic, **momentum: sgmcmc.SGNHT(
            quadratic, H, 5.0, scheme, thermal_mass=1e30, mass=mass, temperature=temperature,
            **momentum,
        ),
        HESSIAN,
    )  # fmt: skip
    expected = LAWS[scheme](HESSIAN, H, 5.0, 5.0, NOISE, mass, temperature).covariance
    np.testing.assert_allclose(matrices.covariance(NOISE), expected, rtol=1e-9, atol=1e-12)


def test_order_of_the_error_of_theta() -> None:
    """Tests error(h) / error(h / 2) for gradient noise of the shape that xi dissipates.

    On a Gaussian the splitting is exact without noise, and here of third order. Noise of another
    shape causes an error of first order in both schemes.
    """
    posterior = np.linalg.inv(HESSIAN)

    def ratio(scheme: str, noise: np.ndarray) -> float:
        errors = [
            np.linalg.norm(law(scheme, h, noise)[1][:3, :3] - posterior) for h in (4e-3, 2e-3)
        ]
        return float(errors[0] / errors[1])

    np.testing.assert_allclose(ratio("euler", 30 * np.eye(3)), 2.0, rtol=0.03)
    assert ratio("adodab", 30 * np.eye(3)) > 3.9
    np.testing.assert_allclose(ratio("euler", NOISE), 2.0, rtol=0.03)
    np.testing.assert_allclose(ratio("adodab", NOISE), 2.0, rtol=0.03)
    exact = law("adodab", 0.04, 0 * NOISE)[1][:3, :3]
    np.testing.assert_allclose(exact, posterior, rtol=1e-9, atol=1e-12)


# Temperature and thermostat


@pytest.fixture(scope="module", params=["euler", pytest.param("adodab", marks=pytest.mark.slow)])
def thermal(request: pytest.FixtureRequest) -> tuple[str, Run]:
    """Runs 20 coordinates, where gradient noise adds s = h sigma^2 / (2 T) = 1 to the friction."""
    kernel = sgmcmc.SGNHT(NoisyQuadratic(4.0, 10.0), 0.02, 1.0, request.param, initial_momentum=1.0)
    run = run_thermostat(kernel, tf.zeros([2000, 20]), 400, 600, seed=2)
    return request.param, run


@pytest.mark.thorough
def test_thermostat_comes_to_friction_and_noise(thermal: tuple[str, Run]) -> None:
    """Its mean is A + s = 2 + O(h^2), its variance T / (mu d). Power: 2% and 15%."""
    scheme, run = thermal
    hessian, noise = 4.0 * np.eye(1), 100.0 * np.eye(1)
    xi, _ = balanced(lambda xi: LAWS[scheme](hessian, 0.02, xi, 1.0, noise))
    np.testing.assert_allclose(xi, 2.0, rtol=0.03)
    check_means(run.thermostat.mean(axis=1), xi, 0.04, "thermostat")
    check_means(np.square(run.thermostat - xi).mean(axis=1), 1 / 20, 0.0075, "its variance")


@pytest.mark.thorough
def test_kinetic_temperature(thermal: tuple[str, Run]) -> None:
    """It is T after a Euler step, and T + h s + O(h^2) after the kick of the splitting."""
    scheme, run = thermal
    expected = 1.0 if scheme == "euler" else 1.0 + 0.02
    check_means(run.kinetic_temperature.mean(axis=1), expected, 0.01, "kinetic temperature")


@pytest.mark.thorough
def test_kinetic_temperature_has_its_chi_square_law(thermal: tuple[str, Run]) -> None:
    """Tests d K / T of independent last states. Power: a Kolmogorov distance of 0.11."""
    _, run = thermal
    check_cdf(20 * run.kinetic_temperature[:, -1], stats.chi2(20).cdf, error=0.11)


@pytest.mark.slow
@pytest.mark.parametrize("thermostat", ["per_part", "per_coordinate"])
def test_thermostats_of_parts_and_coordinates_find_their_own_noise(thermostat: Any) -> None:
    """In two parts with noise of s = 1 and s = 2, xi settles at 2 and 3. Power: 4%.

    Control: with one thermostat for both, neither variance of theta is 1 / 4.
    """
    parts = thermostat == "per_part"
    kernel = sgmcmc.SGNHT(
        NoisyQuadratic(4.0, 10.0, 200**0.5),
        step_size=0.02,
        friction=1.0,
        scheme="adodab",
        thermostat=thermostat,
        thermal_mass=1.0 if parts else 2.0,
    )
    state = [tf.zeros([550, 10])] * 2

    def means(kernel: sgmcmc.SGNHT) -> tuple[np.ndarray, np.ndarray]:
        run = run_thermostat(kernel, state, 500, 1000 if parts else 2500, seed=3)
        xi = run.thermostat.mean(axis=1)
        theta = np.square(run.samples[..., :20]).mean(axis=1)
        return xi.reshape(len(xi), -1), theta.reshape(len(theta), 2, 10).mean(axis=-1)

    xi, theta = means(kernel)
    check_means(xi.reshape(len(xi), 2, -1).mean(axis=-1), [2.0, 3.0], [0.08, 0.12], "thermostats")
    check_means(theta, 0.25, 0.0125, "variances")
    if parts:
        with pytest.raises(Rejected):
            check_means(means(kernel.copy(thermostat="scalar"))[1], 0.25, 0.0125)


# Negative controls

MUTATIONS = {
    "thermostat fed |p|": (
        "return kinetic_temperature(p, mass, chain_ndims)",
        "return tf.reduce_mean(tf.abs(p), axis=-1)",
    ),
    "thermostat fed p.p, not p.p / d": (
        "return kinetic_temperature(p, mass, chain_ndims)",
        "return 20 * kinetic_temperature(p, mass, chain_ndims)",
    ),
    "thermostat off": (
        "x + scaled(h / mu, k) - scaled(h * temperature / mu, tf.ones_like(k))",
        "x + 0 * k",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name != "thermostat fed |p|"))
        for name in MUTATIONS
    ],
)
def test_broken_thermostats_are_rejected(name: str) -> None:
    """Their temperature and their xi are rejected, with a tenth of the chains."""
    broken = mutant(sgmcmc.SGNHT, MUTATIONS[name])
    kernel = broken(NoisyQuadratic(4.0, 10.0), 0.02, 1.0, initial_momentum=1.0)
    run = run_thermostat(kernel, tf.zeros([200, 20]), 400, 600, seed=2, jit=False)
    with pytest.raises(Rejected):
        check_means(run.kinetic_temperature.mean(axis=1), 1.0, 0.05)
    with pytest.raises(Rejected):
        check_means(run.thermostat.mean(axis=1), 2.0425, 0.1)
    with pytest.raises(Rejected):
        check_cdf(20 * run.kinetic_temperature[:, -1], stats.chi2(20).cdf, error=0.4)


LINEAR_MUTATIONS = {
    "noise of twice the variance": (
        "tf.sqrt(2 * friction * temperature * h)",
        "tf.sqrt(4 * friction * temperature * h)",
    ),
    "noise without the mass": ("(state, mass, tf.sqrt(2", "(state, 1.0 + 0 * mass, tf.sqrt(2"),
    "gradient halved": ("p + scaled(h, g) - ", "p + scaled(h / 2, g) - "),
    "friction doubled": ("scaled(h, scaled(x, p))", "scaled(2 * h, scaled(x, p))"),
}


@pytest.mark.parametrize("name", LINEAR_MUTATIONS)
def test_broken_steps_have_another_law(name: str) -> None:
    """With xi held at A. They violate the closed form above."""
    broken = mutant(sgmcmc.SGNHT, LINEAR_MUTATIONS[name])
    matrices = linear_scheme(
        lambda quadratic, **momentum: broken(
            quadratic, H, 5.0, thermal_mass=1e30, mass=MASS, **momentum
        ),
        HESSIAN,
    )
    expected = euler_law(HESSIAN, H, 5.0, 5.0, NOISE, MASS).covariance
    assert np.abs(matrices.covariance(NOISE) / expected - 1).max() > 0.1
