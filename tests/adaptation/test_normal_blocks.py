"""Correlated effects of groups are found by their prior, and become standard normals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation.coordinates import whiten_at_mode
from tfp_sgmcmc.adaptation.hierarchies.centered_hierarchy import hierarchy_around
from tfp_sgmcmc.adaptation.hierarchies.noncentering import laws_around, noncentered, repeats_prior
from tfp_sgmcmc.adaptation.hierarchies.normal_blocks import NormalBlocks
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian

tfb = tfp.bijectors
F64 = tf.float64
GROUPS, SIZE = 3, 2


def target_of(log_prior: Callable[..., tf.Tensor]) -> sgmcmc.MinibatchLogProb:
    def no_likelihood(**parts: tf.Tensor) -> tf.Tensor:
        batch = parts.pop("batch")
        return 0 * sum(tf.reduce_sum(x) for x in parts.values()) * batch

    bijector = {"tau": tfb.Exp()}
    return sgmcmc.MinibatchLogProb(log_prior, no_likelihood, np.ones(1), bijector=bijector)


def slope_of(rho: tf.Tensor) -> tf.Tensor:
    """Returns the correlation of intercept and slope at an unconstrained number."""
    return tf.tanh(rho)


def of_scales(mu: tf.Tensor, rho: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(-(mu**2) / 2 - tau**2 / 2, axis=-1) - rho**2 / 2


def centered(effects: tf.Tensor, mu: tf.Tensor, rho: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
    """Returns the density of intercepts and slopes, `[..., groups, 2]`, that are correlated."""
    z = (effects - mu[..., None, :]) / tau[..., None, :]
    r = slope_of(rho)[..., None]
    square = (z[..., 0] ** 2 - 2 * r * z[..., 0] * z[..., 1] + z[..., 1] ** 2) / (1 - r**2)
    log_det = tf.math.log(tau[..., 0] * tau[..., 1]) + tf.math.log1p(-(slope_of(rho) ** 2)) / 2
    return -tf.reduce_sum(square, axis=-1) / 2 - GROUPS * log_det + of_scales(mu, rho, tau)


def in_two_parts(
    a: tf.Tensor, b: tf.Tensor, mu: tf.Tensor, rho: tf.Tensor, tau: tf.Tensor
) -> tf.Tensor:
    return centered(tf.stack([a, b], axis=-1), mu, rho, tau)


def fixed(effects: tf.Tensor, mu: tf.Tensor, rho: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
    """Returns a density whose covariance depends on nothing."""
    return centered(effects, mu, 0 * rho + 0.5, 0 * tau + 2.0) + of_scales(mu, rho, tau)


def heavy(effects: tf.Tensor, mu: tf.Tensor, rho: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
    """Returns a density with Student's tails."""
    z = (effects - mu[..., None, :]) / tau[..., None, :]
    z += rho[..., None, None] * z[..., ::-1]
    square = tf.math.log1p(tf.reduce_sum(z**2, axis=-1) / 4)
    return -3 * tf.reduce_sum(square, axis=-1) - GROUPS * tf.reduce_sum(tf.math.log(tau), -1)


def start(**sizes: list[int]) -> dict[str, tf.Tensor]:
    return {name: tf.zeros(size, F64) for name, size in sizes.items()}


SCALES: dict[str, list[int]] = {"mu": [SIZE], "rho": [], "tau": [SIZE]}
STATES: dict[Any, dict[str, list[int]]] = {
    in_two_parts: {"a": [GROUPS], "b": [GROUPS], **SCALES},
    **dict.fromkeys((centered, fixed, heavy), {"effects": [GROUPS, SIZE], **SCALES}),
}


@pytest.mark.parametrize(
    "log_prior", [centered, pytest.param(in_two_parts, marks=pytest.mark.thorough)]
)
def test_correlated_effects_become_standard_normals(log_prior: Callable[..., tf.Tensor]) -> None:
    """In the new coordinates the prior is that of z and the scales alone, Jacobian included."""
    problem, state = target_of(log_prior), start(**STATES[log_prior])
    (law,) = laws_around(problem, state)
    assert isinstance(law, NormalBlocks) and law.is_shared
    assert law.scales == ("rho", "tau") and law.locations == ("mu",)
    expected = [[0, 1], [2, 3], [4, 5]] if log_prior is centered else [[0, 3], [1, 4], [2, 5]]
    assert law.blocks.tolist() == expected
    found = hierarchy_around(problem, state)
    assert found is not None and found.entries == (*range(6),)
    assert "covariance of the prior" in found.note and "plus its factor times z" in found.note
    target, at = noncentered(problem, state, found.entries)
    assert repeats_prior(target.bijector) and not repeats_prior(problem.bijector)
    np.testing.assert_allclose(at, np.zeros(11), atol=1e-12)
    z = np.random.default_rng(0).standard_normal([4, 11])
    moved = target.constrain(tf.constant(z))
    mu, tau = z[:, 6:8], np.exp(z[:, 9:])
    expected = np.sum(-(mu**2) / 2 - tau**2 / 2 + np.log(tau), axis=-1) - z[:, 8] ** 2 / 2
    expected -= np.sum(z[:, :6] ** 2, axis=-1) / 2
    np.testing.assert_allclose(target.log_prior(tf.constant(z)), expected, atol=1e-8)
    # The factor is lower triangular: the first effect of a group is the first z alone.
    first, second = z[:, law.blocks[:, 0]], z[:, law.blocks[:, 1]]
    r = np.tanh(z[:, 8:9])
    a = mu[:, :1] + tau[:, :1] * first
    b = mu[:, 1:] + tau[:, 1:] * (r * first + np.sqrt(1 - r**2) * second)
    parts = (
        (moved["a"], moved["b"])
        if log_prior is in_two_parts
        else tf.unstack(moved["effects"], axis=-1)
    )
    np.testing.assert_allclose(parts[0], a, atol=1e-8)
    np.testing.assert_allclose(parts[1], b, atol=1e-8)
    fresh = {name: tf.identity(x) for name, x in moved.items()}  # no bijector knows these
    np.testing.assert_allclose(target.bijector.inverse(fresh), z, atol=1e-8)


def test_no_mode_is_searched_where_effects_are_correlated() -> None:
    problem, state = target_of(centered), start(**STATES[centered])
    with pytest.raises(NotNearGaussian, match="the covariance of effects depends on rho and tau"):
        whiten_at_mode(problem, state)


@pytest.mark.parametrize("log_prior", [fixed, heavy])
def test_other_effects_are_left_alone(log_prior: Callable[..., tf.Tensor]) -> None:
    """Negative controls: the covariance depends on nothing, and tails that are not normal."""
    assert laws_around(target_of(log_prior), start(**STATES[log_prior])) == ()
