"""The linear laws are those of the kernels' code: its matrices, and Lyapunov's equation."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import tfp_sgmcmc as sgmcmc
from tests.harness.known_covariance import KnownCovariance
from tests.harness.linear_steps import QuadraticWithScores, step_matrix
from tests.harness.phase_space import linear_scheme
from tfp_sgmcmc.kernels.linear_theory import (
    LinearLaw,
    euler_law,
    nogin_law,
    overdamped_law,
    split_friction_law,
    splitting_law,
)

A, S = np.array([0.5, 2.0, 7.0]), np.array([3.0, 40.0, 0.0])
STEPS = [(0.01, 0.3), (0.3, 1.5), (0.7, 4.0)]  # h and friction


def in_direction(matrix: np.ndarray, i: int) -> np.ndarray:
    """Returns the block of (theta_i, p_i)."""
    at = np.arange(i, len(matrix), len(A))
    return matrix[np.ix_(at, at)]


@pytest.mark.parametrize(("h", "friction"), STEPS)
@pytest.mark.parametrize("name", ["UnderdampedLangevin", "NOGIN"])
def test_the_laws_with_momenta_are_those_of_the_code(name: str, h: float, friction: float) -> None:
    """Trace, determinant and stationary variance of one step, without known noise."""
    make = getattr(sgmcmc, name)
    scheme = linear_scheme(
        lambda target, initial_momentum: make(
            target, h, friction, initial_momentum=initial_momentum
        ),
        np.diag(A),
    )
    law = {"UnderdampedLangevin": splitting_law, "NOGIN": nogin_law}[name](h, friction, A, S)
    blocks = [in_direction(scheme.step, i) for i in range(3)]
    np.testing.assert_allclose(law.trace, [np.trace(b) for b in blocks], rtol=1e-9)
    np.testing.assert_allclose(law.determinant, [np.linalg.det(b) for b in blocks], rtol=1e-9)
    variances = np.diag(scheme.position(np.diag(S)))
    np.testing.assert_allclose(law.temperature, A * variances, rtol=1e-6)
    assert not np.allclose(A * variances, 1.0)  # the noise is seen
    np.testing.assert_allclose(A * np.diag(scheme.position(np.zeros([3, 3]))), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("h", "friction"),
    [STEPS[0], *(pytest.param(*s, marks=pytest.mark.thorough) for s in STEPS[1:])],
)
def test_noise_that_nogin_knows(h: float, friction: float) -> None:
    """Its matrix is the code's, and p is drawn so that the noise it takes s for leaves no bias."""
    known = 0.6 * S + 1.0
    options: dict[str, Any] = dict(covariance="full", num_estimation_steps=0)
    matrix, *_ = step_matrix(
        lambda target: sgmcmc.NOGIN(target, h, friction, **options),
        QuadraticWithScores(np.diag(A), np.diag(known)),
        3,
        num_before=40,
    )
    law, damping = nogin_law(h, friction, A, S, known), np.tanh(friction * h / 2)
    for i in range(3):
        block = in_direction(matrix, i)
        np.testing.assert_allclose(law.trace[i], np.trace(block), atol=1e-7)
        np.testing.assert_allclose(law.determinant[i], np.linalg.det(block), atol=1e-7)
        # p gets half a kick before and after it is multiplied by r, then theta half a drift.
        r = np.linalg.det(block)
        added = (1 + r) * np.array([h / 2, 1.0])
        covariance = np.outer(added, added) * (h**2 / 4 * S[i] + damping)
        variance = scipy.linalg.solve_discrete_lyapunov(block, covariance)[0, 0]
        assert law.temperature[i] == pytest.approx(A[i] * variance, rel=1e-4)


