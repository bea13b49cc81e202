"""Underdamped Langevin dynamics samples the exact law of its scheme, bias included.

On the Gaussian-mean model every step is linear and the gradient noise has one covariance Sigma.
The first tests read the matrices of a step off the code and compare their law with closed forms.
Then chains are compared with them, with a false-alarm rate of 1e-6 for each test and a stated
power, which the checks verify. Broken samplers go through the same checks.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.mutation import changed, copies, forgets_momentum, frozen_part, mutant
from tests.harness.phase_space import LinearScheme, Run, linear_scheme, run_phase_space
from tests.harness.statistics import Rejected, check_covariance, check_means

MODEL = GaussianMean(num_examples=12)
POSTERIOR = np.linalg.inv(MODEL.hessian)
MASS = np.array([0.5, 1.0, 2.0])
BATCH = 6
NOISE = MODEL.noise(BATCH, replacement=True)
NONE = np.zeros([3, 3])
LIMIT = 2 / np.sqrt(np.linalg.eigvalsh(MODEL.hessian).max())
STEP = 0.6 * LIMIT
FRICTION = 3.0
BURNIN = 100
CHAINS = 4000
VARIANCE_ERROR = 0.08
SCHEMES = ("baoab", "obabo", "aboba")


def read(
    name: str,
    step_size: float = STEP,
    friction: float = FRICTION,
    kernel: Any = sgmcmc.UnderdampedLangevin,
    **options: Any,
) -> LinearScheme:
    return linear_scheme(
        lambda target, **momentum: kernel(target, step_size, friction, name, **options, **momentum),
        MODEL.hessian,
    )


def temperature(name: str, h: float, noise: np.ndarray, mass: Any = 1.0) -> float:
    """Returns the mean of p^T m^-1 p / d before O, from the law of (theta, p) between steps."""
    law = read(name, h, mass=mass).covariance(noise)
    inverse_mass = np.diag(1 / np.broadcast_to(mass, [3]))
    if name == "baoab":
        return np.trace(inverse_mass @ law[3:, 3:]) / 3
    drift = h if name == "obabo" else h / 2
    drag = h / 2 * MODEL.hessian
    to_p = np.hstack([-drag, np.eye(3) - drift * drag @ inverse_mass])
    before_o = to_p @ law @ to_p.T + h**2 / 4 * noise
    return np.trace(inverse_mass @ before_o) / 3


# The closed form


@pytest.mark.parametrize("of_limit", [0.2, 0.99])
@pytest.mark.parametrize("friction", [0.3, 30.0])
@pytest.mark.parametrize(("mass", "temperature"), [(1.0, 1.0), (MASS, 0.3)])
def test_exact_gradients(of_limit: float, friction: float, mass: Any, temperature: float) -> None:
    """BAOAB and ABOBA have no error in theta. OBABO has that of the leapfrog.

    This is T (A - h^2/4 A m^-1 A)^-1. Both hold at every friction. Between steps, BAOAB's momenta
    have the law N(0, T m), and ABOBA's T (m^-1 - h^2/4 m^-1 A m^-1)^-1.
    """
    mass = np.broadcast_to(mass, [3])
    h = of_limit * 2 / np.sqrt(np.linalg.eigvals(MODEL.hessian / mass[:, np.newaxis]).real.max())
    options = dict(mass=mass, temperature=temperature)
    baoab, obabo, aboba = (read(name, h, friction, **options) for name in SCHEMES)
    assert all(scheme.spectral_radius < 1 for scheme in (baoab, obabo, aboba))
    law = baoab.covariance(NONE)
    np.testing.assert_allclose(law[:3, :3], temperature * POSTERIOR, rtol=1e-8)
    np.testing.assert_allclose(law[3:, 3:], temperature * np.diag(mass), rtol=1e-8, atol=1e-9)
    leapfrog = MODEL.hessian - h**2 / 4 * MODEL.hessian @ np.diag(1 / mass) @ MODEL.hessian
    expected = temperature * np.linalg.inv(leapfrog)
    np.testing.assert_allclose(obabo.position(NONE), expected, rtol=1e-8)
    law, inverse_mass = aboba.covariance(NONE), np.diag(1 / mass)
    np.testing.assert_allclose(law[:3, :3], temperature * POSTERIOR, rtol=1e-8)
    drag = h**2 / 4 * inverse_mass @ MODEL.hessian @ inverse_mass
    expected = temperature * np.linalg.inv(inverse_mass - drag)
    np.testing.assert_allclose(law[3:, 3:], expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("mass", [1.0, MASS])
def test_kinetic_temperature_is_exact_but_for_gradient_noise(name: str, mass: Any) -> None:
    np.testing.assert_allclose(temperature(name, STEP, NONE, mass), 1.0, rtol=1e-10)
    assert temperature(name, STEP, NOISE, mass) > 1.1


@pytest.mark.parametrize(
    ("name", "noise", "ratio"),
    [
        ("obabo", NONE, 4.0),
        ("obabo", NOISE, 2.0),
        ("baoab", NOISE, 2.0),
        ("aboba", NOISE, 2.0),
    ],
)
def test_order(name: str, noise: np.ndarray, ratio: float) -> None:
    """The error is of second order with exact gradients, and of first order with noise."""
    errors = [np.linalg.norm(read(name, h).position(noise) - POSTERIOR) for h in (2e-3, 1e-3)]
    np.testing.assert_allclose(errors[0] / errors[1], ratio, rtol=0.01)


# Chains


def start(chains: int = CHAINS) -> tf.Tensor:
    return tf.ones([chains, 3])


def check(run: Run, law: np.ndarray) -> None:
    mean = np.concatenate([MODEL.mean, np.zeros(3)])
    check_covariance(run.samples, mean, law, VARIANCE_ERROR)


def check_temperature(run: Run, expected: float) -> None:
    values = run.kinetic_temperature.mean(axis=1) / expected
    check_means(values, 1.0, VARIANCE_ERROR, "kinetic temperature")


def noisy(name: str, jit: bool = False) -> Run:
    target = MODEL.target(BATCH, replacement=True)
    kernel = sgmcmc.UnderdampedLangevin(target, STEP, FRICTION, name)
    return run_phase_space(kernel, start(), 50, BURNIN, seed=1, jit=jit)


@pytest.fixture(scope="module")
def noisy_baoab() -> Run:
    return noisy("baoab", jit=True)


def check_noisy(name: str, run: Run) -> None:
    assert read(name).spectral_radius ** BURNIN < 1e-6
    check(run, read(name).covariance(NOISE))
    check_temperature(run, temperature(name, STEP, NOISE))


@pytest.mark.thorough
def test_baoab_with_minibatches_under_xla(noisy_baoab: Run) -> None:
    check_noisy("baoab", noisy_baoab)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["obabo", "aboba"])
def test_other_schemes_with_minibatches(name: str) -> None:
    check_noisy(name, noisy(name))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("baoab", marks=pytest.mark.thorough),
        "obabo",
        pytest.param("aboba", marks=pytest.mark.slow),
    ],
)
def test_exact_gradients_with_steps_frictions_and_temperatures_of_each_chain(name: str) -> None:
    of_limit, frictions, temperatures = [0.3, 0.95], [8.0, 2.0], [1.0, 2.0]

    def each(values: Any) -> np.ndarray:
        return np.repeat(np.float32(values), CHAINS)

    kernel = sgmcmc.UnderdampedLangevin(
        MODEL.exact_target(tf.float32),
        each(of_limit) * np.float32(LIMIT),
        each(frictions),
        name,
        temperature=each(temperatures),
    )
    everything = run_phase_space(kernel, start(2 * CHAINS), 50, BURNIN, seed=2)
    groups = zip(of_limit, frictions, temperatures, strict=True)
    for i, (f, friction, heat) in enumerate(groups):
        run = Run(*(x[i * CHAINS : (i + 1) * CHAINS] for x in everything))
        scheme = read(name, f * LIMIT, friction, temperature=heat)
        assert scheme.spectral_radius**BURNIN < 1e-6
        check(run, scheme.covariance(NONE))
        check_temperature(run, heat)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["baoab", pytest.param("obabo", marks=pytest.mark.slow)])
def test_two_parts_with_masses(name: str) -> None:
    target = MODEL.target(BATCH, replacement=True, parts=True)
    kernel = sgmcmc.UnderdampedLangevin(target, STEP, FRICTION, name, mass=[MASS[:1], MASS[1:]])
    state = [tf.ones([CHAINS, 1]), tf.ones([CHAINS, 2])]
    run = run_phase_space(kernel, state, 50, BURNIN, seed=3)
    check(run, read(name, mass=MASS).covariance(NOISE))
    check_temperature(run, temperature(name, STEP, NOISE, MASS))


# Negative controls


def broken(*changes: tuple[str, str]) -> dict[str, Any]:
    return dict(kernel=mutant(sgmcmc.UnderdampedLangevin, *changes))


LINEAR_MUTATIONS = {
    "noise of another temperature": dict(temperature=1.2),
    "decay that does not match the noise": broken(("tf.exp(-friction", "tf.exp(-1.5 * friction")),
    "noise of half a step": broken(("expm1(-2 * friction", "expm1(-1 * friction")),
    "one half drift": broken(("drift(theta, p, mass, h / 2)", "drift(theta, p, mass, 0 * h)")),
    "half a kick": broken(("kick(p, estimate.gradient, h)", "kick(p, estimate.gradient, h / 2)")),
}


@pytest.mark.parametrize(
    "change",
    [
        ("theta = drift(theta, p, mass, 0.5 * h)", "pass"),
        ("p = kick(o(before_o), estimate.gradient, h / 2)", "p = o(before_o)"),
    ],
)
def test_a_broken_aboba_is_not_exact(change: tuple[str, str]) -> None:
    law = read("aboba", 0.5 * STEP, **broken(change)).position(NONE)
    assert np.abs(np.linalg.solve(POSTERIOR, law) - np.eye(3)).max() > 0.05


@pytest.mark.thorough
@pytest.mark.parametrize("name", LINEAR_MUTATIONS)
def test_laws_of_broken_samplers_are_rejected(name: str, noisy_baoab: Run) -> None:
    law = read("baoab", **LINEAR_MUTATIONS[name]).covariance(NOISE)
    with pytest.raises(Rejected):
        check(noisy_baoab, law)


@pytest.mark.thorough
def test_wrong_laws_are_rejected(noisy_baoab: Run) -> None:
    for noise in (NONE, MODEL.noise(BATCH, replacement=False)):
        with pytest.raises(Rejected):
            check(noisy_baoab, read("baoab").covariance(noise))
    for expected in (1.0, temperature("obabo", STEP, NOISE)):
        with pytest.raises(Rejected):
            check_temperature(noisy_baoab, expected)


@pytest.mark.parametrize(
    "kernel",
    [
        forgets_momentum(sgmcmc.UnderdampedLangevin),
        pytest.param(changed(sgmcmc.UnderdampedLangevin, frozen_part), marks=pytest.mark.thorough),
        pytest.param(changed(sgmcmc.UnderdampedLangevin, copies), marks=pytest.mark.thorough),
    ],
    ids=["no momentum", "frozen part", "copies"],
)
def test_broken_samplers_are_rejected(kernel: Any) -> None:
    """A fifth of the chains is enough to reject these."""
    target = MODEL.target(BATCH, replacement=True)
    run = run_phase_space(kernel(target, STEP, FRICTION), start(CHAINS // 5), 50, BURNIN, seed=4)
    with pytest.raises(Rejected):
        check(run, read("baoab").covariance(NOISE))
