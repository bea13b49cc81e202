"""Moves along a funnel: they leave its draws as they are, and find a neck that draws miss."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tfp_sgmcmc.adaptation import draw_checks
from tfp_sgmcmc.adaptation.funnel_check import funnel_check

EXP, ERRORS = tfp.bijectors.Exp(), 3.0
# is_wrong allows 0.03 and three standard errors, which are 0.02 to 0.03 here. So sound draws are
# flagged with probability below 1e-4 for each of the two statistics. A tail of 1 % may grow by
# 0.005 and three standard errors, which are 0.002 here.


def log_prob(x: np.ndarray) -> np.ndarray:
    """Neal's funnel: v is N(0, 9), and the others are N(0, e^v) around a shared N(0, 1)."""
    v, center, others = x[:, 0], x[:, 1], x[:, 2:]
    squares = ((others - center[:, np.newaxis]) ** 2).sum(axis=1)
    with np.errstate(over="ignore"):
        return -(v**2) / 18 - center**2 / 2 - squares * np.exp(-v) / 2 - others.shape[1] * v / 2


def draws(seed: int, least: float = -np.inf, num_others: int = 8) -> np.ndarray:
    """Returns draws of the funnel; those of v below `least` come to lie just above it."""
    rng = np.random.default_rng(seed)
    v = 3 * rng.standard_normal([1000, 4, 1])
    v = np.where(v < least, least + rng.random(v.shape), v)
    center = rng.standard_normal(v.shape)
    others = center + np.exp(v / 2) * rng.standard_normal([1000, 4, num_others])
    return np.concatenate([v, center, others], axis=-1)


@pytest.mark.parametrize("seed", fast_settings(range(3), 0))
def test_draws_that_miss_the_neck_are_told(seed: int) -> None:
    """A fifth of the draws lies too high, by half a deviation, which no R-hat shows.

    Negative control: exact draws.
    """
    for least, told in ((-2.5, True), (-np.inf, False)):
        found = funnel_check(log_prob, draws(seed, least), 1, np.random.default_rng(seed))
        assert found is not None and found.entry == 0
        assert found.is_wrong(0.03, ERRORS) == told


def test_many_chains_with_few_draws_each() -> None:
    """More chains than draws that are moved: two draws of each are, with the same verdict."""
    for least, told in ((-2.5, True), (-np.inf, False)):
        chains = draws(0, least).reshape(8, 500, -1)
        found = funnel_check(log_prob, chains, 5000, np.random.default_rng(0))
        assert found is not None and found.entry == 0
        assert found.is_wrong(0.03, ERRORS) == told


def test_moves_do_not_stay_where_a_log_density_overflows() -> None:
    """As that of a Weibull distribution does where its start is rounded to the least time."""

    def with_overflow(x: np.ndarray) -> np.ndarray:
        return np.where(x[:, 0] < -13.5, np.inf, log_prob(x))

    found = funnel_check(with_overflow, draws(0), 1, np.random.default_rng(0))
    assert found is not None and not found.is_wrong(0.03, ERRORS)


@pytest.mark.thorough
def test_sound_draws_of_many_entries_do_not_drift() -> None:
    """Draws that decided on their own moves would drift, as each fits 45 locations and widths."""
    sound = draws(0, num_others=45)[:500]
    found = funnel_check(log_prob, sound, 1, np.random.default_rng(0))
    assert found is not None and found.entry == 0 and not found.is_wrong(0.03, ERRORS)


K = 12
Y, ERROR = np.random.default_rng(5).normal(0.3, 0.45, K), np.linspace(0.2, 0.6, K)


def hierarchy(x: np.ndarray) -> np.ndarray:
    """Effects N(mu, tau) around mu ~ N(0, 1), with HalfNormal(0.5) for tau, and a row each."""
    mu, s, theta = x[:, :1], x[:, 1], x[:, 2:]
    with np.errstate(over="ignore"):
        of_effects = -(((theta - mu) * np.exp(-s)[:, np.newaxis]) ** 2).sum(axis=1) / 2 - K * s
    of_rows = -(((Y - theta) / ERROR) ** 2).sum(axis=1) / 2
    return of_effects + of_rows - mu[:, 0] ** 2 / 2 + s - 2 * np.exp(2 * s)


