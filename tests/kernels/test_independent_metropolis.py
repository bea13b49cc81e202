"""IndependentMetropolis: its law, one step by hand, and bad input."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import run_chains
from tfp_sgmcmc.kernels import independent_metropolis
from tfp_sgmcmc.kernels.independent_metropolis import (
    defensive_normal,
    defensive_normal_log_prob,
)
from tfp_sgmcmc.sampling import independent_loop
from tfp_sgmcmc.sampling.independent_loop import IndependentLoop
from tfp_sgmcmc.sampling.loop import start_of

tfd = tfp.distributions
TARGET = tfd.Normal(np.float64(0.5), np.float64(1.3))


def off_and_narrow() -> sgmcmc.IndependentMetropolis:
    """Returns the kernel of a normal distribution with proposals that are off and too narrow."""
    return sgmcmc.IndependentMetropolis(
        lambda x: TARGET.log_prob(x[..., 0]),
        tf.zeros([1], tf.float64),
        [[-1.0]],
        tail_share=0.3,
        block_size=70,
    )


THINNED: dict[str, Any] = {"num_burnin_steps": 50, "num_steps_between_results": 19}
OPTIONS: dict[str, Any] = {"seed": 1, "num_chains": 50, "progress_bar": False, **THINNED}


def run() -> np.ndarray:
    """Returns draws in blocks outside a graph."""
    start = tf.zeros([1], tf.float64)
    result = sgmcmc.sample_chain(off_and_narrow(), start, 200, **OPTIONS)
    return np.asarray(result.states)[..., 0]


def run_steps() -> np.ndarray:
    """Returns draws by the compiled steps of the kernel."""
    start = tf.zeros([50, 1], tf.float64)
    return run_chains(off_and_narrow(), start, 4000, 50, seed=1)[:, ::20, 0].T


def cells(draws: np.ndarray) -> float:
    """Returns the p-value of a chi-square test of 20 cells of equal probability."""
    edges = stats.norm(0.5, 1.3).ppf(np.linspace(0, 1, 21))
    counts = np.histogram(draws, edges)[0]
    return float(stats.chisquare(counts).pvalue)


@pytest.mark.parametrize("draw", [run, run_steps])
def test_draws_have_the_law_of_the_target(draw: Any) -> None:
    """10,000 draws, 20 proposals apart. Rejects sound draws with probability 1e-6."""
    assert cells(draw()) > 1e-6


def test_without_the_proposals_density_the_law_is_wrong(monkeypatch: Any) -> None:
    """The negative control: the test above has power."""
    monkeypatch.setattr(
        independent_metropolis, "defensive_normal_log_prob", lambda z, _: 0 * z[..., 0]
    )
    monkeypatch.setattr(
        independent_loop, "defensive_normal_log_prob_at", lambda square, *_: 0 * square
    )
    assert cells(run()) < 1e-6


def test_more_calls_and_a_trace_give_the_same_chain() -> None:
    """The draws do not depend on how steps are divided into calls, nor on what is kept of them."""
    kernel, start = off_and_narrow(), tf.zeros([2, 3, 1], tf.float64)
    position = start_of(kernel, start)
    seed = tf.constant([3, 4])
    loop = IndependentLoop(kernel, None, position, jit_compile=False)
    moved, kept, health = loop(position, 9, 4, 3, seed)
    assert kept[0].shape == (9, 2, 3, 1) and health.is_good and int(moved.step) == 28
    parts, at = [], position
    for _ in range(28):
        at, one, _ = loop(at, 1, 1, 1, seed)
        parts.append(one[0][0])
    np.testing.assert_array_equal(kept[0], np.stack(parts)[3::3])
    tf.nest.map_structure(np.testing.assert_array_equal, at, moved)
    result = sgmcmc.sample_chain(
        kernel, start, 9, num_burnin_steps=3, num_steps_between_results=2, seed=[3, 4],
        trace_fn=lambda state, results: (state, results.log_weight), progress_bar=False,
    )  # fmt: skip
    np.testing.assert_array_equal(result.states, kept[0])
    np.testing.assert_array_equal(result.trace[0], kept[0])
    np.testing.assert_array_equal(result.trace[1][-1], moved.results.log_weight)


def test_a_step_tests_the_next_proposal() -> None:
    """With the block's numbers fixed, states and log posteriors are those of the equation."""
    kernel = off_and_narrow()
    position = start_of(kernel, tf.zeros([4, 1], tf.float64))
    seed = tf.constant([3, 4])
    loop = IndependentLoop(kernel, None, position, jit_compile=False)
    moved, kept, _ = loop(position, 7, 1, 1, seed)
    results = moved.results
    thresholds = -np.random.default_rng([3, 4, 0]).standard_exponential([7, 4])
    z = results.proposals.numpy()[..., 0]
    share = tf.constant(0.3, tf.float64)
    values = TARGET.log_prob(z).numpy()
    log_q = defensive_normal_log_prob(tf.constant(z[..., None]), share).numpy()
    np.testing.assert_allclose(results.log_weights, values - log_q)
    state, weight = np.zeros(4), position.results.log_weight.numpy()
    for t in range(7):
        accepts = values[t] - log_q[t] - weight > thresholds[t]
        state = np.where(accepts, z[t], state)
        weight = np.where(accepts, values[t] - log_q[t], weight)
        np.testing.assert_array_equal(kept[0][t, :, 0], state)
    np.testing.assert_allclose(results.log_weight, weight)
    np.testing.assert_allclose(results.target_log_prob, TARGET.log_prob(state))
    assert accepts.any() and not accepts.all()


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


