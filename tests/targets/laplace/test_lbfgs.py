"""L-BFGS ascent beside its equations, and on functions whose maximum is known."""

from collections import deque
from typing import Any

import numpy as np
import pytest

from tfp_sgmcmc.targets.laplace import lbfgs
from tfp_sgmcmc.targets.laplace.lbfgs import lbfgs_ascent

GENERATOR = np.random.default_rng(0)
EPS = float(np.finfo(np.float64).eps)


def test_a_direction_is_that_of_the_matrix_updates() -> None:
    """B <- (I - s y'/y's) B (I - y s'/y's) + s s'/y's, for each pair, the oldest first."""
    matrix = np.diag(np.arange(1.0, 7.0)) + 0.3
    steps = GENERATOR.standard_normal([4, 6])
    pairs = deque((s, matrix @ s) for s in steps)
    s, y = pairs[-1]
    inverse = np.eye(6) * (s @ y) / (y @ y)
    for s, y in pairs:
        left = np.eye(6) - np.outer(s, y) / (y @ s)
        inverse = left @ inverse @ left.T + np.outer(s, s) / (y @ s)
    gradient = GENERATOR.standard_normal(6)
    np.testing.assert_allclose(lbfgs._direction(gradient, pairs), inverse @ gradient, rtol=1e-10)


def rosenbrock(x: np.ndarray) -> tuple[float, np.ndarray]:
    a, b = 1 - x[0], x[1] - x[0] ** 2
    return -(a**2) - 100 * b**2, np.array([2 * a + 400 * x[0] * b, -200 * b])


def absolute(x: np.ndarray) -> tuple[float, np.ndarray]:
    slopes = np.arange(1.0, 6.0)
    return -float(slopes @ np.abs(x - slopes)), -slopes * np.sign(x - slopes)


def log_normal(x: np.ndarray) -> tuple[float, np.ndarray]:
    """NaN for negative values; its maximum is at exp(-1)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.sum(-np.log(x) - np.log(x) ** 2 / 2)), (-1 - np.log(x)) / x


@pytest.mark.parametrize(
    ("log_prob_fn", "start", "mode", "tolerance", "most"),
    [
        (rosenbrock, [-1.2, 1.0], [1.0, 1.0], 1e-8, 70),
        (absolute, np.zeros(5), np.arange(1.0, 6.0), 1e-8, 1000),
        (log_normal, np.array([1.0, 30.0]), np.exp([-1.0, -1.0]), 1e-8, 100),
    ],
    ids=["banana", "kinks", "not finite beyond"],
)
def test_the_maximum_is_found(
    log_prob_fn: Any, start: Any, mode: Any, tolerance: float, most: int
) -> None:
    """At kinks no gradient is small, and the ascent ends because no share of a step rises."""
    end, num_steps, num_evaluations = lbfgs_ascent(log_prob_fn, start, 200, tolerance, EPS)
    np.testing.assert_allclose(end, mode, atol=1e-6)
    assert num_steps < 200 and num_evaluations < most


def test_rounding_of_the_log_posterior_does_not_end_the_ascent() -> None:
    """A log posterior of 1e5 rounds by 0.008. The control: without slopes the ascent ends early."""
    scales = np.geomspace(1, 30, 8)

    def rounded(x: np.ndarray) -> tuple[float, np.ndarray]:
        log_prob = -1e5 - np.sum((x / scales - 1) ** 2) / 2 + 0.008 * np.sin(1e6 * x.sum())
        return log_prob, (1 - x / scales) / scales

    arguments = rounded, np.zeros(8), 200, 1e-5
    end, num_steps, _ = lbfgs_ascent(*arguments, float(np.finfo(np.float32).eps))
    assert np.abs(rounded(end)[1]).max() <= 1e-5 and num_steps < 200
    end, _, _ = lbfgs_ascent(*arguments, 0.0)
    assert np.abs(rounded(end)[1]).max() > 1e-4


def test_steps_are_limited_and_none_is_taken_at_a_mode() -> None:
    end, *counts = lbfgs_ascent(rosenbrock, np.ones(2), 200, 1e-8, EPS)
    np.testing.assert_array_equal(end, np.ones(2))
    assert counts == [0, 1]
    _, num_steps, num_evaluations = lbfgs_ascent(rosenbrock, np.zeros(2), 3, 1e-8, EPS)
    assert num_steps == 3 and num_evaluations >= 4


def test_a_slope_that_is_not_a_number_ends_the_ascent() -> None:
    end, *counts = lbfgs_ascent(lambda x: (np.nan, np.full(2, np.nan)), np.ones(2), 9, 1e-8, EPS)
    np.testing.assert_array_equal(end, np.ones(2))
    assert counts[0] == 0
