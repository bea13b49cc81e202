"""The search for a mode begins again only where it has not begun before, and says nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation import coordinates
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian


@pytest.mark.parametrize(("value", "starts"), [(0.0, [0.0]), (2.0, [2.0, 1.0, 0.0])])
def test_a_search_that_failed_is_not_repeated_from_the_same_start(
    value: float, starts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin is the nearest start to itself. Negative control: another one has three starts.

    A search that climbed a ridge until its steps were used up is not repeated either.

    Where the density has no bound, the reason names what narrows.
    """
    seen = []

    def find_center(
        problem: Any, start: tf.Tensor, method: str, max_iterations: int
    ) -> tuple[tf.Tensor, Any]:
        del problem, method, max_iterations
        seen.append(float(start[0]))
        report = dict(num_passes=5, log_prob=-1.0, converged=False, unbounded=unbounded)
        return start, SimpleNamespace(num_newton_steps=num_steps, expected_gain=gain, **report)

    unbounded, num_steps, gain = None, 7, 3.0
    monkeypatch.setattr(coordinates, "find_center", find_center)
    problem = sgmcmc.MinibatchLogProb(
        lambda x: -tf.reduce_sum(x**2, axis=-1), lambda x, batch: 0 * x[..., :1] * batch, np.ones(1)
    )
    passes = coordinates._find_center(problem, tf.constant([value, value], tf.float64))[1]
    assert seen == starts and passes == 5 * len(starts)
    for num_steps, gain in ((100, 0.001), (100, 1e9), (100, 3.0)):  # noqa: B007 (of `find_center`)
        seen.clear()
        coordinates._find_center(problem, tf.constant([value, value], tf.float64))
        assert seen == (starts[:1] if gain == 3.0 else starts)
    unbounded = "effects"
    with pytest.raises(NotNearGaussian, match="rises without end while effects becomes narrower"):
        coordinates._find_center(problem, tf.constant([value, value], tf.float64))


def absolute_errors() -> tuple[sgmcmc.MinibatchLogProb, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns a regression with Laplace errors of unknown scale, a start and the mode."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=[600, 5])
    y = x @ np.linspace(-1, 1, 5) + rng.laplace(size=600)
    problem = sgmcmc.MinibatchLogProb(
        lambda w, s: -tf.reduce_sum(w**2, axis=-1) / 20 - s**2 / 8,
        lambda w, s, batch: (
            -tf.abs(batch[1] - tf.linalg.matvec(batch[0], w)) * tf.exp(-s)[..., None] - s[..., None]
        ),
        (x, y),
    )
    start = {"w": tf.zeros([5], tf.float64), "s": tf.zeros([], tf.float64)}
    w = [-0.96395287, -0.39402199, -0.06208692, 0.49746951, 0.95885313]
    mode = {"w": tf.constant(w, tf.float64), "s": tf.constant(0.018365478786743442, tf.float64)}
    return problem, start, mode


def test_a_likelihood_without_curvature_gives_no_advice_on_centers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Absolute errors: Newton's step at the mode is as long as the prior is wide.

    The caller of `sample` gives no center. Negative control: `whiten`, who does, is told.
    """
    problem, start, mode = absolute_errors()
    report = dict(num_passes=5, log_prob=-1.0, converged=True)
    monkeypatch.setattr(
        coordinates, "find_center", lambda *_, **__: (mode, SimpleNamespace(**report))
    )
    found = coordinates.whiten_at_mode(problem, start)  # warnings are errors here
    with pytest.warns(UserWarning, match="center must be near a mode"):
        sgmcmc.whiten(problem, found.center)


@pytest.mark.thorough
def test_the_search_ends_where_slopes_jump() -> None:
    """It ends within 1e-3 nats of the mode. Negative control: Newton's steps alone do not."""
    problem, start, mode = absolute_errors()
    center, _ = coordinates._find_center(problem, start)
    assert float(problem(**center)) > float(problem(**mode)) - 1e-3
    with pytest.warns(UserWarning, match="must end near a mode"):
        center, _ = sgmcmc.find_center(problem, start, "newton")
    assert float(problem(**center)) < float(problem(**mode)) - 1e-3


def test_coordinates_at_draws_keep_a_direction_that_single_precision_loses() -> None:
    """Two columns differ by 1e-4 of their deviation, so that a precision has no room for them.

    Its least eigenvalue, scaled, is 2.5e-9, less than the rounding of a number.
    """
    rng = np.random.default_rng(1)
    first = rng.normal(size=1000)
    x = np.stack([np.ones(1000), first, first + 1e-4 * rng.normal(size=1000)], -1)
    x, y = x.astype(np.float32), rng.normal(size=1000).astype(np.float32)
    problem = sgmcmc.MinibatchLogProb(
        lambda w: tf.reduce_sum(-0.5e-6 * w**2, -1),
        sgmcmc.LinearModel(lambda eta, y: -0.5 * (y - eta) ** 2),
        (x, y),
        10,
    )
    double = x.astype(np.float64)
    precision = double.T @ double + 1e-6 * np.eye(3)
    mode = np.linalg.solve(precision, double.T @ y)
    factor = np.linalg.cholesky(np.linalg.inv(precision))
    center = tf.constant(mode, tf.float32)
    before = coordinates.Coordinates(problem, None, center, factor, precision, "hessian", 0)
    at_draws = coordinates.whiten_at_draws(problem, before, rng.standard_normal([200, 4, 3]))
    by_normal = coordinates.whiten_by_normal(problem, before, mode, factor)
    given = sgmcmc.whiten(problem, center, hessian=-precision)
    standard = coordinates.standardize(problem, center, -precision)
    for target, bijector in (at_draws[:2], by_normal[:2], given, standard):
        matrix = bijector.forward(tf.eye(3)) - bijector.forward(tf.zeros([3]))
        matrix = matrix.numpy().T.astype(np.float64)
        np.testing.assert_allclose(matrix.T @ precision @ matrix, np.eye(3), atol=0.03)
        if target is not standard[0]:  # which knows no curvature
            expected = matrix.T @ double.T @ double @ matrix
            np.testing.assert_allclose(-target.curvature.likelihood, expected, atol=0.03)
