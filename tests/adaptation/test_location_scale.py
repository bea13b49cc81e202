"""Effects of any distribution: location and width are found, and refused where there are none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation.hierarchies.centered_hierarchy import hierarchy_around
from tfp_sgmcmc.adaptation.hierarchies.location_scale import LocationScale
from tfp_sgmcmc.adaptation.hierarchies.noncentering import laws_around, noncentered

tfb, tfd = tfp.bijectors, tfp.distributions
X, DISTRICT = np.array([-1.0, 0.3, 1.2]), np.array([0, 0, 1, 1, 0])
F64 = tf.float64
Prior = Callable[..., tf.Tensor]


def t(z: tf.Tensor) -> tf.Tensor:
    """Returns Student's log density with 4 degrees of freedom, up to a constant."""
    return -2.5 * tf.math.log1p(z**2 / 4)


def normal(z: tf.Tensor) -> tf.Tensor:
    return -(z**2) / 2


def laplace(z: tf.Tensor) -> tf.Tensor:
    return -tf.abs(z)


def gumbel(z: tf.Tensor) -> tf.Tensor:
    return -z - tf.exp(-z)


def log_density(
    of_z: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, m: tf.Tensor, w: tf.Tensor
) -> tf.Tensor:
    """Returns the sum of log densities of x = m + w z."""
    return tf.reduce_sum(of_z((x - m) / w) - tf.math.log(w), axis=-1)


def target_of(log_prior: Prior, bijector: dict[str, tfb.Bijector]) -> sgmcmc.MinibatchLogProb:
    def no_likelihood(**parts: tf.Tensor) -> tf.Tensor:
        batch = parts.pop("batch")
        return 0 * sum(tf.reduce_sum(x) for x in parts.values()) * batch

    return sgmcmc.MinibatchLogProb(log_prior, no_likelihood, np.ones(1), bijector=bijector)


def start(**sizes: list[int]) -> dict[str, tf.Tensor]:
    return {name: tf.zeros(size, F64) for name, size in sizes.items()}


