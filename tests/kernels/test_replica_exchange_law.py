"""Replica exchange SGLD between two modes has the right law after k steps, bias included.

Both replicas start in the smaller mode. Their joint law after any number of steps is known on a
grid: moves are normal transitions and swaps have a known probability, each averaged over all
minibatches. Samples are the last states of independent chains. The DKW inequality makes the
false-alarm rate exactly 1e-6, and a Kolmogorov distance of 2% is found with probability 0.999.
"""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import run_chains
from tests.harness.mutation import mutant
from tests.harness.one_dimension import GridLaw, density_law
from tests.harness.replica_law import ReplicaLaw
from tests.harness.statistics import Rejected, check_cdf, check_means
from tfp_sgmcmc.kernels import replica_exchange_sgld
from tfp_sgmcmc.targets.anchored import log_prob_differences

CHAINS = 60_000
DISTANCE = 0.02


def samples(kernel: Any, start: float, num_steps: int) -> np.ndarray:
    return run_chains(kernel, tf.fill([CHAINS], start), 1, num_steps - 1, seed=1)[:, 0, 0]


def metropolis(log_ratio: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(log_ratio, 0.0))


def distance(first: GridLaw, second: GridLaw) -> float:
    return float(np.max(np.abs(first.cdf(second.edges) - second.cdf(second.edges))))


def weight(law: GridLaw) -> float:
    """Returns the mass of the mode on the right."""
    return float(1 - law.cdf(np.zeros(1))[0])


class Exact:
    """0.3 N(-2.5, 0.7^2) + 0.7 N(2.5, 0.7^2) with its exact gradient, at T = 1 and 10."""

    steps, temperatures, num_steps, start = (0.05, 0.4), (1.0, 10.0), 100, -2.5
    delta = 1 / 1.0 - 1 / 10.0

    @staticmethod
    def tilt(x: Any) -> Any:
        """Returns the log ratio of the left component to the right one."""
        return np.log(3 / 7) - 5 * x / 0.49

    @classmethod
    def target(cls) -> sgmcmc.FullDataLogProb:
        return sgmcmc.FullDataLogProb(
            lambda x: -((x - 2.5) ** 2) / 0.98 + tf.math.softplus(cls.tilt(x))
        )

    @classmethod
    def log_prob(cls, x: np.ndarray) -> np.ndarray:
        return -((x - 2.5) ** 2) / 0.98 + np.logaddexp(0.0, cls.tilt(x))

    @classmethod
    def gradient(cls, x: np.ndarray) -> np.ndarray:
        return -(x - 2.5) / 0.49 - 5 / 0.49 * special.expit(cls.tilt(x))

    @classmethod
    @functools.cache
    def law(cls, num_cells: int = 300) -> GridLaw:
        grid = ReplicaLaw(
            16.0,
            num_cells,
            lambda cold, hot: metropolis(cls.delta * (cls.log_prob(hot) - cls.log_prob(cold))),
        )
        cold, hot = (
            grid.transition(lambda x, e=e: x + e / 2 * cls.gradient(x), np.sqrt(e * t))
            for e, t in zip(cls.steps, cls.temperatures, strict=True)
        )
        return grid.after(cls.num_steps, cls.start, (cold, hot))

    @classmethod
    def samples(cls) -> np.ndarray:
        kernel = sgmcmc.ReplicaExchangeSGLD(cls.target(), cls.steps, cls.temperatures)
        return samples(kernel, cls.start, cls.num_steps)


def test_the_mixture_has_its_law_and_the_right_weights() -> None:
    """0.700 of the mass is on the right. At these steps the bias of the scheme is 0.003."""
    law = Exact.law()
    assert abs(weight(law) - weight(density_law(Exact.log_prob, 16.0))) < 0.005
    check_cdf(Exact.samples(), law.cdf, DISTANCE)


def test_sgld_alone_stays_in_its_mode() -> None:
    kernel = sgmcmc.SGLD(Exact.target(), Exact.steps[0])
    alone = samples(kernel, Exact.start, Exact.num_steps)
    assert np.mean(alone > 0) < 0.02
    with pytest.raises(Rejected):
        check_cdf(alone, Exact.law().cdf, DISTANCE)