def draws_of_hierarchy(seed: int, least: float) -> np.ndarray:
    """Returns exact draws with log tau above `least`."""
    rng, s = np.random.default_rng(seed), np.linspace(max(least, -7), 1, 4000)
    tau = np.exp(s)[:, np.newaxis]
    precision = 1 / (tau**2 + ERROR**2)
    total = precision.sum(axis=1) + 1
    mean = (precision * Y).sum(axis=1) / total
    logs = (np.log(precision).sum(axis=1) - np.log(total) + total * mean**2) / 2
    logs += s - (precision * Y**2).sum(axis=1) / 2 - 2 * tau[:, 0] ** 2
    chances = np.exp(logs - logs.max())
    at = rng.choice(len(s), 4000, p=chances / chances.sum())
    mu = (mean[at] + rng.standard_normal(4000) / np.sqrt(total[at]))[:, np.newaxis]
    share = tau[at] ** 2 / (tau[at] ** 2 + ERROR**2)
    noise = rng.standard_normal([4000, K]) * np.sqrt(share) * ERROR
    x = np.concatenate([mu, s[at, np.newaxis], mu + share * (Y - mu) + noise], axis=1)
    return x.reshape(1000, 4, K + 2)


@pytest.mark.parametrize("seed", fast_settings(range(2), 0))
def test_data_that_hold_effects_where_the_scale_is_large_do_not_hide_the_neck(seed: int) -> None:
    """There widths hardly depend on the scale, and 8 % of the posterior is missing.

    Negative control: exact draws.
    """
    for least, told in ((-3.0, True), (-np.inf, False)):
        x = draws_of_hierarchy(seed, least)
        found = funnel_check(hierarchy, x, 1, np.random.default_rng(seed))
        assert found is not None and found.entry == 1
        assert found.is_wrong(0.03, ERRORS) == told


def test_the_flag_names_the_entry_that_the_widths_depend_on() -> None:
    """The draws come as parameters: v by its exponential."""
    v, rest = np.split(draws(0, -2.5), [1], axis=-1)

    def log_prior(rest: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        v, center, others = tf.math.log(v), rest[..., :1], rest[..., 1:]
        squares = tf.reduce_sum((others - center) ** 2, axis=-1)
        return -(v**2) / 18 - center[..., 0] ** 2 / 2 - squares * tf.exp(-v) / 2 - 5 * v

    target = sgmcmc.MinibatchLogProb(
        log_prior, lambda rest, v, batch: 0 * v[..., None] * batch, np.ones(1), bijector={"v": EXP}
    )
    states = {"rest": rest, "v": np.exp(v[..., 0])}
    for seed in ([-7, 1], [3, 2**31 - 1]):
        found = draw_checks._flag_of_funnel(states, target, tf.constant(seed), None)
        assert found and found.grade == "wrong" and "moves along v" in found.cause
        assert "location + width * z" in found.remedy


def test_draws_that_overflow_have_no_funnel(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK raises there, and other checks tell such draws."""
    target = sgmcmc.MinibatchLogProb(
        lambda x: -tf.reduce_sum(x**2, axis=-1), lambda x, batch: 0 * x[..., :1] * batch, np.ones(1)
    )
    stuck = np.ones([200, 4, 2])
    stuck[:, :2] = np.random.default_rng(0).standard_normal([200, 2, 2])

    def of_no_eigenvalues(*_: object) -> None:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(draw_checks, "funnel_check", of_no_eigenvalues)
    assert draw_checks._flag_of_funnel(stuck, target, tf.constant([0, 1]), None) is None


def test_a_posterior_without_a_funnel_is_not_moved() -> None:
    rng = np.random.default_rng(0)
    normal = rng.standard_normal([500, 4, 5]) @ rng.standard_normal([5, 5])
    assert funnel_check(log_prob, normal, 1, rng) is None
    assert funnel_check(log_prob, normal[..., :1], 1, rng) is None


def half_cauchy(x: np.ndarray) -> np.ndarray:
    """Returns log densities: v is half-Cauchy, and the others are N(0, 1 + v^2)."""
    v, squares = x[:, 0], 1 + x[:, 0] ** 2
    inside = -np.log(squares) * (x.shape[1] + 1) / 2 - (x[:, 1:] ** 2).sum(axis=1) / squares / 2
    return np.where(v > 0, inside, -np.inf)


def test_tails_without_moments_are_not_judged_by_them() -> None:
    """No draw is beyond 100, where 0.6 % lie, so that the standard deviation means nothing.

    Negative control: no draw is beyond 10, where 6 % lie.
    """
    rng = np.random.default_rng(2)
    for most, told in ((100.0, False), (10.0, True)):
        v = np.tan(rng.random([1000, 4, 1]) * np.arctan(most))
        x = np.sqrt(1 + v**2) * rng.standard_normal([1000, 4, 3])
        found = funnel_check(half_cauchy, np.concatenate([v, x], axis=-1), 1, rng)
        assert found is not None and found.is_wrong(0.03, ERRORS) == told
        assert told or abs(found.widening) < 0.2
