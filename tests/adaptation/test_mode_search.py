"""`sample` on posteriors with several modes: all are found, and visited by their masses."""

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation import independent_draws, kernel_selector
from tfp_sgmcmc.adaptation.coordinates import whiten_at_mode
from tfp_sgmcmc.adaptation.kernel_selector import KernelSelector
from tfp_sgmcmc.adaptation.mode_search import (
    Climbs,
    OtherMode,
    Search,
    climb,
    every_other_mode,
    exchanged,
    far_starts,
)
from tfp_sgmcmc.targets.streaming.pooled import PooledLogProb

tfd = tfp.distributions
OPTIONS: dict[str, Any] = {"progress_bar": False, "seed": 0}


def target_of(law: tfd.Distribution) -> sgmcmc.MinibatchLogProb:
    """Returns a law as the posterior of one example."""
    return sgmcmc.MinibatchLogProb(
        lambda x: 0 * tf.reduce_sum(x, axis=-1),
        lambda x, batch: law.log_prob(x)[..., tf.newaxis] + batch,
        np.zeros(1, np.float32),
    )


def mixture(weights: Any, means: Any, deviations: Any) -> tfd.Distribution:
    means, deviations = (np.array(x, np.float32) for x in (means, deviations))
    return tfd.MixtureSameFamily(
        tfd.Categorical(probs=np.array(weights, np.float32)),
        tfd.MultivariateNormalDiag(means, deviations),
    )


def check_masses(result: Any, is_there: np.ndarray, mass: float) -> None:
    """Draws are independent but for rejections, which R-hat's effective size counts; 1e-6."""
    assert result.is_trusted and result.choices.sampler == "IndependentMetropolis"
    assert not result.flags
    ess = is_there.size / 4  # proposals are kept so far apart that draws are nearly independent
    assert abs(is_there.mean() - mass) < 4.9 * (mass * (1 - mass) / ess) ** 0.5


def test_modes_in_raw_units_are_visited_by_their_masses() -> None:
    """Twenty deviations apart, in units of 1000 and 0.001."""
    law = mixture([0.4, 0.6], [[1000.0, 1e-3], [1500.0, 3e-3]], [[20.0, 1e-4], [30.0, 2e-4]])
    result = sgmcmc.sample(target_of(law), tf.constant([1200.0, 2e-3]), 1000, **OPTIONS)
    is_second = result.states[..., 0] > 1250
    check_masses(result, is_second, 0.6)
    deviations = (result.states[is_second] - [1500, 3e-3]) / [30, 2e-4]
    assert stats.kstest(deviations[::4].ravel(), "norm").pvalue > 1e-6
    assert "2 modes" in result.explanation[0]


@pytest.mark.thorough
def test_all_labellings_of_three_components_are_visited() -> None:
    """The centres of a mixture's components can be exchanged, so there are six equal modes."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(mean, 0.8, 200) for mean in (-4, 0, 5)]).astype(np.float32)

    def log_likelihood(centre: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        law = tfd.Normal(centre[..., tf.newaxis, :], 0.8)
        return tf.reduce_logsumexp(law.log_prob(batch[..., tf.newaxis]), axis=-1)

    prior = tfd.Sample(tfd.Normal(0.0, 5.0), 3)
    target = sgmcmc.MinibatchLogProb(prior.log_prob, log_likelihood, y)
    result = sgmcmc.sample(target, tf.zeros([3]), 1000, **OPTIONS)
    order = np.argsort(result.states, axis=-1)
    for labelling in np.unique(order.reshape(-1, 3), axis=0):
        check_masses(result, (order == labelling).all(axis=-1), 1 / 6)
    assert len(np.unique(order.reshape(-1, 3), axis=0)) == 6


def test_a_narrow_mode_that_only_wide_draws_find() -> None:
    """It has a fifth of the width and a tenth of the mass; no climb of this seed comes to it."""
    law = mixture([0.9, 0.1], [[0.0], [40.0]], [[1.0], [0.2]])
    result = sgmcmc.sample(target_of(law), tf.zeros([1]), 1000, **OPTIONS)
    check_masses(result, result.states[..., 0] > 20, 0.1)


def test_a_run_in_a_directory_goes_on(tmp_path: Path) -> None:
    """A second call has the choices of the first, and their draws."""
    law = mixture([0.4, 0.6], [[-10.0], [10.0]], [[1.0], [2.0]])
    start = tf.zeros([1])
    first = sgmcmc.sample(target_of(law), start, 400, directory=tmp_path, **OPTIONS)
    again = sgmcmc.sample(target_of(law), start, 400, directory=tmp_path, **OPTIONS)
    np.testing.assert_array_equal(first.states, again.states)
    assert again.is_trusted and again.certificate.is_reliable
    named = {"target": target_of(law), "sgmcmc": sgmcmc, "num_results": 400, "result": first}
    exec("\n".join(first.choices.program()), named)
    np.testing.assert_array_equal(named["draws"], first.states)


def test_a_mixture_with_poor_weights_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: without the mixture the same posterior is not trusted."""
    monkeypatch.setattr(independent_draws, "LEAST_EFFICIENCY", 1.1)
    law = mixture([0.4, 0.6], [[-10.0], [10.0]], [[1.0], [1.0]])
    with pytest.warns(UserWarning, match="several modes"):
        result = sgmcmc.sample(target_of(law), tf.zeros([1]), 400, jit_compile=False, **OPTIONS)
    assert not result.is_trusted