def inverted(target: Any, states: Any, seed: Any) -> Any:
    difference, variance = log_prob_differences(target, states, seed)
    return -difference, variance


def copied(states: tf.Tensor, swapped: tf.Tensor) -> tf.Tensor:
    """A broken swap copies the hot state to the cold replica and loses the cold one."""
    return tf.stack([tf.where(swapped[0], states[1], states[0]), states[1]])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("log_prob_differences", inverted),
        pytest.param("exchange", copied, marks=pytest.mark.slow),
    ],
)
def test_broken_swaps_are_found(monkeypatch: pytest.MonkeyPatch, name: str, bug: Any) -> None:
    monkeypatch.setattr(replica_exchange_sgld, name, bug)
    with pytest.raises(Rejected):
        check_cdf(Exact.samples(), Exact.law().cdf, DISTANCE)


class Minibatch:
    """x_i ~ N(theta^2, 1), six of them, theta ~ N(0.3, 1); minibatches of 4 with replacement."""

    steps, temperatures, num_steps, start = (0.01, 0.02), (1.0, 5.0), 200, -1.0
    delta, total, size, limit = 1 / 1.0 - 1 / 5.0, 6, 4, 3.5
    data = np.array([-0.5, 0.3, 0.8, 1.2, 1.8, 2.4])
    # Minibatches in ascending order, with their multiplicity among the 6^4 ordered ones.
    minibatches, counts = np.unique(
        np.sort(np.array(list(itertools.product(data, repeat=size)))), axis=0, return_counts=True
    )

    @classmethod
    def terms(cls, theta: np.ndarray, batch: np.ndarray) -> np.ndarray:
        return -0.5 * (batch - theta[..., np.newaxis] ** 2) ** 2

    @classmethod
    def log_prob(cls, theta: np.ndarray) -> np.ndarray:
        return -0.5 * (theta - 0.3) ** 2 + cls.terms(theta, cls.data).sum(axis=-1)

    @classmethod
    def gradients(cls, theta: np.ndarray) -> np.ndarray:
        """Returns values for all minibatches, `[minibatches, ...]`."""
        scores = 2 * theta * (cls.minibatches.sum(axis=1)[:, np.newaxis] - cls.size * theta**2)
        return 0.3 - theta + cls.total / cls.size * scores

    @classmethod
    def swap_probability(cls, cold: np.ndarray, hot: np.ndarray, factor: float) -> np.ndarray:
        """Returns the mean of min(1, S) over minibatches; a factor of 0 has exact energies."""
        if factor == 0:
            return metropolis(cls.delta * (cls.log_prob(hot) - cls.log_prob(cold)))
        prior = -0.5 * ((hot - 0.3) ** 2 - (cold - 0.3) ** 2)
        probabilities = []
        for batch in cls.minibatches:
            terms = cls.terms(hot, batch) - cls.terms(cold, batch)
            difference = prior + cls.total / cls.size * terms.sum(axis=-1)
            variance = cls.total**2 / cls.size * terms.var(axis=-1, ddof=1)
            probabilities.append(
                metropolis(cls.delta * difference - cls.delta**2 * variance / (2 * factor))
            )
        return np.average(probabilities, axis=0, weights=cls.counts)

    @classmethod
    @functools.cache
    def law(cls, factor: float, num_cells: int = 200) -> GridLaw:
        grid = ReplicaLaw(
            cls.limit, num_cells, lambda cold, hot: cls.swap_probability(cold, hot, factor)
        )
        cold, hot = (
            grid.transition(lambda x, e=e: x + e / 2 * cls.gradients(x), np.sqrt(e * t), cls.counts)
            for e, t in zip(cls.steps, cls.temperatures, strict=True)
        )
        return grid.after(cls.num_steps, cls.start, (cold, hot))

    @classmethod
    def samples(cls, factor: float) -> np.ndarray:
        target = sgmcmc.MinibatchLogProb(
            lambda theta: -0.5 * (theta - 0.3) ** 2,
            lambda theta, batch: -0.5 * (batch - theta[..., tf.newaxis] ** 2) ** 2,
            cls.data,
            cls.size,
            replacement=True,
            dtype=tf.float32,
        )
        kernel = sgmcmc.ReplicaExchangeSGLD(
            target, cls.steps, cls.temperatures, correction_factor=factor
        )
        return samples(kernel, cls.start, cls.num_steps)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, np.inf])
