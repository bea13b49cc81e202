"""IndependentMetropolis: its law, one step by hand, and bad input."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.kernels import independent_metropolis
from tfp_sgmcmc.random.defensive_normal import defensive_normal, defensive_normal_log_prob

tfd = tfp.distributions
TARGET = tfd.Normal(np.float64(0.5), np.float64(1.3))


def run(num_results: int, **options: Any) -> np.ndarray:
    """Returns draws of a normal distribution, whose proposals are off and too narrow."""
    kernel = sgmcmc.IndependentMetropolis(
        lambda x: TARGET.log_prob(x[..., 0]),
        tf.zeros([1], tf.float64),
        [[-1.0]],
        tail_share=0.3,
        **options,
    )
    result = sgmcmc.sample_chain(
        kernel,
        tf.zeros([1], tf.float64),
        num_results,
        num_chains=50,
        num_burnin_steps=50,
        num_steps_between_results=19,
        seed=1,
        progress_bar=False,
    )
    return np.asarray(result.states)[..., 0]


def cells(draws: np.ndarray) -> float:
    """Returns the p-value of a chi-square test of 20 cells of equal probability."""
    edges = stats.norm(0.5, 1.3).ppf(np.linspace(0, 1, 21))
    counts = np.histogram(draws, edges)[0]
    return float(stats.chisquare(counts).pvalue)


def test_draws_have_the_law_of_the_target() -> None:
    """10,000 draws, 20 proposals apart. Rejects sound draws with probability 1e-6."""
    assert cells(run(200, block_size=7)) > 1e-6


def test_without_the_proposals_density_the_law_is_wrong(monkeypatch: Any) -> None:
    """The negative control: the test above has power."""
    monkeypatch.setattr(
        independent_metropolis, "defensive_normal_log_prob", lambda z, _: 0 * z[..., 0]
    )
    assert cells(run(200, block_size=7)) < 1e-6


def test_proposals_have_their_density() -> None:
    """In three dimensions, by the law of the radius; 1e-6."""
    share = tf.constant(0.4, tf.float64)
    z = defensive_normal((20_000, 3), tf.float64, tf.constant([0, 1]), share).numpy()
    square = (z**2).sum(axis=-1)
    normal, tails = stats.chi2(3).cdf(square), stats.f(3, 8).cdf(square / 3)
    assert stats.kstest(0.6 * normal + 0.4 * tails, "uniform").pvalue > 1e-6
    assert stats.kstest(normal, "uniform").pvalue < 1e-6  # the negative control
    expected = np.log(
        0.6 * stats.multivariate_normal(np.zeros(3)).pdf(z[:5])
        + 0.4 * stats.multivariate_t(np.zeros(3), np.eye(3), df=8).pdf(z[:5])
    )
    np.testing.assert_allclose(defensive_normal_log_prob(tf.constant(z[:5]), share), expected)


def test_one_step_by_hand() -> None:
    """A state of two parts, two chains: each takes its proposal or stays."""

    def log_prob(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return -(tf.reduce_sum(a**2, axis=-1)) - tf.abs(b)

    hessian = -np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 4.0]])
    center = [tf.constant([0.1, 0.2], tf.float64), tf.constant(-0.3, tf.float64)]
    kernel = sgmcmc.IndependentMetropolis(log_prob, center, hessian, block_size=3)
    state = [tf.constant([[0.0, 5.0], [0.1, 0.0]], tf.float64), tf.zeros([2], tf.float64)]
    results = kernel.bootstrap_results(state)
    moved, after = kernel.one_step(state, results, seed=tf.constant([0, 1]))

    flat = np.concatenate([state[0], np.asarray(state[1])[:, None]], axis=-1)
    factor = np.linalg.cholesky(np.linalg.inv(-hessian))

    def log_weight(x: np.ndarray, value: np.ndarray) -> np.ndarray:
        z = np.linalg.solve(factor, (x - [0.1, 0.2, -0.3]).T).T
        share = tf.constant(0.1, tf.float64)
        return value - defensive_normal_log_prob(tf.constant(z), share).numpy()

    np.testing.assert_allclose(results.log_weight, log_weight(flat, log_prob(*state)))
    proposed = after.proposals[0].numpy()
    values = log_prob(proposed[:, :2], proposed[:, 2]).numpy()
    np.testing.assert_allclose(after.log_weights[0], log_weight(proposed, values))
    accepted = after.is_accepted.numpy()
    expected = np.where(accepted[:, None], proposed, flat)
    np.testing.assert_array_equal(moved[0], expected[:, :2])
    np.testing.assert_array_equal(moved[1], expected[:, 2])
    assert accepted[0]  # the first chain begins 5 sd away


def test_infinite_and_undefined_proposals_are_rejected() -> None:
    kernel = sgmcmc.IndependentMetropolis(
        lambda x: tf.where(x[..., 0] > 0, -x[..., 0], np.nan), tf.ones([1]), [[-1.0]]
    )
    result = sgmcmc.sample_chain(
        kernel, tf.ones([1]), 300, num_chains=4, seed=0, progress_bar=False, jit_compile=False
    )
    assert np.all(np.asarray(result.states) > 0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hessian": [[1.0]]}, "hessian must be negative definite"),
        ({"hessian": -np.eye(2)}, "hessian must be of shape"),
        ({"tail_share": 1.0}, "tail_share must be above 0 and below 1"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"center": np.array([np.nan])}, "center must be finite"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], told: str) -> None:
    given = {"center": np.zeros([1]), "hessian": [[-1.0]], **options}
    with pytest.raises(ValueError, match=told):
        sgmcmc.IndependentMetropolis(lambda x: -(x[..., 0] ** 2), **given)
