"""Replica exchange SGLD: one step by hand, swaps, shapes, modes, bad input.

`test_replica_exchange_law.py` tests the laws that it samples.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import FULL, HAND, MODEL, SEED, STRUCTURES, flat, two_parts
from tests.harness.fast_settings import fast_settings
from tests.harness.gaussian_mean import PRECISION, PRIOR_PRECISION
from tests.harness.statistics import Rejected, check_means
from tfp_sgmcmc import random
from tfp_sgmcmc.kernels import replica_exchange_sgld
from tfp_sgmcmc.kernels.replica_exchange_sgld import exchange
from tfp_sgmcmc.preconditioners import FullMatrix

BATCH = 4
C = 12 * (12 - BATCH) / BATCH  # without replacement
TEMPERATURES = np.array([1.0, 1.2, 2.0])
STEPS = np.array([0.01, 0.02, 0.03])
FACTOR = 2.0
START = np.random.default_rng(0).normal(1.0, 0.3, size=[3, 40, 3])  # R = 3, 40 chains
QUADRATIC = sgmcmc.FullDataLogProb(lambda x: -0.5 * x**2)


def log_prob(theta: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns log priors `[...]` and log likelihoods `[..., n]`."""
    residual = examples - theta[..., np.newaxis, :]
    likelihood = -0.5 * np.sum(residual * (residual @ PRECISION), axis=-1)
    return -0.5 * np.sum(theta * (theta @ PRIOR_PRECISION), axis=-1), likelihood