@pytest.mark.parametrize(
    ("size", "dtype", "told"),
    [(1, tf.float32, "1 of dtype float32"), (2, tf.float64, "2 of dtype float64")],
)
def test_a_state_unlike_the_center_is_refused(size: int, dtype: Any, told: str) -> None:
    kernel = sgmcmc.IndependentMetropolis(lambda x: -(x[..., 0] ** 2), np.zeros([1]), [[-1.0]])
    message = f"must have 1 entries of dtype float64, as center has. Received: {told}"
    with pytest.raises(ValueError, match=message):
        kernel.bootstrap_results(tf.zeros([4, size], dtype))


def test_an_unknown_number_of_chains_gives_the_same_draws() -> None:
    """As in a saved model, or a function with one signature for all numbers of chains."""
    kernel = off_and_narrow()

    def run(state: tf.Tensor) -> tf.Tensor:
        return tfp.mcmc.sample_chain(80, state, kernel=kernel, trace_fn=None, seed=[0, 1])

    start = tf.zeros([5, 1], tf.float64)
    signature = [tf.TensorSpec([None, 1], tf.float64)]
    found = tf.function(run, input_signature=signature, autograph=False)(start)
    expected = tf.function(run, autograph=False)(start)
    np.testing.assert_array_equal(found, expected)
    assert np.all(np.ptp(expected, axis=0) > 0)


WEIGHTS, SHARES = np.array([0.3, 0.7]), np.array([0.1, 0.4])
MEANS = np.array([[-5.0, 0.0], [8.0, 100.0]])
FACTORS = np.array([[[1.0, 0.0], [0.5, 1.0]], [[2.0, 0.0], [-1.0, 3.0]]])
HESSIANS = -np.linalg.inv(FACTORS @ FACTORS.transpose(0, 2, 1))


def log_of_mixture(x: tf.Tensor) -> tf.Tensor:
    """Returns the log density of the mixture, from its definition."""
    terms = []
    for weight, share, mean, factor in zip(WEIGHTS, SHARES, MEANS, FACTORS, strict=True):
        z = tf.linalg.matvec(np.linalg.inv(factor), x - mean)
        normal = tfd.MultivariateNormalDiag(np.zeros(2), np.ones(2)).log_prob(z)
        tails = tfd.MultivariateStudentTLinearOperator(
            np.float64(8), np.zeros(2), tf.linalg.LinearOperatorIdentity(2, dtype=tf.float64)
        ).log_prob(z)
        both = tf.stack([np.log(1 - share) + normal, np.log(share) + tails])
        scale = np.log(weight) - np.log(np.diag(factor)).sum()
        terms.append(tf.reduce_logsumexp(both, axis=0) + scale)
    return tf.reduce_logsumexp(terms, axis=0)


