"""The search for a mode ends early where a density has no bound, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.targets.laplace.newton import Ascent, newton_ascent

tfb, tfd = tfp.bijectors, tfp.distributions


def ascend(log_prob_fn: Callable[[tf.Tensor], tf.Tensor], start: list[float]) -> Ascent:
    @tf.function(autograph=False)
    def of_both_orders(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as outer:
            outer.watch(x)
            gradient = tfp.math.value_and_gradient(log_prob_fn, x)[1]
        return outer.jacobian(gradient, x), gradient

    def derivatives(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hessian, gradient = of_both_orders(tf.constant(theta))
        return hessian.numpy(), gradient.numpy()

    found = newton_ascent(
        lambda theta: float(log_prob_fn(tf.constant(theta))),
        derivatives,
        np.array(start),
        100,
        np.finfo(float).eps,
    )
    assert found is not None
    return found


def effects(x: tf.Tensor) -> tf.Tensor:
    """Five normal effects, the first four of them observed, whose log width comes last."""
    observed = -0.5 * tf.reduce_sum((x[:4] - [1.0, -1.0, 0.5, 2.0]) ** 2)
    return (
        observed - 0.5 * tf.reduce_sum(x[:5] ** 2) * tf.exp(-2 * x[5]) - 5 * x[5] - x[5] ** 2 / 1e6
    )


def tiny_units(x: tf.Tensor) -> tf.Tensor:
    """Ten observations of 3e-9 with a standard deviation of 1e-9."""
    squares = 10 * ((x[0] - 3e-9) ** 2 + 1e-18)
    return -0.5 * squares * tf.exp(-2 * x[1]) - 10 * x[1]


def heavy_tails(x: tf.Tensor) -> tf.Tensor:
    """Two Cauchy distributions, which are not log-concave on the way to the mode."""
    return -tf.reduce_sum(tf.math.log1p(x**2))


@pytest.mark.thorough
def test_an_ascent_ends_where_curvatures_grow_without_end() -> None:
    found = ascend(effects, [0.0, 0.0, 0.0, 0.0, 1.0, 0.0])
    assert found.grown in range(5) and not found.is_mode
    assert found.num_steps < 60  # of 100
    assert found.curvature[found.grown] > 1e23


@pytest.mark.parametrize(
    ("log_prob_fn", "start"),
    [
        pytest.param(tiny_units, [0.0, 0.0], marks=pytest.mark.thorough),
        (heavy_tails, [1e10, -1e8]),
    ],
    ids=["units", "tails"],
)
def test_large_growth_on_the_way_to_a_mode_does_not_end_it(log_prob_fn: Any, start: Any) -> None:
    """Curvatures grow by factors of 1e18 and 1e20 here."""
    found = ascend(log_prob_fn, start)
    assert found.is_mode and found.grown is None


def test_the_report_names_the_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    """No L-BFGS follows, because no mode lies that way."""
    group = np.repeat(np.arange(8), 2)
    y = np.random.default_rng(0).normal(size=16)

    def log_prior(theta: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
        zero = tf.zeros_like(tau)
        of_effects = tfd.Normal(zero[..., None], tau[..., None]).log_prob(theta)
        return tf.reduce_sum(of_effects, axis=-1) - tau

    target = sgmcmc.MinibatchLogProb(
        log_prior,
        lambda theta, tau, batch: tfd.Normal(
            tf.gather(theta, batch["group"], axis=-1), tf.ones([], tf.float64)
        ).log_prob(batch["y"]),
        {"group": group, "y": y},
        16,
        bijector={"theta": None, "tau": tfb.Exp()},
    )
    monkeypatch.delattr("tfp_sgmcmc.targets.laplace.mode.lbfgs_ascent")
    start = {"theta": tf.zeros([8], tf.float64), "tau": tf.zeros([], tf.float64)}
    with pytest.warns(UserWarning, match="rose without end while theta became narrower"):
        _, report = sgmcmc.find_center(target, start)
    assert report.unbounded == "theta" and not report.converged
    assert report.num_newton_steps < 60