def moved(theta: np.ndarray, indices: np.ndarray, z: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns theta + eps / 2 M g + sqrt(eps T) M^(1/2) z for each replica."""
    g = HAND.gradient(theta, indices)
    epsilon, temperature = STEPS[:, np.newaxis, np.newaxis], TEMPERATURES[:, np.newaxis, np.newaxis]
    noise = z @ np.linalg.cholesky(matrix).T
    return theta + epsilon / 2 * g @ matrix + np.sqrt(epsilon * temperature) * noise


def log_ratio(theta: np.ndarray, examples: np.ndarray, factor: float, c: float = C) -> np.ndarray:
    """Returns log S of neighbours."""
    log_prior, terms = (np.diff(x, axis=0) for x in log_prob(theta, examples))
    delta = (1 / TEMPERATURES[:-1] - 1 / TEMPERATURES[1:])[:, np.newaxis]
    difference = log_prior + MODEL.num_examples / BATCH * terms.sum(axis=-1)
    return delta * difference - delta**2 * c * terms.var(axis=-1, ddof=1) / (2 * factor)


class Draws:
    """The random numbers of one step."""

    def __init__(self, target: sgmcmc.MinibatchLogProb, states: tf.Tensor, seed: tf.Tensor):
        move_seed, swap_seed = random.split(seed, 2)
        batch_seed, noise_seed, _ = random.split(move_seed, 3)
        chains = states.shape[:-1]
        self.batch = target.draw(batch_seed, tf.range(BATCH), chains)
        self.z = random.normal_like(states, noise_seed)
        batch_seed, uniform_seed = random.split(swap_seed, 2)
        self.swap_batch = target.draw(batch_seed, tf.range(BATCH), chains[1:])
        pair = random.normal([2, chains[0] - 1, *chains[1:]], states.dtype, uniform_seed)
        self.uniform = tf.exp(-tf.reduce_sum(pair**2, axis=0) / 2)


@pytest.mark.parametrize(
    ("mode", "matrix"),
    [pytest.param("eager", np.eye(3), marks=pytest.mark.thorough), ("eager", FULL),
     pytest.param("xla", np.eye(3), marks=pytest.mark.slow),
     pytest.param("graph", FULL, marks=pytest.mark.slow)],
    ids=["eager", "eager preconditioned", "xla", "graph preconditioned"])  # fmt: skip
def test_steps_by_hand(mode: str, matrix: np.ndarray) -> None:
    """The pair (1, 2) swaps first, then (2, 3). Some of the 40 chains swap, some do not."""
    replacement, c = (True, 12**2 / BATCH) if mode == "xla" else (False, C)  # compiles faster
    target = MODEL.target(BATCH, tf.float64, replacement=replacement)
    preconditioner = FullMatrix(matrix) if matrix is FULL else None
    kernel = sgmcmc.ReplicaExchangeSGLD(
        target, STEPS, TEMPERATURES, 1, FACTOR, preconditioner=preconditioner
    )

    def step(state: tf.Tensor, results: Any, seed: tf.Tensor) -> Any:
        draws = Draws(target, tf.concat([state[tf.newaxis], results.hot_states], axis=0), seed)
        return kernel.one_step(state, results, seed), vars(draws)

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "xla", autograph=False)
    theta = START
    results = kernel.bootstrap_results(tf.constant(START[0]))
    results = results._replace(hot_states=tf.constant(START[1:]))
    for t in range(2):
        state, seed = tf.constant(theta[0]), SEED + t
        (state, results), draws = step(state, results, seed)
        draws = {name: x.numpy() for name, x in draws.items()}
        theta = moved(theta, draws["batch"], draws["z"], matrix)
        ratio = log_ratio(theta, MODEL.data[draws["swap_batch"]], FACTOR, c)
        accepted = np.log(draws["uniform"]) < ratio
        accepted[1 - t] = False
        assert 3 < accepted[t].sum() < 37
        pair, mask = theta[t : t + 2], accepted[t][:, np.newaxis]
        theta = theta.copy()
        theta[t : t + 2] = np.where(mask, pair[::-1], pair)
        np.testing.assert_allclose(state, theta[0], rtol=1e-9)
        np.testing.assert_allclose(results.hot_states, theta[1:], rtol=1e-9)
        np.testing.assert_allclose(results.log_swap_ratio, ratio, rtol=1e-7, atol=1e-9)
        np.testing.assert_array_equal(results.is_swap_accepted, accepted)
        np.testing.assert_array_equal(results.is_swap_proposed, [t == 0, t == 1])
        np.testing.assert_array_equal(results.step_size, STEPS)
        assert results.step.numpy() == t + 1
    np.testing.assert_array_equal(results.num_swaps_proposed, [1, 1])
    assert results.num_swaps_accepted.shape == [2, 40]
    np.testing.assert_array_equal(results.num_swaps_accepted[1], accepted[1])


def still(target: Any, temperatures: Any, states: np.ndarray, seed: int = 1, **options: Any) -> Any:
    """Returns results and states of a step without moves, which leaves only its swap."""
    kernel = sgmcmc.ReplicaExchangeSGLD(target, 1e-30, temperatures, **options)
    results = kernel.bootstrap_results(tf.constant(states[0]))
    results = results._replace(hot_states=tf.constant(states[1:]))
    state, results = kernel.one_step(tf.constant(states[0]), results, seed)
    return np.concatenate([state.numpy()[np.newaxis], results.hot_states.numpy()]), results


def test_the_colder_replica_always_takes_the_lower_energy() -> None:
    """With U = x^2/2 at T = 1 and 4, the swap from (2, 1) has S = exp(3/4 (2 - 1/2)) > 1."""
    states = np.stack([np.full(1000, 2.0), np.full(1000, 1.0)])
    after, results = still(QUADRATIC, [1.0, 4.0], states)
    np.testing.assert_allclose(results.log_swap_ratio, 0.75 * 1.5)
    np.testing.assert_allclose(after, states[::-1])
    assert np.all(results.is_swap_accepted) and np.all(results.num_swaps_accepted == 1)


def test_it_gives_it_up_with_the_probability_of_metropolis() -> None:
    """The way back, from (1, 2), has min(1, S) = exp(-9/8) = 0.325.

    Power: 100,000 chains find an error of 0.015.
    """
    states = np.stack([np.full(100_000, 1.0), np.full(100_000, 2.0)])
    after, results = still(QUADRATIC, [1.0, 4.0], states)
    np.testing.assert_allclose(results.log_swap_ratio, -0.75 * 1.5)
    accepted = results.is_swap_accepted.numpy()[0]
    np.testing.assert_allclose(after, np.where(accepted, states[::-1], states))
    check_means(accepted, np.exp(-9 / 8), 0.015)
    for wrong in (1.0, np.exp(-9 / 2), np.exp(-3 / 2)):  # inverted; delta T_2; no 1/T_2
        with pytest.raises(Rejected):
            check_means(accepted, wrong, 0.015)


def flow(temperatures: Any, energies: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """Returns the mass that S swaps from (i, j) to (j, i) in the law exp(-U_i/T_1 - U_j/T_2)."""
    law = np.exp(-energies[:, np.newaxis] / temperatures[0] - energies / temperatures[1])
    return law * np.exp(np.minimum(ratio, 0.0))


def test_swaps_without_noise_are_in_detailed_balance() -> None:
    """Enumerates every pair of three states. An inverted rule is not in balance."""
    places, temperatures = np.array([0.3, 1.0, 2.2]), [0.7, 3.0]
    cold, hot = (x.ravel() for x in np.meshgrid(places, places, indexing="ij"))
    _, results = still(QUADRATIC, temperatures, np.stack([cold, hot]))
    ratio = results.log_swap_ratio.numpy().reshape(3, 3)
    there = flow(temperatures, places**2 / 2, ratio)
    np.testing.assert_allclose(there, there.T, rtol=1e-12)
    inverted = flow(temperatures, places**2 / 2, -ratio)
    assert np.max(np.abs(inverted - inverted.T)) > 0.1 * inverted.max()


class NoisySwap:
    """The probability of a swap with log ratio `exact`, by quadrature over the noise of D."""

    DELTA = 1 / 1.0 - 1 / 4.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, deviation: float, factor: float):
        self.deviation, self.factor = deviation, factor  # of delta D
        self.z = np.linspace(-9.0, 9.0, 50_001)
        self.weight = stats.norm.pdf(self.z) * (self.z[1] - self.z[0])
        self.monkeypatch = monkeypatch

    def log_ratios(self, exact: float) -> np.ndarray:
        def noisy(target: Any, states: Any, seed: Any) -> Any:
            del target, states, seed
            difference = (exact + self.deviation * self.z) / self.DELTA
            variance = np.full_like(self.z, (self.deviation / self.DELTA) ** 2)
            return tf.constant(difference[np.newaxis]), tf.constant(variance[np.newaxis])

        self.monkeypatch.setattr(replica_exchange_sgld, "log_prob_differences", noisy)
        states = np.zeros([2, len(self.z)])
        _, results = still(QUADRATIC, [1.0, 4.0], states, correction_factor=self.factor)
        np.testing.assert_allclose(results.log_swap_variance, self.deviation**2)
        return results.log_swap_ratio.numpy()[0]

    def mean_ratio(self, exact: float) -> float:
        return self.weight @ np.exp(self.log_ratios(exact))

    def probability(self, exact: float) -> float:
        return self.weight @ np.exp(np.minimum(self.log_ratios(exact), 0.0))


@pytest.mark.parametrize("deviation", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("exact", fast_settings([0.0, 0.4, 2.0], 0.4))
def test_gaussian_noise_leaves_swaps_exact(
    monkeypatch: pytest.MonkeyPatch, deviation: float, exact: float
) -> None:
    """E[S] equals S without noise, and swaps there and back are in detailed balance."""
    swap = NoisySwap(monkeypatch, deviation, factor=1.0)
    np.testing.assert_allclose(swap.mean_ratio(exact), np.exp(exact), rtol=1e-6)
    there, back = swap.probability(exact), swap.probability(-exact)
    np.testing.assert_allclose(there / back, np.exp(exact), rtol=1e-6)
    s = deviation
    closed = stats.norm.cdf(exact / s - s / 2) + np.exp(exact) * stats.norm.cdf(-exact / s - s / 2)
    np.testing.assert_allclose(there, closed, rtol=1e-6)


@pytest.mark.parametrize("factor", [2.0, pytest.param(np.inf, marks=pytest.mark.thorough)])
def test_less_than_the_full_correction_has_a_bias(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """E[S] = S exp(s^2 / 2 (1 - 1/F)), and the balance is off by more than a tenth."""
    swap = NoisySwap(monkeypatch, 1.5, factor)
    expected = np.exp(0.4 + 1.5**2 / 2 * (1 - 1 / factor))
    np.testing.assert_allclose(swap.mean_ratio(0.4), expected, rtol=1e-6)
    assert swap.probability(2.0) / swap.probability(-2.0) < 0.9 * np.exp(2.0)


def test_swaps_exchange_whole_states() -> None:
    """Tests R = 5 replicas and 2 chains, in a part with an event and one without."""
    rows = np.arange(5.0)[:, np.newaxis] * np.ones(2)
    states = {"a": tf.constant(rows), "b": tf.constant(rows[..., np.newaxis] + np.zeros(3))}
    swapped = tf.constant([[True, False], [False, True], [False, False], [True, True]])
    got = exchange(states, swapped)
    expected = np.array([[1, 0, 2, 4, 3], [0, 2, 1, 4, 3]]).T
    np.testing.assert_array_equal(got["a"], expected)
    np.testing.assert_array_equal(got["b"], np.tile(expected[..., np.newaxis], 3))


def test_pairs_take_turns_and_pause() -> None:
    """With R = 4, every third step swaps (1, 2) and (3, 4), then (2, 3). R = 2 has one pair."""
    for replicas, turns in ((4, [[1, 0, 1], [0, 1, 0]]), (2, [[1], [1]])):
        kernel = sgmcmc.ReplicaExchangeSGLD(QUADRATIC, 0.1, 1.0 + np.arange(replicas), swap_every=3)
        state = tf.zeros([500])
        results = kernel.bootstrap_results(state)
        expected = np.zeros(replicas - 1)
        for t in range(1, 13):
            last = results
            state, results = kernel.one_step(state, results, SEED + t)
            due = t % 3 == 0
            proposed = np.array(turns[(t // 3 - 1) % 2]) * due
            np.testing.assert_array_equal(results.is_swap_proposed, proposed)
            accepted = results.is_swap_accepted.numpy()
            assert np.array_equal(accepted.any(axis=1), proposed)
            expected += proposed
            np.testing.assert_array_equal(results.num_swaps_proposed, expected)
            more = results.num_swaps_accepted - last.num_swaps_accepted
            np.testing.assert_array_equal(more, accepted)
            kept = np.array_equal(results.log_swap_ratio, last.log_swap_ratio)
            assert kept != due


def test_a_hot_replica_that_breaks_down_is_never_swapped_in() -> None:
    states = np.stack([np.full(1000, 2.0), np.full(1000, np.nan)])
    after, results = still(QUADRATIC, [1.0, 4.0], states)
    assert not np.any(results.is_swap_accepted)
    np.testing.assert_allclose(after[0], 2.0)


@STRUCTURES
def test_states_of_two_parts(structure: Any) -> None:
    """A swap exchanges the whole state, both parts of a chain together."""
    quadratic = MODEL.target(BATCH, tf.float64, parts=True)
    states = two_parts(START, structure)
    kernel = sgmcmc.ReplicaExchangeSGLD(quadratic, 1e-30, TEMPERATURES)
    state = tf.nest.map_structure(lambda x: x[0], states)
    results = kernel.bootstrap_results(state)
    results = results._replace(hot_states=tf.nest.map_structure(lambda x: x[1:], states))
    got, results = kernel.one_step(state, results, SEED)
    assert type(got) is type(structure)
    accepted = results.is_swap_accepted.numpy()[0]
    assert 3 < accepted.sum() < 37
    expected = np.where(accepted[:, np.newaxis], START[1], START[0])
    np.testing.assert_allclose(flat(got), expected, rtol=1e-10)


@pytest.mark.slow
def test_parallel_chains_are_independent() -> None:
    """No two of 20,000 chains are equal, and neighbours' swaps and states are uncorrelated."""
    kernel = sgmcmc.ReplicaExchangeSGLD(MODEL.target(BATCH), STEPS, TEMPERATURES)
    state = tf.zeros([20_000, 3]) + tf.constant(MODEL.mean, tf.float32)
    results = kernel.bootstrap_results(state)
    for t in range(3):
        state, results = kernel.one_step(state, results, SEED + t)
    x, accepted = state.numpy(), results.is_swap_accepted.numpy()[0].astype(float)
    assert len(np.unique(x, axis=0)) == 20_000
    x, accepted = (x - x.mean(axis=0)) / x.std(axis=0), accepted - accepted.mean()
    check_means(x[::2] * x[1::2], 0.0, 0.1)
    check_means(accepted[::2] * accepted[1::2], 0.0, 0.1 * accepted.var())
    with pytest.raises(Rejected):
        check_means(x * x, 0.0, 0.1)  # copies


def test_a_chain_goes_on_from_the_state_that_it_is_given() -> None:
    kernel = sgmcmc.ReplicaExchangeSGLD(QUADRATIC, 1e-12, [1.0, 4.0])
    results = kernel.bootstrap_results(tf.zeros([]))
    state, results = kernel.one_step(tf.constant(3.0), results, SEED)
    np.testing.assert_allclose([state, results.hot_states[0]], [0.0, 3.0], atol=1e-4)


@pytest.mark.parametrize("kind", ["shared", "growing", "control variate"])
def test_swaps_compare_log_likelihoods_however_gradients_are_estimated(kind: str) -> None:
    base = MODEL.target(BATCH, tf.float64, shared_batch=kind == "shared")
    target = {
        "shared": lambda: base,
        "growing": lambda: sgmcmc.GrowingBatch(base),
        "control variate": lambda: sgmcmc.ControlVariate(base, tf.constant(MODEL.mean)),
    }[kind]()
    _, results = still(target, TEMPERATURES, START)
    states = tf.constant(START)
    batch = Draws(base, states, random.as_seed(1)).swap_batch.numpy()
    expected = log_ratio(START, MODEL.data[batch], 1.0)
    np.testing.assert_allclose(results.log_swap_ratio, expected, rtol=1e-7, atol=1e-9)
    assert batch.shape == ((BATCH,) if kind == "shared" else (40, BATCH))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperatures": [1.0]}, ValueError, r"at least two numbers. Received: shape \(1,\)"),
        ({"temperatures": [[1.0, 2.0]]}, ValueError, r"at least two numbers.*: shape \(1, 2\)"),
        ({"temperatures": [1.0, 1.0]}, ValueError, "finite numbers that increase"),
        ({"temperatures": [2.0, 1.0]}, ValueError, r"temperatures must .* increase.*: \[2. 1.\]"),
        ({"temperatures": [0.0, 1.0]}, ValueError, "positive finite numbers"),
        ({"temperatures": [1.0, np.inf]}, ValueError, "positive finite numbers"),
        ({"temperatures": ["cold", "hot"]}, ValueError, "temperatures must be numbers"),
        ({"temperatures": None}, ValueError, "at least two numbers"),
        ({"step_size": 0.0}, ValueError, "step_size must be a positive finite .*: 0.0"),
        ({"step_size": [0.1, -0.1]}, ValueError, "step_size must be .* Received: -0.1"),
        ({"step_size": [0.1, 0.1, 0.1]}, ValueError, r"one number, or .* 2 temp.* shape \(3,\)"),
        ({"step_size": lambda t: [0.1] * 3}, ValueError, r"one number.*: shape \(3,\)"),
        ({"swap_every": 0}, ValueError, "swap_every must be at least 1. Received: 0"),
        ({"swap_every": 1.5}, TypeError, "swap_every must be an integer. Received: 1.5"),
        ({"correction_factor": 0.5}, ValueError, "correction_factor must be at least 1.*: 0.5"),
        ({"correction_factor": np.nan}, ValueError, "correction_factor must be at least 1.*: nan"),
        ({"target_log_prob_fn": MODEL.target(1)}, ValueError, "batch_size must be at least 2"),
        ({"target_log_prob_fn": 1.0}, TypeError, "a callable"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type, message: str) -> None:
    good = {"target_log_prob_fn": QUADRATIC, "step_size": 0.1, "temperatures": [1.0, 2.0]}
    with pytest.raises(error, match=message):
        sgmcmc.ReplicaExchangeSGLD(**{**good, **options})


def test_bad_states() -> None:
    kernel = sgmcmc.ReplicaExchangeSGLD(QUADRATIC, 0.1, [1.0, 2.0])
    with pytest.raises(ValueError, match="initial state must be finite. Received: NaN"):
        kernel.bootstrap_results(tf.constant([np.nan]))
    with pytest.raises(TypeError, match="state must have a floating dtype.*: dtype int32"):
        kernel.bootstrap_results(tf.constant([1]))


def test_one_state_is_repeated_for_the_chains() -> None:
    kernel = sgmcmc.ReplicaExchangeSGLD(QUADRATIC, 0.01, TEMPERATURES)
    options: dict[str, Any] = dict(seed=0, jit_compile=False, progress_bar=False)
    several = sgmcmc.sample_chain(kernel, 0.0, 5, num_chains=4, **options)
    tiled = sgmcmc.sample_chain(kernel, np.zeros(4, np.float32), 5, **options)
    np.testing.assert_array_equal(several.states, tiled.states)