@pytest.mark.parametrize("is_pool", [False, True])
def test_modes_of_a_pool_of_rows_are_not_mixed(is_pool: bool) -> None:
    """A pool is accurate near its center only, so the other mode is told, and no more."""
    target = target_of(mixture([0.4, 0.6], [[-10.0], [10.0]], [[1.0], [1.0]]))
    if is_pool:
        target = PooledLogProb(target, np.zeros(1, np.float32), np.ones(1, np.float32))
    seed = tf.constant([0, 1])
    selector = KernelSelector(target, tf.fill([1], 8.0), 4, seed, jit_compile=False)
    selector._at_heaviest_mode()
    assert len(selector.places) == 1 and len(selector._others) == (not is_pool)


@pytest.mark.parametrize(("far", "num_places"), [(None, 0), ([[10.0], [-25.0]], 1)])
def test_a_mode_of_a_pool_counts_if_the_log_posterior_of_all_rows_has_one(
    far: Any, num_places: int
) -> None:
    """The pool's mode is at -10, and that of all rows somewhere beyond, or nowhere."""
    target = target_of(mixture([0.4, 0.6], [[-10.0], [10.0]], [[1.0], [1.0]]))
    pool = PooledLogProb(target, np.zeros(1, np.float32), np.ones(1, np.float32))
    exact = tfd.MultivariateNormalDiag([10.0], [1.0])
    if far is not None:
        exact = mixture([0.6, 0.4], far, [[1.0], [5.0]])
    options = 4, tf.constant([0, 1]), False, exact.log_prob
    selector = KernelSelector(pool, tf.fill([1], 8.0), *options)
    selector._at_heaviest_mode()
    assert len(selector.places) == num_places


