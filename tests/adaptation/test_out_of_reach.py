"""Parts of a posterior that draws may miss: they are found, and draws that come there settle it."""

import contextlib
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation import fallback, kernel_selector, out_of_reach, target_driver
from tfp_sgmcmc.adaptation.hierarchies.noncentering import noncentered
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.out_of_reach import (
    FarMass,
    Place,
    beyond,
    check_reach,
    far_mass,
    has_own_parameters,
    other_mode,
)
from tfp_sgmcmc.adaptation.settings import Choices, PreparedKernel, SampleCall
from tfp_sgmcmc.diagnostics.vector_functions import log_prob_of_vectors
from tfp_sgmcmc.diagnostics.weighted_sample import (
    FIRST_SHARE,
    Proposal,
    WeightedSample,
    fit_proposal,
    weigh,
)
from tfp_sgmcmc.sampling.result import Flag
from tfp_sgmcmc.targets.streaming.pooled import PooledLogProb

tfb, tfd = tfp.bijectors, tfp.distributions
NUM_DRAWS, NUM_SEEDS = 2000, 20


def shelf(share: float, width: float, wide: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the log density of N(0, I) and a share that is wide along the first entries."""

    def log_prob(x: np.ndarray) -> np.ndarray:
        narrow = stats.norm.logpdf(x).sum(axis=-1)
        there = stats.norm.logpdf(x[..., :wide], 0, width).sum(axis=-1)
        there += stats.norm.logpdf(x[..., wide:]).sum(axis=-1)
        return np.logaddexp(np.log1p(-share) + narrow, np.log(share) + there)

    return log_prob


def normal_sample(
    log_prob: Callable[[np.ndarray], np.ndarray], dim: int, seed: int
) -> tuple[WeightedSample, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return weigh(log_prob, Proposal(np.zeros(dim), np.eye(dim), 0.2), NUM_DRAWS, rng)[0], rng


def odds(log_prob: Callable[[np.ndarray], np.ndarray], dim: int) -> np.ndarray:
    """Returns the far mass relative to the mass that the proposal reaches, by seeds."""
    found = [far_mass(log_prob, *normal_sample(log_prob, dim, i)) for i in range(NUM_SEEDS)]
    return np.array([x.share / (1 - x.share) for x in found])


def z_score(found: np.ndarray, expected: float) -> float:
    return (found.mean() - expected) / (found.std(ddof=1) / NUM_SEEDS**0.5)


def test_the_mass_on_a_shelf_is_unbiased() -> None:
    """One entry: beside quadrature. False-alarm rate 3e-4 (t of 19 degrees of freedom at 4.4)."""
    log_prob = shelf(0.1, 15.0, 1)
    x = np.linspace(-150.0, 150.0, 300_001)[:, np.newaxis]
    p, q = log_prob(x), Proposal(np.zeros(1), np.eye(1), 0.2).log_prob(x)
    mass, far = np.exp(p) * (x[1] - x[0]), 0.1
    for _ in range(5):  # the draws of q know the other mass
        far = mass[p - q - np.log(1 - far) > np.log(30)].sum()
    expected = far / (1 - far)
    found = odds(log_prob, 1)
    assert abs(z_score(found, expected)) < 4.4
    assert abs(z_score(found, 1.5 * expected)) > 4.4  # the negative control


@pytest.mark.parametrize(
    ("dim", "wide", "width"), [pytest.param(15, 15, 6.0, marks=pytest.mark.thorough), (20, 1, 20.0)]
)
def test_the_mass_on_a_shelf_of_many_entries(dim: int, wide: int, width: float) -> None:
    """Wide along all entries, or one: nearly all of the share is far. False-alarm rate 3e-4."""
    found = odds(shelf(0.2, width, wide), dim)
    least = 2 * stats.norm.sf(8.0 / width) if wide == 1 else 1.0  # of the shelf beyond 8
    assert z_score(found, 0.2 / 0.8) < 4.4
    assert z_score(found, 0.2 / 0.8 * least) > -4.4
    assert found.min() > 0.05  # no seed misses it


@pytest.mark.parametrize("law", [stats.norm(), stats.t(8), stats.gumbel_l()])
def test_proposals_reach_all_of_what_they_fit(law: Any) -> None:
    def log_prob(x: np.ndarray) -> np.ndarray:
        return law.logpdf(x).sum(axis=-1)

    rng = np.random.default_rng(0)
    sample, _ = fit_proposal(
        log_prob, Proposal(np.zeros(3), np.eye(3), FIRST_SHARE), NUM_DRAWS, rng
    )
    found = far_mass(log_prob, sample, rng)
    assert found.share < 0.005 and found.is_small


@pytest.mark.parametrize("dim", [1, 20])
def test_a_small_share_that_is_wide_counts(dim: int) -> None:
    """One in a hundred draws with 15 times the deviation makes the variance 3.2 times as large.

    One entry of 20 that is too narrow is as wrong as one of one.
    """
    log_prob = shelf(0.01, 15.0, 1)
    found = far_mass(log_prob, *normal_sample(log_prob, dim, 0))
    assert found.share < 0.02 and not found.is_small


def test_the_widest_direction_of_few_draws_is_no_reason() -> None:
    """One draw of 4000 with a large weight, among 30 parameters."""
    assert FarMass(0.012, 0.02, 7.0, 0.5, 1.8).is_small
    assert not FarMass(0.012, 0.02, 7.0, 0.5, 18.0).is_small
    assert not FarMass(0.012, 0.3, 7.0, 0.5, 1.8).is_small  # on average over all directions


@pytest.mark.parametrize(
    ("shares", "effective", "num_examples", "looks"),
    [
        ((0.004,), (3.0,), 8, (1, None)),
        ((0.01,), (20.0,), 8, (1, None)),
        ((0.01, 0.01), (3.0, 50.0), 8, (2, None)),  # few draws mostly find too little
        ((0.01, 0.05), (3.0, 50.0), 8, (2, 0.05)),
        ((0.01,), (3.0,), 30_000, (1, None)),  # a second look would take long
        ((0.1, 0.004), (3.0, 3.0), 8, (2, None)),
        ((0.1, 0.1), (3.0, 50.0), 8, (2, 0.1)),  # known well enough
        ((0.1, 0.1, 0.01), (3.0, 3.0, 3.0), 8, (3, None)),
        ((0.1, 0.1, 0.05), (3.0, 3.0, 3.0), 8, (3, 0.05)),
        ((0.1, 0.1), (3.0, 3.0), 100_000, (2, 0.1)),  # more would take long
    ],
)
def test_a_share_that_rests_on_few_draws_is_looked_at_again(
    shares: Any, effective: Any, num_examples: int, looks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = []

    def far_mass(*args: Any) -> FarMass:
        numbers.append(args[3])
        i = len(numbers) - 1
        return FarMass(shares[i], 0.0, 13.0, 0.01, effective[i])

    monkeypatch.setattr(out_of_reach, "far_mass", far_mass)
    target = types.SimpleNamespace(num_examples=num_examples, bijector=None)
    sample, rng = normal_sample(shelf(0.1, 15.0, 1), 2, 0)
    told = contextlib.nullcontext()
    if looks[1] is not None:
        told = pytest.raises(NotNearGaussian, match=f"find about {100 * looks[1]:.1f} %")
    with told:
        check_reach(target, tf.zeros([2]), lambda x: x[:, 0], sample, rng)
    assert numbers == [1000, 5000, 25_000][: looks[0]]


def test_states_that_rounding_merges_are_told() -> None:
    """In float32, 10^6 + exp(u) is 10^6 for u below -4, and exp(u) is zero below -88."""
    u = np.array([[-200.0], [-80.0], [-6.0], [0.0], [3.0]])
    proposal = Proposal(np.zeros(1), np.eye(1), 0.2)
    shifted = tfb.Chain([tfb.Shift(1e6), tfb.Exp()])

    def found(bijector: tfb.Bijector | None) -> np.ndarray:
        target = types.SimpleNamespace(bijector=bijector, _programs={})
        return has_own_parameters(target, tf.zeros([1]), proposal, u)

    assert found(tfb.Exp()).tolist() == [False, True, True, True, True]
    assert found(shifted).tolist() == [False, False, False, True, True]
    assert found(None).all()

    class Checked(tfb.Exp):
        def _inverse(self, y: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([tf.debugging.assert_positive(y)]):
                return tf.math.log(y)

    assert found(Checked()).all()


def eight_schools() -> sgmcmc.MinibatchLogProb:
    """Returns a centred hierarchy in float32."""
    y = np.float32([28, 8, -3, 7, -1, 1, 18, 12])
    width = np.float32([15, 10, 16, 11, 9, 11, 10, 18])

    def log_prior(mu: tf.Tensor, tau: tf.Tensor, theta: tf.Tensor) -> tf.Tensor:
        effects = tfd.Sample(tfd.Normal(mu, tau), 8).log_prob(theta)
        return effects + tfd.Normal(0.0, 5.0).log_prob(mu) + tfd.HalfCauchy(0.0, 5.0).log_prob(tau)

    return sgmcmc.MinibatchLogProb(
        log_prior,
        lambda mu, tau, theta, batch: tfd.Normal(
            tf.gather(theta, batch["row"], axis=-1), batch["width"]
        ).log_prob(batch["y"]),
        {"y": y, "width": width, "row": np.arange(8)},
        bijector=[tfb.Identity(), tfb.Softplus(), tfb.Identity()],
    )


def test_the_neck_of_a_hierarchy_has_no_mass_by_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The eight schools, sampled by z: where tau is 1e-8, mu + tau z is mu for any z.

    The prior of z is lost there, and states with |z| of a hundred would weigh 10^5 times as much as
    the rest. Negative control: without the check of rounding, wide draws find all of the posterior.
    """
    target, start = noncentered(
        eight_schools(), [tf.zeros([]), tf.ones([]), tf.zeros([8])], range(2, 10)
    )
    log_prob_fn = log_prob_of_vectors(target, start, False)
    # posteriordb's reference draws of mu and tau have means of 4.4 and 3.6.
    first = Proposal(np.array([4.4, 3.6, *[0.0] * 8]), np.diag([3.3, 3.2, *[1.0] * 8]), FIRST_SHARE)
    sample, _ = fit_proposal(log_prob_fn, first, NUM_DRAWS, np.random.default_rng(0))
    assert sample.is_reliable
    monkeypatch.setattr(out_of_reach, "_MOST_SPREAD", np.inf)  # tau itself has a heavy tail
    beyond_it = target, start, log_prob_fn, sample
    check_reach(*beyond_it, np.random.default_rng(1))
    monkeypatch.setattr(
        out_of_reach, "has_own_parameters", lambda *args: np.ones(len(args[-1]), bool)
    )
    with pytest.raises(NotNearGaussian, match=r"find about (99\.\d|100\.0) %"):
        check_reach(*beyond_it, np.random.default_rng(1))


@pytest.mark.thorough
def test_the_eight_schools_are_sampled() -> None:
    start = [tf.zeros([]), tf.ones([]), tf.zeros([8])]
    result = sgmcmc.sample(eight_schools(), start, 1000, seed=0, progress_bar=False)
    assert result.is_trusted
    mean = [x.mean() for x in result.states[:2]]  # posteriordb's reference draws have 4.4 and 3.6
    assert abs(mean[0] - 4.4) < 0.5 and abs(mean[1] - 3.6) < 0.5


def between(visits: int, far: float) -> np.ndarray:
    """Returns draws `[1000, 4, 2]` near 0 that go to `far` and come back so many times."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal([1000, 4, 2])
    for i in range(visits):
        draws[10 + 20 * (i // 4) : 20 + 20 * (i // 4), i % 4, 0] += far
    return draws


def flat_target() -> Any:
    return sgmcmc.MinibatchLogProb(
        lambda x: -tf.reduce_sum(x**2, axis=-1) / 2,
        lambda x, batch: 0 * x[..., :1] + 0 * batch,
        np.zeros(2),
    )


@pytest.mark.parametrize("kind", ["mode", "far"])
def test_draws_that_come_to_a_place_settle_it(kind: str) -> None:
    target, center = flat_target(), tf.zeros([2], tf.float64)
    if kind == "mode":
        place = other_mode(target, center, np.array([30.0, 0.0]), 30.0, -1.0)
    else:
        sample, _ = normal_sample(shelf(0.1, 15.0, 1), 2, 0)
        place = beyond(target, center, sample.proposal, FarMass(0.1, 20.0, 13.0, 0.1, 50.0))
    assert place.flag.grade == "wrong" and "These chains" in place.flag
    assert place.settled(between(100, 30.0)).grade == "note"
    assert "25 % of the draws are there" in place.settled(between(100, 30.0))
    for too_few in (between(0, 30.0), between(4, 30.0)):
        assert place.settled(too_few) == place.flag
    if kind == "mode":
        rare = place.settled(between(11, 30.0))
        assert rare.grade == "wrong" and "came there 11 times" in rare
        assert rare.remedy == "Ask for 3 times as many results."


def test_a_place_that_widens_the_draws_is_visited_more_often() -> None:
    """Five visits leave an error of 11 % to standard deviations that it makes 40 % larger."""
    sample, _ = normal_sample(shelf(0.1, 15.0, 1), 2, 0)
    grades = []
    for widest in (0.1, 1.0):
        far = FarMass(0.01, widest / 2, 13.0, widest, 50.0)
        place = beyond(flat_target(), tf.zeros([2]), sample.proposal, far)
        assert place.least_visits == pytest.approx(max(5, (10 * widest / (1 + widest)) ** 2))
        grades.append(place.settled(between(5, 30.0)).grade)
    assert grades == ["note", "wrong"]


def test_draws_need_not_come_back_from_where_nearly_all_is() -> None:
    """A proposal deep in the neck of a funnel holds nearly nothing."""
    sample, _ = normal_sample(shelf(0.1, 15.0, 1), 2, 0)
    most, half = (
        beyond(flat_target(), tf.zeros([2]), sample.proposal, FarMass(share, 20.0, 13.0, 0.1, 50.0))
        for share in (1.0, 0.5)
    )
    there = between(0, 30.0) + 30
    assert most.settled(there).grade == "note" and half.settled(there).grade == "wrong"
    assert most.settled(between(0, 30.0)).grade == "wrong"


def test_another_mode_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """NUTS, which follows where no normal distribution fits, may stay near one mode too."""
    law = tfd.MixtureSameFamily(
        tfd.Categorical(probs=[0.6, 0.4]),
        tfd.StudentT(1.0, np.float32([0.0, 60.0]), np.float32(1.0)),
    )
    reasons = []

    def nuts(*args: Any) -> PreparedKernel:
        reasons.append(next(x for x in args if isinstance(x, NotNearGaussian)))
        z = np.zeros([4, 1], np.float32)
        choices = Choices("NoUTurnSampler", {}, None, "pilot", z[0], None, z, 0, 0, {})
        return PreparedKernel(None, None, None, choices, ())

    monkeypatch.setattr(target_driver, "sample_nonquadratic", nuts)
    start = tf.zeros([1])
    log_prob = lambda x: tf.reduce_sum(law.log_prob(x), axis=-1)  # noqa: E731
    settings = target_driver.TargetSettings(SampleCall(log_prob, start), None)
    prepared = settings.choose(tf.constant([0, 1]), preflight_check=False)
    assert reasons and any("several modes" in flag for flag in prepared.flags)
    near, both = np.random.default_rng(0).standard_cauchy([2, 1000, 4, 1]).astype(np.float32)
    both += 60 * (np.arange(1000) % 10 < 4)[:, np.newaxis, np.newaxis]
    grades = [
        [flag.grade for flag in settings.settled(prepared, False, states)]
        for states in (np.clip(near, -20, 20), np.clip(both, -20, 80))
    ]
    assert grades == [["wrong"], ["note"]]
    assert [f.grade for f in settings.settled(prepared, True, both)] == ["wrong"]
    doubt = Flag("doubt", f"These draws may miss parts, because t{settings.places[0].cause[1:]}")
    doubted = dataclasses.replace(prepared, flags=(*prepared.flags, doubt))
    for states, grade in ((np.clip(near, -20, 20), "wrong"), (np.clip(both, -20, 80), "note")):
        assert [f.grade for f in settings.settled(doubted, False, states)] == [grade]


def test_a_shelf_leads_to_nuts() -> None:
    """The weights of a normal distribution that is fitted to the peak alone look perfect."""
    law = tfd.MixtureSameFamily(
        tfd.Categorical(probs=np.array([0.9, 0.1])), tfd.Normal(np.zeros(2), np.array([1.0, 15.0]))
    )
    target = sgmcmc.MinibatchLogProb(
        tf.zeros_like, lambda x, batch: law.log_prob(x)[..., tf.newaxis] + batch, np.zeros(1)
    )
    start = tf.constant(0.0, tf.float64)
    selector = kernel_selector.KernelSelector(target, start, 4, tf.constant([0, 1]), False)
    with pytest.raises(NotNearGaussian, match="wide draws find about"):
        selector(1000)
    assert [isinstance(place, Place) for place in selector.places] == [True]


@pytest.mark.parametrize("is_real", [False, True])
def test_a_shelf_of_a_pool_counts_if_the_log_posterior_of_all_rows_has_one(is_real: bool) -> None:
    """Far from its center, a pool is not the posterior of all rows."""
    deviations = np.array([1.0, 15.0], np.float32)
    law = tfd.MixtureSameFamily(
        tfd.Categorical(probs=np.array([0.9, 0.1], np.float32)), tfd.Normal(0.0, deviations)
    )
    data = np.zeros(1, np.float32)
    target = sgmcmc.MinibatchLogProb(
        tf.zeros_like, lambda x, batch: law.log_prob(x)[..., tf.newaxis] + batch, data
    )
    exact = law if is_real else tfd.Normal(0.0, 1.0)
    options = 4, tf.constant([0, 1]), False, exact.log_prob
    pool = PooledLogProb(target, data, np.ones(1, np.float32))
    selector = kernel_selector.KernelSelector(pool, tf.constant(0.0), *options)
    if is_real:
        with pytest.raises(NotNearGaussian, match="wide draws find about"):
            selector(1000)
    else:
        assert selector(1000).choices.sampler == "IndependentMetropolis"
    assert len(selector.places) == is_real


@pytest.mark.parametrize(
    ("share", "width", "is_kept"),
    [
        (1e-5, 1.0, False),
        pytest.param(0.1, 1.0, True, marks=pytest.mark.thorough),
        (0.1, 0.1, True),
    ],
)
def test_a_second_mode_counts_by_its_mass(share: float, width: float, is_kept: bool) -> None:
    """A share of 1e-5, 20 deviations away, adds 0.4 % to the variance."""
    law = tfd.MixtureSameFamily(
        tfd.Categorical(probs=np.array([1 - share, share])),
        tfd.Normal(np.array([0.0, 20.0]), np.array([1.0, width])),
    )
    target = sgmcmc.MinibatchLogProb(
        tf.zeros_like, lambda x, batch: law.log_prob(x)[..., tf.newaxis] + batch, np.zeros(1)
    )
    start = tf.constant(0.0, tf.float64)
    selector = kernel_selector.KernelSelector(target, start, 4, tf.constant([0, 1]), False)
    found = kernel_selector.whiten_at_mode(target, start)
    z, offset = np.array([19.9]), np.log(share / width / (1 - share))
    at = kernel_selector.value_and_gradient_of_z(target, found.center, found.factor, False)
    rough = kernel_selector.OtherMode(offset, z)
    kept = selector._with_mass(found, at, rough)
    assert (kept is not None) == is_kept
    if kept is not None:
        np.testing.assert_allclose([abs(kept.z[0]), kept.log_prob], [20.0, offset], rtol=1e-3)


@pytest.mark.parametrize(("share", "center", "num_places"), [(1 - 1e-6, 40.0, 0), (0.9, 0.0, 1)])
def test_a_mode_with_nearly_all_of_the_mass_takes_the_place_of_the_first(
    share: float, center: float, num_places: int
) -> None:
    """The search begins at the other one; with a tenth of the mass both are told."""
    law = tfd.MixtureSameFamily(
        tfd.Categorical(probs=np.array([1 - share, share])),
        tfd.Normal(np.array([0.0, 40.0]), np.array(1.0)),
    )
    target = sgmcmc.MinibatchLogProb(
        tf.zeros_like, lambda x, batch: law.log_prob(x)[..., tf.newaxis] + batch, np.zeros(1)
    )
    start = tf.constant(0.0, tf.float64)
    selector = kernel_selector.KernelSelector(target, start, 4, tf.constant([0, 1]), False)
    found = selector._at_heaviest_mode()
    np.testing.assert_allclose(found.center, center, atol=0.01)
    assert len(selector.places) == num_places


@pytest.mark.parametrize(
    ("at_starts", "in_pilot", "expected"), [(60.0, 0.0, 60.0), (0.0, 30.0, 30.0), (3.0, 3.0, None)]
)
def test_the_end_of_a_search_far_below_the_chains_is_left(
    at_starts: float, in_pilot: float, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log posterior rises to 50 at 30, and to 100 at 60; 5 is not far above the search's 0."""
    target = sgmcmc.MinibatchLogProb(
        tf.zeros_like, lambda x, batch: 5 / 3 * x[..., tf.newaxis] + batch, np.zeros(1)
    )
    begun = types.SimpleNamespace(states=np.array([[at_starts], [at_starts - 1]]))
    pilot = types.SimpleNamespace(draws=np.array([[90.0], [in_pilot - 1], [in_pilot]]))
    choices = Choices("NoUTurnSampler", {}, None, "pilot", None, None, None, 0, 0, {})
    nuts = PreparedKernel(None, None, None, choices, ())
    monkeypatch.setattr(fallback, "typical_starts", lambda *_: begun)
    monkeypatch.setattr(fallback, "run_nuts_pilot", lambda *_: pilot)
    monkeypatch.setattr(fallback, "_hierarchy_around_starts", lambda *_: None)
    monkeypatch.setattr(fallback, "_nuts", lambda *_: nuts)
    starts, reason = [], NotNearGaussian("of a test")
    reason.center = tf.constant(0.0, tf.float64)

    def select(_: Any, start: Any) -> PreparedKernel:
        starts.append(float(start))
        return nuts

    options = reason.center, 1000, 2, tf.constant([0, 1]), False, reason, select
    prepared = fallback.sample_nonquadratic(target, *options)
    assert starts == ([] if expected is None else [expected])
    assert any("a mode was searched" in line for line in prepared.lines) == (expected is not None)


def test_a_climb_that_has_not_come_to_the_first_mode_is_no_other_one() -> None:
    """It is on the flat ridge of a logistic density, far from its mode."""
    law = tfd.Logistic(np.float64(0.0), 1.0)
    target = sgmcmc.MinibatchLogProb(
        tf.zeros_like, lambda x, batch: law.log_prob(x)[..., tf.newaxis] + batch, np.zeros(1)
    )
    start = tf.constant(0.0, tf.float64)
    selector = kernel_selector.KernelSelector(target, start, 4, tf.constant([0, 1]), False)
    found = kernel_selector.whiten_at_mode(target, start)
    at = kernel_selector.value_and_gradient_of_z(target, found.center, found.factor, False)
    rough = kernel_selector.OtherMode(-3.0, np.array([5.0]))
    assert selector._with_mass(found, at, rough) is None
