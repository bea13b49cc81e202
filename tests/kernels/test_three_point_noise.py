"""Kernels with three-point noise: exact laws of SGLD and of both splittings, and their weak order.

For a Gaussian target a step is linear, x <- F x + L z. With cumulants kappa_k of z, theta has

  kappa_k(theta) = kappa_k sum_j ((F^j L)_theta)^k.

Three-point numbers have kappa_2, ..., kappa_6 = 1, 0, 0, 0, -6, random signs 1, 0, -2, 0, 16.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import run_chains
from tests.harness.phase_space import linear_scheme
from tests.harness.statistics import Rejected, check_counts, check_means
from tfp_sgmcmc import random

CUMULANTS = {"normal": {4: 0, 6: 0}, "three_point": {4: 0, 6: -6}, "rademacher": {4: -2, 6: 16}}
NUM_CHAINS = 400_000
FRICTION = 1.5


def quadratic(theta: tf.Tensor) -> tf.Tensor:
    """Returns log p of N(0, 1) for each chain, which is one number."""
    return -0.5 * theta**2


def sgld(step: float, noise: Any = "three_point") -> sgmcmc.SGLD:
    return sgmcmc.SGLD(sgmcmc.FullDataLogProb(quadratic), step, noise=noise)


def underdamped(step: float, scheme: Any, noise: Any = "three_point") -> sgmcmc.UnderdampedLangevin:
    target = sgmcmc.FullDataLogProb(quadratic)
    return sgmcmc.UnderdampedLangevin(target, step, FRICTION, scheme, noise=noise)


def sgld_response(step: float) -> np.ndarray:
    """Returns what a unit of noise has become in theta after j steps, for j = 0, 1, ..."""
    return np.sqrt(step) * (1 - step / 2) ** np.arange(60 / step)


def splitting_response(step: float, scheme: Any) -> np.ndarray:
    """Returns (F^j L)_theta. The noise z of a kernel with normals is replaced by basis vectors."""
    found = linear_scheme(
        lambda target, initial_momentum: sgmcmc.UnderdampedLangevin(
            target, step, FRICTION, scheme, initial_momentum=initial_momentum
        ),
        np.eye(1),
    )
    column, response = found.drawn[:, 0], []
    for _ in range(int(100 / step)):
        response.append(column[0])
        column = found.step @ column
    return np.array(response)


def excess(response: np.ndarray, order: int, noise: str) -> float:
    """Returns the cumulant of `order` of theta, which a Gaussian law does not have."""
    return CUMULANTS[noise][order] * float(np.sum(response**order))


def moments(response: np.ndarray, noise: str) -> list[float]:
    """Returns E theta^2, E theta^4 and E theta^6."""
    second = float(np.sum(response**2))
    fourth, sixth = (excess(response, k, noise) for k in (4, 6))
    return [
        second,
        fourth + 3 * second**2,
        sixth + 15 * fourth * second + 15 * second**3,
    ]


CASES: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "SGLD": (lambda **noise: sgld(1.0, **noise), sgld_response(1.0)),
    "baoab": (lambda **noise: underdamped(1.0, "baoab", **noise), splitting_response(1.0, "baoab")),
    "obabo": (lambda **noise: underdamped(1.0, "obabo", **noise), splitting_response(1.0, "obabo")),
}


NAMES = ["SGLD", "baoab", pytest.param("obabo", marks=pytest.mark.thorough)]


def check_moments(kernel: Any, expected: list[float]) -> None:
    """Checks the moments of independent chains; finds half of what three-point noise changes."""
    theta = run_chains(kernel, tf.zeros([NUM_CHAINS]), num_results=1, num_burnin=40, seed=3)
    x = theta.reshape(-1).astype(np.float64)
    error = [0.02 * expected[0], 0.05 * expected[1], 0.2 * expected[2]]
    check_means(np.stack([x**2, x**4, x**6], axis=1), expected, error)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    ["SGLD", *(pytest.param(s, marks=pytest.mark.thorough) for s in ("baoab", "obabo"))],
)
def test_stationary_moments(name: str) -> None:
    make, response = CASES[name]
    check_moments(make(), moments(response, "three_point"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_stationary_moments_of_other_noise_are_rejected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, response = CASES[name]
    with pytest.raises(Rejected):
        check_moments(make(noise="normal"), moments(response, "three_point"))
    monkeypatch.setattr(random, "three_point_like", random.rademacher_like)
    with pytest.raises(Rejected):
        check_moments(make(), moments(response, "three_point"))


@pytest.mark.parametrize("step", [0.2, 1.0, 3.0])
def test_formulas_of_the_docstring(step: float) -> None:
    """SGLD keeps the variance; its cumulants are geometric series of powers of rho."""
    response, rho = sgld_response(step), 1 - step / 2
    variance = np.sum(response**2)
    np.testing.assert_allclose(variance, step / (1 - rho**2))
    kurtosis = excess(response, 4, "rademacher") / variance**2
    np.testing.assert_allclose(kurtosis, -2 * (1 - rho**2) / (1 + rho**2))
    sixth = excess(response, 6, "three_point") / variance**3
    np.testing.assert_allclose(sixth, -6 * (1 - rho**2) ** 3 / (1 - rho**6))


def test_the_law_after_three_steps_of_sgld() -> None:
    """Counts 27 atoms. Finds 20 % more of the rarest."""
    step, size = 1.4, 1_000_000  # rho = 0.3 keeps the atoms apart

    def count(noise: Any) -> None:
        x = run_chains(sgld(step, noise), tf.zeros([size]), 1, 2, seed=5).reshape(-1)
        z = np.array(list(itertools.product([-1, 0, 1], repeat=3)))
        atoms = z @ (np.sqrt(3 * step) * 0.3 ** np.arange(3))
        order = np.argsort(atoms)
        edges = (atoms[order][1:] + atoms[order][:-1]) / 2
        found = np.searchsorted(edges, x)
        if np.abs(x - atoms[order][found]).max() > 1e-5:
            raise Rejected("There must be no draws between the atoms.")
        law = np.prod(np.where(z == 0, 2 / 3, 1 / 6), axis=1)[order]
        check_counts(np.bincount(found, minlength=27), law, error=0.2)

    count("three_point")
    with pytest.raises(Rejected):
        count("normal")


@pytest.mark.parametrize("scheme", ["baoab", "obabo"])
def test_cumulants_are_of_the_order_of_the_scheme(scheme: Any) -> None:
    """Three-point noise has them to second order in h, and random signs to first order only."""
    steps = [splitting_response(h, scheme) for h in (0.02, 0.01)]
    ratio = {
        (k, noise): np.divide(*(excess(r, k, noise) / np.sum(r**2) ** (k / 2) for r in steps))
        for k, noise in ((6, "three_point"), (4, "rademacher"))
    }
    np.testing.assert_allclose(ratio[6, "three_point"], 4, rtol=0.02)
    np.testing.assert_allclose(ratio[4, "rademacher"], 2, rtol=0.02)


def expectation(scheme: Any, num_steps: int, values: np.ndarray, weights: np.ndarray) -> float:
    """Returns E cos 4 theta at time 1/2 in an anharmonic potential, summed over all paths of z."""
    size = len(values) ** num_steps
    paths = np.arange(size) // len(values) ** np.arange(num_steps)[:, np.newaxis] % len(values)
    draws = iter(tf.constant(values[paths]))
    target = sgmcmc.FullDataLogProb(lambda x: -(x**2) / 2 - x**4 / 4)
    kernel = sgmcmc.UnderdampedLangevin(
        target, 0.5 / num_steps, FRICTION, scheme, initial_momentum=0.3, noise="three_point"
    )
    theta = 0.7 + tf.zeros([size], tf.float64)
    results = kernel.bootstrap_results(theta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "three_point_like", lambda *_: next(draws))
        for t in range(num_steps):
            theta, results = kernel.one_step(theta, results, seed=t)
    return float(np.prod(weights[paths], axis=0) @ np.cos(4 * theta.numpy()))


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", NAMES[1:])
def test_weak_order_is_kept_where_random_signs_lower_it(scheme: Any) -> None:
    """The error that the noise adds to normals' is of second order, with random signs of first.

    Five Gauss-Hermite nodes stand for normals, whose moments they have up to the ninth.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    normal = [expectation(scheme, n, nodes, weights / weights.sum()) for n in (4, 8)]

    def order(values: Any, weights: Any) -> float:
        found = [expectation(scheme, n, np.array(values), np.array(weights)) for n in (4, 8)]
        return float(np.log2(np.divide(*np.subtract(found, normal))))

    assert order([-np.sqrt(3), 0, np.sqrt(3)], [1 / 6, 2 / 3, 1 / 6]) > 1.5  # nearer to 2 than 1
    assert order([-1.0, 1.0], [1 / 2, 1 / 2]) < 1.5