@pytest.mark.parametrize(("h", "friction"), [(0.01, 0.3), (0.1, 4.0)])
@pytest.mark.parametrize(
    ("scheme", "law"),
    [("midpoint", nogin_law), ("euler", euler_law), ("adodacbc", split_friction_law)],
)
def test_the_laws_of_ccadl(scheme: Any, law: Any, h: float, friction: float) -> None:
    """With noise that is known but for a tenth, and xi at the friction."""
    known = 0.9 * S
    scheme = linear_scheme(
        lambda target, initial_momentum: sgmcmc.CCAdL(
            target, h, friction, KnownCovariance(np.diag(known)), 1e30,
            initial_momentum=initial_momentum, scheme=scheme,
        ),
        np.diag(A),
    )  # fmt: skip
    found = law(h, friction, A, S, known)
    blocks = [in_direction(scheme.step, i) for i in range(3)]
    np.testing.assert_allclose(found.trace, [np.trace(b) for b in blocks], rtol=1e-9)
    np.testing.assert_allclose(found.determinant, [np.linalg.det(b) for b in blocks], rtol=1e-9)
    variances = np.diag(scheme.position(np.diag(S)))
    np.testing.assert_allclose(found.temperature, A * variances, rtol=1e-6)
    assert not np.allclose(law(h, friction, A, S, S).temperature, A * variances, rtol=1e-5)


def test_the_law_of_sgld_is_that_of_its_code() -> None:
    h = 0.1
    target = QuadraticWithScores(np.diag(A), np.eye(3))
    matrix, *_ = step_matrix(lambda target: sgmcmc.SGLD(target, h), target, 3)
    law, r = overdamped_law(h, A, S), np.diag(matrix)
    np.testing.assert_allclose(law.trace, r, rtol=1e-6)
    variances = (h + h**2 / 4 * S) / (1 - r**2)  # theta += h/2 noise + sqrt(h) z
    np.testing.assert_allclose(law.temperature, A * variances, rtol=1e-6)
    np.testing.assert_allclose(law.relaxation_steps, -1 / np.log(abs(r)), rtol=1e-6)


@pytest.mark.parametrize(
    "law",
    [overdamped_law(2.1, 2.0), splitting_law(2.1, 1.0, 1.0), nogin_law(2.1, 1.0, 1.0)],
    ids=["overdamped", "splitting", "nogin"],
)
def test_unstable_steps_have_no_law(law: LinearLaw) -> None:
    assert np.isinf(law.temperature) and np.isinf(law.relaxation_steps)


def test_small_steps_keep_their_digits() -> None:
    """Noise adds h s / (2 friction), and flat directions take 2 friction... / h a steps."""
    h, friction = 1e-7, 1.5
    law = splitting_law(h, friction, A, S)
    np.testing.assert_allclose(law.temperature - 1, h * S / (2 * friction), rtol=1e-6, atol=1e-15)
    slow = overdamped_law(1e-9, 1e-3).relaxation_steps
    assert slow == pytest.approx(2e12, rel=1e-3)


@pytest.mark.parametrize("name", ["UnderdampedLangevin", "NOGIN"])
def test_the_share_after_some_steps_is_that_of_the_code(name: str) -> None:
    """The covariance of (theta, p) from a start at rest, step by step; both damped and not."""
    h, friction = 0.05, 1.5
    scheme = linear_scheme(
        lambda target, initial_momentum: getattr(sgmcmc, name)(
            target, h, friction, initial_momentum=initial_momentum
        ),
        np.diag(A),
    )
    law = {"UnderdampedLangevin": splitting_law, "NOGIN": nogin_law}[name](h, friction, A)
    covariance, added = np.zeros([6, 6]), scheme.drawn @ scheme.drawn.T
    for k in range(1, 201):
        covariance = scheme.step @ covariance @ scheme.step.T + added
        if k in (10, 50, 200):
            share = A * np.diag(covariance)[:3]
            np.testing.assert_allclose(law.share_after(k), share, rtol=0.05)
    r = overdamped_law(0.1, A)
    np.testing.assert_allclose(r.share_after(7), 1 - r.trace**14, rtol=1e-9)