@pytest.mark.thorough
def test_location_and_width_of_several_distributions() -> None:
    """Three parts of effects: t, Laplace and Gumbel, with a regression and other forms of width.

    In the new coordinates the model is the one that is written non-centred, Jacobian included.
    """

    def scales(a: tf.Tensor, b: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        return -(a**2) / 8 - b**2 / 8 - tau**2 / 2 - v**2 / 2

    def parts(
        a: tf.Tensor, b: tf.Tensor, tau: tf.Tensor, v: tf.Tensor
    ) -> dict[str, tuple[Callable, tf.Tensor, tf.Tensor]]:
        a, b, tau, v = (x[..., None] for x in (a, b, tau, v))
        zero = tf.zeros_like(X)
        return {
            "p": (t, a + b * X, tau + zero),
            "q": (laplace, a - 1 + zero, 3 * tau * tf.sqrt(v) + zero),
            "r": (gumbel, zero + 0 * a, 1 / v + zero),
        }

    def centered(**x: tf.Tensor) -> tf.Tensor:
        fixed = [x[name] for name in ("a", "b", "tau", "v")]
        of_effects = [log_density(f, x[n], m, w) for n, (f, m, w) in parts(*fixed).items()]
        return scales(*fixed) + sum(of_effects)

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
    for name, (of_z, m, w) in parts(*fixed).items():
        expected += tf.reduce_sum(of_z((moved[name] - m) / w), axis=-1)
    value = target.log_prior(tf.constant(z))
    # Constant factors of a width, as the 3 of q, change the density by a constant.
    np.testing.assert_allclose(value - value[0], expected - expected[0], atol=1e-8)
    effects = (z[:, :1] + z[:, 1:2] * X) + tf.math.softplus(z[:, 11:12]) * z[:, 2:5]
    np.testing.assert_allclose(moved["p"], effects, atol=1e-8)
    np.testing.assert_allclose(target.bijector.inverse(moved), z, atol=1e-8)


@pytest.mark.thorough  # seven seconds of tracing
def test_effects_of_effects() -> None:
    """Five schools in two districts, both with t effects: one law for each level."""

    def log_prior(
        d: tf.Tensor, mu: tf.Tensor, s: tf.Tensor, t1: tf.Tensor, t2: tf.Tensor
    ) -> tf.Tensor:
        of_schools = log_density(t, s, tf.gather(d, DISTRICT, axis=-1), t1[..., None])
        of_districts = log_density(t, d, mu[..., None], t2[..., None])
        return of_schools + of_districts - mu**2 / 2 - t1**2 / 2 - t2**2 / 2

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
    expected += tf.reduce_sum(t(z[:, :2]), -1) + tf.reduce_sum(t(z[:, 3:8]), -1)
    np.testing.assert_allclose(target.log_prior(tf.constant(z)), expected, atol=1e-8)


@pytest.mark.parametrize("size", [50, pytest.param(400, marks=pytest.mark.thorough)])
def test_each_of_many_effects_is_found(size: int) -> None:
    """Each has a small part in the slopes along the location and the scale, in `float32`."""

    def log_prior(m: tf.Tensor, t: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return log_density(normal, x, m[..., None], t[..., None]) - m**2 / 50 - t**2 / 8

    problem = target_of(log_prior, {"t": tfb.Softplus()})
    state = {"m": tf.zeros([]), "t": tf.zeros([]), "x": tf.zeros([size])}
    (law,) = laws_around(problem, state)
    assert law.entries == (*range(2, 2 + size),)
    target, _ = noncentered(problem, state, law.entries)
    z = np.random.default_rng(0).standard_normal([3, 2 + size]).astype(np.float32)
    t = tf.math.softplus(z[:, 1])
    expected = -tf.reduce_sum(z[:, 2:] ** 2, -1) / 2 - z[:, 0] ** 2 / 50 - t**2 / 8
    expected += tfb.Softplus().forward_log_det_jacobian(tf.constant(z[:, 1]))
    np.testing.assert_allclose(target.log_prior(tf.constant(z)), expected, rtol=1e-4)


def test_effects_that_are_found_later_have_the_law_of_the_others() -> None:
    """Without a location, moves of three of 120 effects hardly change the slope along the scale."""

    def log_prior(e: tf.Tensor, s: tf.Tensor) -> tf.Tensor:
        return log_density(normal, e, tf.zeros_like(s[..., None]), s[..., None]) - s**2 / 2

    problem = target_of(log_prior, {"s": tfb.Exp()})
    (law,) = laws_around(problem, {"e": tf.zeros([120]), "s": tf.zeros([])})
    assert law.entries == (*range(120),)


def test_laws_of_effects_of_effects_are_not_joined() -> None:
    """The first effect follows the third entry, and the second one the first effect."""
    weights = np.zeros([2, 1, 3])
    law = LocationScale((0,), np.ones(1), weights + [0, 0, 1], weights)
    other = LocationScale((1,), np.zeros(1), weights, weights + [0, 0, 2])
    both = law.joined(other)
    assert both is not None and both.entries == (0, 1)
    np.testing.assert_array_equal(both.offset, [1, 0])
    np.testing.assert_array_equal(both.location[0], [[0, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(both.log_width[0], [[0, 0, 0], [0, 0, 2]])
    swapped = other.joined(law)
    assert swapped is not None
    for x, y in zip(swapped, both, strict=True):
        np.testing.assert_array_equal(x, y)
    of_first = LocationScale((1,), np.zeros(1), weights + [1, 0, 0], weights)
    assert law.joined(of_first) is None and of_first.joined(law) is None


def of_shape(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    del v
    z = (theta - mu) / tau
    return tf.reduce_sum(-(1 + tau) * tf.math.log1p(z**2 / 4) - tf.math.log(tau), axis=-1)


def of_sum(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    return log_density(t, theta, mu, tf.sqrt(tau**2 + v**2))


def of_curve(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    del v
    return log_density(t, theta, tf.sin(mu), tau)


def correlated(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    del v
    z = (theta - mu) / tau
    return tf.reduce_sum(t(z - 0.5 * tf.roll(z, 1, axis=-1)) - tf.math.log(tau), axis=-1)


def walk(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """Returns the density of a walk, whose places given the others are normal."""
    del v
    before = tf.concat([mu, theta[..., :-1]], axis=-1)
    return tf.reduce_sum(-((theta - before) ** 2) / tau**2 / 2 - tf.math.log(tau), axis=-1)


def unknown(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    del v
    return log_density(t, theta, mu, tau) * tf.sqrt(-tau[..., 0])


def written_well(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    del v
    four = tf.constant(4.0, mu.dtype)
    return tf.reduce_sum(tfd.StudentT(four, mu, tau).log_prob(theta), axis=-1)


def on_an_interval(theta: tf.Tensor, mu: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """Returns t effects where all are below 3 and mu is above -0.5; elsewhere slopes are NaN."""
    del v
    inside = tf.reduce_all(theta < 3, axis=-1) & (mu[..., 0] > -0.5)
    one = tf.ones_like(mu[..., 0])
    return log_density(t, theta, mu, tau) * tf.sqrt(tf.where(inside, one, -one))


@pytest.mark.parametrize("dtype", [pytest.param(F64, marks=pytest.mark.thorough), tf.float32])
def test_effects_with_scales_of_their_own_and_one_in_common(dtype: tf.DType) -> None:
    """A horseshoe: beside narrow effects, wide ones hardly change the prior's slope along tau."""
    size = 80

    def log_prior(w: tf.Tensor, tau: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        of_scales = -tf.math.log1p(tau**2) - tf.reduce_sum(tf.math.log1p(v**2), axis=-1)
        return of_scales + log_density(normal, w, tf.zeros_like(w), tau[..., tf.newaxis] * v)

    target = target_of(log_prior, {"tau": tfb.Exp(), "v": tfb.Exp()})
    state = {"tau": tf.zeros([], dtype), "v": tf.zeros(size, dtype), "w": tf.zeros(size, dtype)}
    (law,) = laws_around(target, state)
    assert law.entries == (*range(1 + size, 1 + 2 * size),)
    expected = np.eye(size, 1 + 2 * size, 1)
    expected[:, 0] = 1
    np.testing.assert_array_equal(law.log_width, [expected, 0 * expected])
    assert not law.location.any()


@pytest.mark.parametrize(
    "density",
    [
        *(of_shape, of_sum, of_curve, correlated, unknown),
        *(
            pytest.param(prior, marks=pytest.mark.thorough)
            for prior in (on_an_interval, walk, written_well)
        ),
    ],
)
def test_other_priors_are_refused(density: Prior) -> None:
    """The shape depends on tau; the width is no product; the location bends; effects correlate.

    Neither are slopes that are nowhere finite. Negative control: t effects with location mu and
    width tau, also with a density of zero beyond limits, and a short walk, which is one normal
    block with its location.
    """

    def log_prior(mu: tf.Tensor, tau: tf.Tensor, theta: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        of_effects = density(theta, mu[..., None], tau[..., None], v[..., None])
        return of_effects - mu**2 / 2 - tau**2 / 2 - v**2 / 2

    problem = target_of(log_prior, {"tau": tfb.Exp(), "v": tfb.Exp()})
    laws = laws_around(problem, start(mu=[], tau=[], theta=[4], v=[]))
    if density is walk:
        assert [law.entries for law in laws] == [(0, 2, 3, 4, 5)]
        return
    known = density in (written_well, on_an_interval)
    assert [law.entries for law in laws] == ([(2, 3, 4, 5)] if known else [])


def test_a_prior_that_raises_has_no_hierarchy() -> None:
    """A factorisation fails at most of the states around the start, and none is needed there."""

    def log_prior(tau: tf.Tensor, theta: tf.Tensor) -> tf.Tensor:
        near = tf.debugging.assert_less(tf.abs(tau), tf.constant(0.1, F64))
        with tf.control_dependencies([near]):
            return log_density(t, theta, tf.zeros([], F64), tf.exp(tau)[..., None])

    assert hierarchy_around(target_of(log_prior, {}), start(tau=[], theta=[4])) is None


def test_widths_by_parameters_of_either_sign() -> None:
    """The width is a square: its root may be negative elsewhere, where the law holds as well."""

    def log_prior(root: tf.Tensor, theta: tf.Tensor) -> tf.Tensor:
        width = (root**2)[..., None]
        return log_density(t, theta, tf.zeros([], F64), width) - root**2

    shifted = tfb.Shift(tf.constant(-0.1, F64))(tfb.Exp())
    problem = target_of(log_prior, {"root": shifted})
    state = start(root=[], theta=[3])
    (law,) = laws_around(problem, state)
    assert law.entries == (1, 2, 3)
    z = np.random.default_rng(0).standard_normal([4, 4])
    z[:, 0] = [-6.0, -4.0, 0.0, 1.0]
    target, _ = noncentered(problem, state, law.entries)
    moved = target.constrain(tf.constant(z))
    assert (moved["root"] < 0).numpy().tolist() == [True, True, False, False]
    np.testing.assert_allclose(moved["theta"], moved["root"][:, None] ** 2 * z[:, 1:], rtol=1e-6)
