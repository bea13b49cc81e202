"""Effects of any distribution: location and width are found, and refused where there are none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation.centered_hierarchy import hierarchy_around
from tfp_sgmcmc.adaptation.noncentering import laws_around, noncentered

tfb, tfd = tfp.bijectors, tfp.distributions
X, DISTRICT = np.array([-1.0, 0.3, 1.2]), np.array([0, 0, 1, 1, 0])
F64 = tf.float64
Prior = Callable[..., tf.Tensor]


def t(location: tf.Tensor, scale: tf.Tensor) -> tfd.Distribution:
    return tfd.StudentT(tf.constant(4.0, location.dtype), location, scale)


def target_of(log_prior: Prior, bijector: dict[str, tfb.Bijector]) -> sgmcmc.MinibatchLogProb:
    def no_likelihood(**parts: tf.Tensor) -> tf.Tensor:
        batch = parts.pop("batch")
        return 0 * sum(tf.reduce_sum(x) for x in parts.values()) * batch

    return sgmcmc.MinibatchLogProb(log_prior, no_likelihood, np.ones(1), bijector=bijector)


def start(**sizes: list[int]) -> dict[str, tf.Tensor]:
    return {name: tf.zeros(size, F64) for name, size in sizes.items()}


def test_location_and_width_of_several_distributions() -> None:
    """Three parts of effects: t, Laplace and Gumbel, with a regression and other forms of width.

    In the new coordinates the model is the one that is written non-centred, Jacobian included.
    """

    def scales(a: tf.Tensor, b: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        of_line = tfd.Normal(tf.zeros([], F64), 2.0)
        of_tau = tfd.HalfNormal(tf.ones([], F64)).log_prob
        return of_line.log_prob(a) + of_line.log_prob(b) + of_tau(tau) + of_tau(v)

    def parts(
        a: tf.Tensor, b: tf.Tensor, tau: tf.Tensor, v: tf.Tensor
    ) -> dict[str, tuple[type[tfd.Distribution] | Callable, tf.Tensor, tf.Tensor]]:
        a, b, tau, v = (x[..., None] for x in (a, b, tau, v))
        zero = tf.zeros_like(X)
        return {
            "p": (t, a + b * X, tau + zero),
            "q": (tfd.Laplace, a - 1 + zero, 3 * tau * tf.sqrt(v) + zero),
            "r": (tfd.Gumbel, zero + 0 * a, 1 / v + zero),
        }

    def centered(**x: tf.Tensor) -> tf.Tensor:
        fixed = [x[name] for name in ("a", "b", "tau", "v")]
        of_effects = sum(law(m, w).log_prob(x[n]) for n, (law, m, w) in parts(*fixed).items())
        return scales(*fixed) + tf.reduce_sum(of_effects, axis=-1)

    state = start(a=[], b=[], p=[3], q=[3], r=[3], tau=[], v=[])
    bijector = {"tau": tfb.Softplus(), "v": tfb.Exp()}
    problem = target_of(centered, bijector)
    found = hierarchy_around(problem, state)
    assert found is not None and found.entries == (*range(2, 11),)
    assert "sampled as location plus width times z" in found.note
    target, _ = noncentered(problem, state, found.entries)
    z = np.random.default_rng(0).standard_normal([5, 13])
    moved = target.constrain(tf.constant(z))
    fixed = [moved[name] for name in ("a", "b", "tau", "v")]
    expected = scales(*fixed)
    expected += tfb.Softplus().forward_log_det_jacobian(tf.constant(z[:, 11])) + z[:, 12]
    for name, (law, m, w) in parts(*fixed).items():
        of_z = law(tf.zeros([], F64), tf.ones([], F64)).log_prob((moved[name] - m) / w)
        expected += tf.reduce_sum(of_z, axis=-1)
    value = target.log_prior(tf.constant(z))
    # Constant factors of a width, as the 3 of q, change the density by a constant.
    np.testing.assert_allclose(value - value[0], expected - expected[0], atol=1e-8)
    effects = (z[:, :1] + z[:, 1:2] * X) + tf.math.softplus(z[:, 11:12]) * z[:, 2:5]
    np.testing.assert_allclose(moved["p"], effects, atol=1e-8)
    np.testing.assert_allclose(target.bijector.inverse(moved), z, atol=1e-8)


def test_effects_of_effects() -> None:
    """Five schools in two districts, both with t effects: one law for each level."""

    def log_prior(
        d: tf.Tensor, mu: tf.Tensor, s: tf.Tensor, t1: tf.Tensor, t2: tf.Tensor
    ) -> tf.Tensor:
        of_schools = t(tf.gather(d, DISTRICT, axis=-1), t1[..., None]).log_prob(s)
        of_districts = t(mu[..., None], t2[..., None]).log_prob(d)
        fixed = -(mu**2) / 2 - t1**2 / 2 - t2**2 / 2
        return fixed + tf.reduce_sum(of_schools, -1) + tf.reduce_sum(of_districts, -1)

    state = start(d=[2], mu=[], s=[5], t1=[], t2=[])
    problem = target_of(log_prior, {"t1": tfb.Softplus(), "t2": tfb.Exp()})
    assert [law.entries for law in laws_around(problem, state)] == [(*range(3, 8),), (0, 1)]
    found = hierarchy_around(problem, state)
    assert found is not None and found[:3] == ("s and d", "t1 and t2", "d and mu")
    target, _ = noncentered(problem, state, found.entries)
    z = np.random.default_rng(0).standard_normal([4, 10])
    mu, t1, t2 = z[:, 2], tf.math.softplus(z[:, 8]), np.exp(z[:, 9])
    expected = -(mu**2) / 2 - t1**2 / 2 - t2**2 / 2
    expected += tfb.Softplus().forward_log_det_jacobian(tf.constant(z[:, 8])) + z[:, 9]
    of_z = t(tf.zeros([], F64), tf.ones([], F64)).log_prob(z)
    expected += tf.reduce_sum(of_z[:, :2], -1) + tf.reduce_sum(of_z[:, 3:8], -1)
    np.testing.assert_allclose(target.log_prior(tf.constant(z)), expected, atol=1e-8)


def of_shape(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    del v
    return tfd.StudentT(2 + tau, mu, tau).log_prob(theta)


def of_sum(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    return t(mu, tf.sqrt(tau**2 + v**2)).log_prob(theta)


def of_curve(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    del v
    return t(tf.sin(mu), tau).log_prob(theta)


def correlated(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    del v
    z = (theta - mu) / tau
    return -tf.math.log1p((z - 0.5 * tf.roll(z, 1, axis=-1)) ** 2 / 4) - tf.math.log(tau)


def written_well(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    del v
    return t(mu, tau).log_prob(theta)


@pytest.mark.parametrize("density", [of_shape, of_sum, of_curve, correlated, written_well])
def test_other_priors_are_refused(density: Prior) -> None:
    """The shape depends on tau; the width is no product; the location bends; effects correlate.

    Negative control: t effects with location mu and width tau.
    """

    def log_prior(mu: tf.Tensor, tau: tf.Tensor, theta: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        of_effects = density(theta, mu[..., None], tau[..., None], v[..., None])
        return tf.reduce_sum(of_effects, axis=-1) - mu**2 / 2 - tau**2 / 2 - v**2 / 2

    problem = target_of(log_prior, {"tau": tfb.Exp(), "v": tfb.Exp()})
    laws = laws_around(problem, start(mu=[], tau=[], theta=[4], v=[]))
    assert [law.entries for law in laws] == ([(2, 3, 4, 5)] if density is written_well else [])