def test_rounds_that_climb_side_by_side_end_where_single_ones_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few states of a small target are padded to 64, so three rounds of 16 starts cost one."""
    groups = list[int]()

    def counted(at: Any, starts: np.ndarray) -> Climbs:
        groups.append(len(starts))
        return climb(at, starts)

    monkeypatch.setattr(kernel_selector, "climb", counted)
    target = target_of(mixture([0.4, 0.6], [[-10.0], [10.0]], [[1.0], [1.0]]))
    searches = []
    for most in (1, 64):
        monkeypatch.setattr(kernel_selector, "num_padded", lambda *_, most=most: most)
        selector = KernelSelector(target, tf.fill([1], 8.0), 4, tf.constant([0, 1]), False)
        found = whiten_at_mode(target, tf.fill([1], 8.0))
        searches.append(selector._search(found))
    for number in range(4):
        one, several = (search.ends_fn(number) for search in searches)
        np.testing.assert_array_equal(one.is_mode, several.is_mode)
        np.testing.assert_allclose(one.z[one.is_mode], several.z[one.is_mode], atol=0.05)
    assert sorted(groups) == [16] * 4 + [48] * 2


def test_climbs_that_would_not_arrive_end_early() -> None:
    """Slopes that lead astray leave a climb where it is, a thousand nats below the mode."""
    calls = list[int]()

    def astray(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        calls.append(len(z))
        is_far = np.abs(z) > 50
        return -20 * np.abs(z[:, 0]), np.where(is_far, np.sign(z), 0.0)

    ends = climb(astray, np.full([16, 1], 60.0))
    assert len(calls) == 1 + 10 and ends.is_mode.tolist() == [True] + [False] * 16

    def on_the_way(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # the negative control
        calls.append(len(z))
        return -20 * np.abs(z[:, 0]), -20 * np.tanh(100 * z)

    ends = climb(on_the_way, np.full([16, 1], 60.0))
    assert len(calls) > 11 + 11 and (np.abs(ends.z) < 1).all()


def ends_of(at: Any, starts: Any, number: int) -> Climbs:
    return climb(at, starts(number))


class TestSearch:
    """Climbs on a line with modes at 0, 20, 40, ..., all of deviation 1."""

    @staticmethod
    def modes_from(starts: Any, num_modes: int) -> list[OtherMode] | None:
        places = 20.0 * np.arange(num_modes)

        def at(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            offset = z - places[np.abs(z - places).argmin(axis=-1)][:, np.newaxis]
            return -0.5 * offset[:, 0] ** 2, -offset

        def refine(rough: OtherMode) -> OtherMode:
            return rough._replace(factor=np.eye(1))

        ends = functools.partial(ends_of, at, starts)
        return every_other_mode(Search(at, ends, refine, lambda z, _: z))

    def test_all_modes_are_found(self) -> None:
        rng = np.random.default_rng(0)
        found = self.modes_from(lambda _: rng.uniform(-5, 65, [16, 1]), 4)
        assert found is not None
        np.testing.assert_allclose(sorted(float(x.z[0]) for x in found), [20, 40, 60], atol=0.05)

    def test_a_mode_that_is_hardly_reached_tells_of_others(self) -> None:
        """One climb of 16 in each round comes to another mode than before: the rest is unseen."""

        def starts(number: int) -> np.ndarray:
            return np.concatenate([np.zeros([15, 1]), [[20.0 * number + 20]]])

        assert self.modes_from(starts, 100) is None

    def test_too_many_modes_are_not_mixed(self) -> None:
        rng = np.random.default_rng(0)
        assert self.modes_from(lambda _: rng.uniform(-5, 600, [16, 1]), 30) is None

    def test_entries_of_parts_are_exchanged_together(self) -> None:
        """Parts of three components, one of them of vectors, keep together; others have an order.

        Of 600 orders each of six has 100 +- 9; 4.9 standard errors.
        """
        means, widths = np.arange(6.0).reshape(3, 2), 10 + np.arange(3.0)
        flat = np.concatenate([means.ravel(), widths, [20.0, 21.0], [30.0]])
        shapes = [(3, 2), (3,), (2,), ()]
        states = exchanged(np.tile(flat, [600, 1]), shapes, np.random.default_rng(0))
        order = (states[:, 6:9] - 10).astype(int)
        np.testing.assert_array_equal(states[:, :6].reshape(-1, 3, 2), means[order])
        assert set(map(tuple, states[:, 9:11])) == {(20.0, 21.0), (21.0, 20.0)}
        np.testing.assert_array_equal(states[:, 11], 30.0)
        _, counts = np.unique(order, axis=0, return_counts=True)
        assert len(counts) == 6 and abs(counts - 100).max() < 4.9 * (600 * 5 / 36) ** 0.5

    def test_modes_that_only_exchanges_reach(self) -> None:
        """Wide starts come to two labellings of three; the other four are exchanges of these."""
        centres = np.array([-20.0, 0.0, 20.0])
        places = np.array([centres[list(x)] for x in itertools.permutations(range(3))])
        places -= places[0]

        def at(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            nearest = np.linalg.norm(z[:, np.newaxis] - places, axis=-1).argmin(axis=-1)
            offset = z - places[nearest]
            return -0.5 * (offset**2).sum(axis=-1), -offset

        def starts(number: int) -> np.ndarray:
            rng = np.random.default_rng([number, 1])
            return places[rng.integers(2, size=16)] + rng.standard_normal([16, 3])

        def exchange(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return exchanged(z + centres, [(3,)], rng) - centres

        def refine(rough: OtherMode) -> OtherMode:
            return rough._replace(factor=np.eye(3))

        ends = functools.partial(ends_of, at, starts)
        found = every_other_mode(Search(at, ends, refine, exchange))
        assert found is not None and len(found) == 5

    def test_later_starts_lie_between(self) -> None:
        """From 5 deviations to the prior's width, on a logarithmic scale; each round has its own.

        Half are around the user's start, the nearer to it the farther they are from the center.
        """
        options = 3, np.array([1000.0, 0.0, 0.0]), 300 * np.eye(3), [0, 1]
        rounds = np.stack([far_starts(*options, number) for number in range(1, 399, 2)])
        assert len(np.unique(rounds[..., 1])) == rounds[..., 1].size
        distances = np.linalg.norm(rounds[:, 1::2], axis=-1)
        # The logarithm is uniform from log 5 to that of the distance of a prior's draw.
        prior = np.exp(np.log(300) + 0.5 * (scipy.special.digamma(1.5) + np.log(2)))
        middle = 0.5 * (np.log(5) + np.log(prior))
        assert abs(np.log(distances).mean() - middle) < 4.9 * np.log(distances).std() / 1592**0.5
        assert distances.min() >= 5 and rounds[:, ::2, 0].mean() > 400 > abs(
            rounds[:, 1::2, 0].mean()
        )
