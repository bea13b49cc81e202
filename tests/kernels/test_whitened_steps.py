"""The numbers in the kernels' docstrings, for steps in whitened coordinates, from the exact laws.

On N(0, 1) with exact gradients a step is linear, x <- F x + L z, and its stationary covariance S
solves a discrete Lyapunov equation. The autocovariances F^k S sum to the effective samples a step.
"""

import inspect
from typing import Any

import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import sgld_step
from tests.harness.phase_space import linear_scheme

STEPS = (0.1, 0.5, 1.0)
ONE = np.ones([1, 1])


def says(kernel: Any, *sentences: str) -> None:
    text = " ".join((inspect.getdoc(kernel) or "").split())
    for sentence in sentences:
        assert sentence in text, sentence


def listed(values: Any) -> str:
    a, b, c = (f"{x:.2g}".replace("1e+02", "100") for x in values)
    return f"{a}, {b} and {c}"


def law(step: np.ndarray, injected: np.ndarray) -> tuple[float, float]:
    """Returns the variance of theta, and the effective samples a step."""
    covariance = solve_discrete_lyapunov(step, injected)
    total = 2 * np.linalg.solve(np.eye(len(step)) - step, covariance)[0, 0] / covariance[0, 0] - 1
    return covariance[0, 0], 1 / total


def errors(variances: Any) -> str:
    a, b, c = (f"{100 * (v - 1):.2g}".replace("1e+02", "100") for v in variances)
    return f"too large by {a} %, {b} % and {c} %"


def momentum_law(kernel: Any, h: float, draw: float = 1.0, **options: Any) -> tuple[float, float]:
    """`draw` multiplies the variance of the noise that is drawn."""
    scheme = linear_scheme(lambda target, **momentum: kernel(target, h, **options, **momentum), ONE)
    return law(scheme.step, draw * scheme.drawn @ scheme.drawn.T)


@pytest.mark.parametrize("kernel", [sgmcmc.SGLD, sgmcmc.ModifiedSGLD])
def test_sgld(kernel: Any) -> None:
    """Without noise of the gradient ModifiedSGLD is SGLD."""
    laws = [law(*np.array(sgld_step(ONE, h, 1.0, 1.0))[[0, 2]]) for h in STEPS]
    variances, sizes = zip(*laws, strict=True)
    says(kernel, f"the steps 0.1, 0.5 and 1 make variances {errors(variances)}, and give ")
    says(kernel, f"and give {listed(sizes)} effective samples a step")


def test_sgfs() -> None:
    """With N V = I, c = 0 and so gamma = 1, drift and noise are those of the equation."""
    laws = []
    for h in STEPS:
        gain = 2 / (1 + 4 / h)
        laws.append(law(ONE - gain, gain**2 * 4 / h * ONE))
    variances, sizes = zip(*laws, strict=True)
    np.testing.assert_allclose(variances, 1)
    says(sgmcmc.SGFS, f"leave variances exact, and give {listed(sizes)} effective samples")


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (sgmcmc.NOGIN, {}),
        (sgmcmc.UnderdampedLangevin, dict(scheme="baoab")),
        (sgmcmc.SGNHT, dict(scheme="adodab", thermal_mass=1e12)),
        (sgmcmc.CCAdL, dict(scheme="adodacbc", thermal_mass=1e12)),
        (sgmcmc.CCAdL, dict(thermal_mass=1e12)),
    ],
)
def test_schemes_that_are_exact(kernel: Any, options: dict[str, Any]) -> None:
    """xi = A balances the thermostats: the momenta in the middle of a step have variance 1."""
    variances, sizes = zip(*[momentum_law(kernel, h, **options) for h in STEPS], strict=True)
    np.testing.assert_allclose(variances, 1, rtol=1e-6)
    says(kernel, f"leave variances exact, and give {listed(sizes)} effective samples a step")


def test_obabo_and_sghmc() -> None:
    obabo, sizes = zip(
        *[momentum_law(sgmcmc.UnderdampedLangevin, h, scheme="obabo") for h in STEPS], strict=True
    )
    says(
        sgmcmc.UnderdampedLangevin,
        f"""Those of `"obabo"` make variances {errors(obabo)}, and give {listed(sizes)}.""",
    )
    sghmc, sizes = zip(
        *[momentum_law(sgmcmc.SGHMC, h, covariance=None) for h in STEPS], strict=True
    )
    says(sgmcmc.SGHMC, f"make variances {errors(sghmc)}, and give {listed(sizes)} effective")


def euler(xi: float, h: float) -> tuple[np.ndarray, np.ndarray]:
    return np.array([[1, h], [-h, 1 - h * xi - h**2]]), np.diag([0.0, 2 * h])


@pytest.mark.parametrize("kernel", [sgmcmc.SGNHT, sgmcmc.CCAdL])
def test_euler_schemes_with_a_thermostat(kernel: Any) -> None:
    """The matrices are those of the code. xi settles where the momenta have the variance 1."""
    for xi in (1.0, 1.5):
        found = momentum_law(kernel, 0.1, 1 / xi, friction=xi, thermal_mass=1e12, scheme="euler")
        np.testing.assert_allclose(found, law(*euler(xi, 0.1)), rtol=1e-6)

    def excess(xi: float, h: float) -> float:
        return solve_discrete_lyapunov(*euler(xi, h))[1, 1] - 1

    low, high = 0.5, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle, 0.1) > 0 else (low, middle)
    variance, size = law(*euler(low, 0.1))
    says(kernel, f"too small by {100 * (1 - variance):.2g} % and gives {size:.2g}.")
    for h in STEPS[1:]:
        stable = np.linspace(0, (4 / h - h) / 2, 200)[1:-1]
        assert min(excess(xi, h) for xi in stable) > 0
    says(kernel, "At 0.5 and 1 no xi holds its momenta at T")


def metropolis_law(epsilon: float, cells: int = 800) -> tuple[float, float]:
    """Returns the acceptance rate, and the effective samples a step, by a grid on [-7, 7]."""
    x = np.linspace(-7, 7, cells)
    density = np.exp(-(x**2) / 2)
    density /= density.sum()
    forward = -((x - x[:, np.newaxis] * (1 - epsilon / 2)) ** 2) / (2 * epsilon)
    ratio = np.log(density) - np.log(density)[:, np.newaxis] + forward.T - forward
    proposed = np.exp(forward) / np.sqrt(2 * np.pi * epsilon) * (x[1] - x[0])
    moved = proposed * np.exp(np.minimum(ratio, 0))
    step = moved + np.diag(1 - moved.sum(axis=1))
    solved = np.linalg.solve(np.eye(cells) - step + density, x)
    return density @ moved.sum(axis=1), 1 / (2 * (density * x) @ solved - 1)


def test_corrected_langevin() -> None:
    rates, sizes = zip(*[metropolis_law(h) for h in STEPS], strict=True)
    says(sgmcmc.CorrectedLangevin, f"accepted at rates of {listed(rates)}, and give ")
    says(sgmcmc.CorrectedLangevin, f"and give {listed(sizes)} effective samples a step")