def mixture() -> sgmcmc.IndependentMetropolis:
    center = tf.constant(MEANS)
    options = {"tail_share": SHARES, "weights": 10 * WEIGHTS, "block_size": 100}
    return sgmcmc.IndependentMetropolis(log_of_mixture, center, HESSIANS, **options)


@pytest.mark.parametrize("jit", [False, True])
def test_proposals_of_a_mixture_have_its_density(jit: bool) -> None:
    """The posterior is the mixture itself, so weights are one and all proposals are accepted.

    The share of the first component is that of its weight: 10,000 draws, 1e-6.
    """
    kernel = mixture()
    start = tf.repeat(tf.constant(MEANS), 25, axis=0)  # 50 chains take few steps
    trace: Any = lambda _, results: (results.log_weight, results.is_accepted)  # noqa: E731
    if jit:
        run = tf.function(tfp.mcmc.sample_chain, jit_compile=True, autograph=False)
        states, traced = run(200, start, kernel=kernel, trace_fn=trace, seed=tf.constant([0, 1]))
    else:
        result = sgmcmc.sample_chain(
            kernel, start, 200, trace_fn=trace, seed=0, progress_bar=False, jit_compile=False
        )
        states, traced = result.states, result.trace
    np.testing.assert_allclose(traced[0], 0.0, atol=1e-9)
    assert np.all(traced[1])
    is_first = np.asarray(states)[..., 0] < 1.5
    assert stats.binomtest(int(is_first.sum()), is_first.size, 0.3).pvalue > 1e-6
    assert stats.binomtest(int(is_first.sum()), is_first.size, 0.33).pvalue < 1e-6  # has power
    second = np.asarray(states)[~is_first] - MEANS[1]
    square = (np.linalg.solve(FACTORS[1], second.T) ** 2).sum(axis=0)
    law = 0.6 * stats.chi2(2).cdf(square) + 0.4 * stats.f(2, 8).cdf(square / 2)
    assert stats.kstest(law, "uniform").pvalue > 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [0.5, -0.5]}, "weights must be positive numbers, one for each component"),
        ({"weights": [1.0, 1.0, 1.0]}, "center must have a leading axis of 3 components"),
        ({"weights": [1.0, 1.0], "tail_share": [0.1]}, r"tail_share must be a number, or \[2\]"),
        ({"weights": [1.0, 1.0], "tail_share": [0.1, 1.0]}, "tail_share must be above 0 and below"),
        ({"weights": [1.0, 1.0], "hessian": HESSIANS[:1]}, r"hessian must be of shape \[2, 2, 2\]"),
        ({"weights": [1.0, 1.0], "hessian": -HESSIANS}, "hessian must be negative definite"),
    ],
)  # fmt: skip
def test_wrong_mixtures(options: dict[str, Any], message: str) -> None:
    options = {"hessian": HESSIANS, **options}
    with pytest.raises(ValueError, match=message):
        sgmcmc.IndependentMetropolis(log_of_mixture, tf.constant(MEANS), **options)


def test_shares_of_unequal_length_are_told() -> None:
    options = {"weights": [1.0, 1.0], "hessian": HESSIANS, "tail_share": [[0.1], [0.1, 0.2]]}
    with pytest.raises(TypeError, match="tail_share must be an array of numbers"):
        sgmcmc.IndependentMetropolis(lambda x: -(x[..., 0] ** 2), np.zeros([2, 2]), **options)


def test_a_start_without_a_density_is_left() -> None:
    """NaN counts as zero density there too, as for proposals."""
    target = sgmcmc.FullDataLogProb(
        lambda x: tf.where(x[..., 0] > -1.0, -0.5 * x[..., 0] ** 2, np.nan)
    )
    kernel = sgmcmc.IndependentMetropolis(target, tf.zeros([1]), [[-1.0]])
    results = kernel.bootstrap_results(tf.constant([-2.0]))
    assert np.isneginf(results.log_weight)
    state, results = kernel.one_step(tf.constant([-2.0]), results, seed=[0, 1])
    assert float(state[0]) > -1.0 and bool(results.is_accepted)