def test_minibatches_have_their_law(factor: float) -> None:
    """Each of the two rules has its law, and is rejected by the law of the other."""
    drawn = Minibatch.samples(factor)
    check_cdf(drawn, Minibatch.law(factor).cdf, DISTANCE)
    with pytest.raises(Rejected):
        check_cdf(drawn, Minibatch.law(np.inf if factor == 1.0 else 1.0).cdf, DISTANCE)


@pytest.mark.thorough
def test_the_correction_makes_noisy_swaps_as_good_as_exact_ones() -> None:
    """Compares the bias with that of SGLD with exact swaps."""
    exact, corrected, not_corrected = (Minibatch.law(factor) for factor in (0.0, 1.0, np.inf))
    assert distance(corrected, exact) < 0.015 < 0.05 < distance(not_corrected, exact)
    posterior = weight(density_law(Minibatch.log_prob, Minibatch.limit))
    assert abs(weight(corrected) - posterior) < 0.02
    assert abs(weight(not_corrected) - posterior) > 0.03


@pytest.mark.thorough
def test_the_grids_are_fine_enough() -> None:
    """With fewer cells the distribution function changes by a tenth of the tested distance."""
    assert distance(Exact.law(200), Exact.law()) < DISTANCE / 10
    assert distance(Minibatch.law(1.0, 140), Minibatch.law(1.0)) < DISTANCE / 10


def accepted_share(excess: float, spread: float, kernel: Any = sgmcmc.ReplicaExchangeSGLD) -> Any:
    """Whether swaps are accepted where delta D is N(excess, spread^2), `[chains]`."""
    made = kernel(Exact.target(), 0.05, (1.0, 2.0))
    chains, delta = 400_000, 0.5

    def differences(*_: Any) -> tuple[tf.Tensor, tf.Tensor]:
        z = sgmcmc.random.normal([1, chains], tf.float32, 7)
        return (excess + spread * z) / delta, tf.fill([1, chains], (spread / delta) ** 2)

    # The module's name is looked up where the kernel was defined, also for a mutant.
    space = kernel._swap.__globals__
    before, space["log_prob_differences"] = space["log_prob_differences"], differences
    try:
        _, accepted, *_ = made._swap(
            tf.zeros([2, chains]), tf.constant([True]), tf.constant([0, 1])
        )
    finally:
        space["log_prob_differences"] = before
    return accepted.numpy()[0].astype(float)


def swap_rate(excess: float, spread: float) -> float:
    """E[min(1, exp(x - s^2 / 2))] for x in N(excess, s^2), by normal integrals.

    Its values at excess and -excess have the ratio exp(excess) for every s, as detailed balance
    needs (Ceperley and Dewing 1999).
    """
    above = special.ndtr((excess - spread**2 / 2) / spread)
    return above + np.exp(excess) * special.ndtr((-excess - spread**2 / 2) / spread)


@pytest.mark.parametrize("excess", [-0.7, 0.7])
def test_the_rate_of_swaps_is_that_of_the_penalty(excess: float) -> None:
    """Power: an error of 0.01. Negative controls: the correction doubled, halved and left out."""
    spread = 1.0
    np.testing.assert_allclose(swap_rate(0.7, 1.0) / swap_rate(-0.7, 1.0), np.exp(0.7))
    check_means(accepted_share(excess, spread), swap_rate(excess, spread), 0.01)
    for factor in ("2 *", "0.5 *", "0 *"):
        broken = mutant(
            sgmcmc.ReplicaExchangeSGLD,
            ("- variance / (2 * self", f"- {factor} variance / (2 * self"),
        )
        with pytest.raises(Rejected):
            check_means(accepted_share(excess, spread, broken), swap_rate(excess, spread), 0.01)
