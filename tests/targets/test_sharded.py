"""ShardedLogProb: exact moments over all minibatches, the exact law, replicas, and bad input."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import run_chains
from tests.harness.every_minibatch import check_moments
from tests.harness.gaussian_mean import PRECISION, GaussianMean, sgld_covariance
from tests.harness.statistics import Rejected, check_covariance
from tests.targets.logistic_regression import score
from tests.targets.shards import SIZES, X, Y, in_shards, sharded
from tfp_sgmcmc.internal.replicas import Replicas
from tfp_sgmcmc.targets.stratified import Strata, StratifiedLogProb

DATA = X[:9, :2].astype(np.float64), Y[:9].astype(np.float64)
THETA = np.array([0.3, -0.2])


def small(sizes: tuple[int, ...], batch_size: int, **options: Any) -> sgmcmc.ShardedLogProb:
    return sharded(
        batch_size,
        load_shard=in_shards(sizes, *DATA),
        num_shards=len(sizes),
        num_examples=sum(sizes),
        **options,
    )


def give_every_minibatch(
    monkeypatch: pytest.MonkeyPatch, target: sgmcmc.ShardedLogProb, sizes: tuple[int, ...]
) -> int:
    """Makes chain k of an estimate draw the k-th of all stratified minibatches."""
    m, first = target.batch_size // len(sizes), np.cumsum([0, *sizes])
    each = [
        [*itertools.product(range(n), repeat=m)]
        if target.replacement
        else [*itertools.permutations(range(n), m)]
        for n in sizes
    ]
    indices = [
        [first[s] + i for s, drawn in enumerate(every) for i in drawn]
        for every in itertools.product(*each)
    ]
    monkeypatch.setattr(StratifiedLogProb, "draw", lambda *_: tf.constant(indices, tf.int32))
    return len(indices)


CASES: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "equal shards": ((3, 3), 4, {}),
    "unequal shards": ((3, 4), 4, {}),
    "a shard that is taken whole": ((2, 4), 4, {}),
    "unequal shards, with replacement": ((3, 4), 4, dict(replacement=True)),
    "groups of two": ((4, 4), 8, dict(num_groups=4)),
}


@pytest.mark.parametrize(
    ("name", "is_control"),
    [
        *((name, False) for name in CASES),
        ("unequal shards", True),
        *(
            pytest.param(name, True, marks=pytest.mark.thorough)
            for name in CASES
            if name != "unequal shards"
        ),
    ],
)
def test_moments_over_all_minibatches(
    name: str, is_control: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean is the gradient. The covariance is c E[V hat], as for a stratified sum."""
    sizes, batch_size, options = CASES[name]
    base = small(sizes, batch_size, **options)
    count = give_every_minibatch(monkeypatch, base, sizes)
    center = tf.constant([0.1, 0.1], tf.float64)
    target = sgmcmc.ControlVariate(base, center) if is_control else base
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(THETA))
    state = tf.constant(np.tile(THETA, [count, 1]))
    estimate = target.estimate(state, tf.constant([0, 0]))
    covariance = check_moments(estimate, value, gradient)
    x, y = (a[: sum(sizes)] for a in DATA)

    def scores(theta: np.ndarray) -> np.ndarray:
        return (y - 1 / (1 + np.exp(-x @ theta)))[:, np.newaxis] * x

    rows = scores(THETA) - (scores(center.numpy()) if is_control else 0)
    m, expected = batch_size // len(sizes), np.zeros([2, 2])
    for shard in np.split(rows, np.cumsum(sizes)[:-1]):
        size, replacement = len(shard), base.replacement
        v = np.cov(shard, rowvar=False, ddof=0 if replacement else 1)
        expected += size * (size - (0 if replacement else m)) / m * v
    np.testing.assert_allclose(covariance, expected, rtol=1e-9, atol=1e-12)
    quick = target.estimate(state, tf.constant([0, 0]), with_scores=False)
    np.testing.assert_allclose(quick.gradient, estimate.gradient, rtol=1e-9)
    np.testing.assert_allclose(quick.log_prob, estimate.log_prob, rtol=1e-9)


WRONG: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "scores about the mean of all shards": lambda patch: patch.setattr(
        StratifiedLogProb, "gathered", lambda self, fn, axis: fn(self)
    ),
    "scores about their shard's mean, not spread": lambda patch: patch.setattr(
        Strata, "spreads", lambda self, q: np.ones(len(self.sizes))
    ),
    "spread as in equal shards": lambda patch: patch.setattr(
        Strata, "spreads", lambda self, q: np.full(len(self.sizes), (3 / 2) ** 0.5)
    ),
    "shards that are not weighted": lambda patch: patch.setattr(
        Strata, "weights", np.ones(2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_scores_and_weights_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WRONG[name](monkeypatch)
    target = small((3, 4), 4, score_fn=score)
    count = give_every_minibatch(monkeypatch, target, (3, 4))
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(THETA))
    estimate = target.estimate(tf.constant(np.tile(THETA, [count, 1])), tf.constant([0, 0]))
    with pytest.raises(AssertionError):
        check_moments(estimate, value, gradient)


def test_differences_between_states_have_the_variance_of_a_stratified_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tfp_sgmcmc.targets.anchored import log_prob_differences

    target = small((3, 4), 4)
    count = give_every_minibatch(monkeypatch, target, (3, 4))
    states = tf.constant(np.stack([np.tile(THETA, [count, 1]), np.zeros([count, 2])]))
    found, variance = log_prob_differences(target, states, tf.constant([0, 0]))
    exact = target(states[1, 0]) - target(states[0, 0])
    np.testing.assert_allclose(np.mean(found), exact, rtol=1e-10)
    np.testing.assert_allclose(np.mean(variance), np.var(found), rtol=1e-9)


def test_the_draw_of_a_shard_depends_on_seed_and_shard_alone() -> None:
    """Two replicas that hold the shards {0, 2} and {1} draw the same rows as one replica."""
    seed, whole = tf.constant([3, 4]), sharded()._parts[0]
    functions, options = (lambda w: 0.0, lambda w, batch: 0.0), dict(replacement=False)
    drawn = whole.rows(whole.draw(seed, None, [2]))["x"].numpy()
    for numbers in ([0, 2], [1]):
        shards = [tf.nest.map_structure(tf.constant, in_shards(SIZES)(s)) for s in numbers]
        part = StratifiedLogProb(functions, shards, numbers, whole._strata, options)
        rows = part.rows(part.draw(seed, None, [2]))["x"].numpy()
        expected = np.concatenate([drawn[:, 4 * s : 4 * s + 4] for s in numbers], axis=1)
        np.testing.assert_array_equal(rows, expected)
        assert part.noise_scale == whole.noise_scale == 90 * 78 / 12
    assert len({*drawn[0, :, 0]} - {*drawn[1, :, 0]}) > 0  # chains draw for themselves


MODEL = GaussianMean(num_examples=12)
ORDER = np.argsort(MODEL.data[:, 0])  # shards that differ: the noise within them is smaller
STEP, CHAINS = 0.08, 10_000


def stratified_noise(per_shard: int) -> np.ndarray:
    scores = np.split(MODEL.data[ORDER] @ PRECISION, [4])
    return sum(
        len(s) * (len(s) - per_shard) / per_shard * np.cov(s, rowvar=False, ddof=1) for s in scores
    )


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    """Returns samples of SGLD with shards of 4 and 8 examples, two of each in a minibatch."""
    base, data = MODEL.target(4), MODEL.data[ORDER].astype(np.float32)
    target = sgmcmc.ShardedLogProb(
        base._log_prior_fn, base._log_likelihood_fn, lambda s: np.split(data, [4])[s], 2, 12, 4
    )
    return run_chains(sgmcmc.SGLD(target, STEP), tf.ones([CHAINS, 3]), 50, 60, seed=4)


@pytest.mark.thorough
def test_exact_law(samples: np.ndarray) -> None:
    """SGLD has its exact law with the noise within shards.

    False-alarm rate: 1e-6. Power: 3% of a variance is found with probability 0.999.
    """
    law = sgld_covariance(MODEL.hessian, stratified_noise(2), STEP)
    check_covariance(samples, MODEL.mean, law, relative_error=0.03)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "noise",
    [MODEL.noise(4, replacement=False), stratified_noise(2) / 2, stratified_noise(1)],
    ids=["of all examples", "half of it", "of one row a shard"],
)
def test_wrong_laws_are_rejected(samples: np.ndarray, noise: np.ndarray) -> None:
    with pytest.raises(Rejected):
        law = sgld_covariance(MODEL.hessian, noise, STEP)
        check_covariance(samples, MODEL.mean, law, relative_error=0.03)


def test_a_single_row_of_each_shard_gives_no_covariance() -> None:
    target = sharded(3)
    kernel = sgmcmc.SGLD(target, 0.01)
    state, _ = kernel.one_step(tf.zeros([3]), kernel.bootstrap_results(tf.zeros([3])), seed=0)
    assert np.isfinite(state).all()
    with pytest.raises(ValueError, match="needs at least 2 scores .* Received: 1"):
        sgmcmc.NOGIN(target, 0.1).bootstrap_results(tf.zeros([3]))


def empty(s: int) -> Any:
    return {"x": X[:0], "y": Y[:0]} if s == 1 else in_shards(SIZES)(s)


def another_form(s: int) -> Any:
    return {"x": X[:30, :2], "y": Y[:30]} if s == 1 else in_shards(SIZES)(s)


def with_nan(s: int) -> Any:
    return tf.nest.map_structure(lambda a: a * np.float32(np.nan if s == 2 else 1), X)


BAD_INPUT: dict[str, dict[str, Any]] = {
    "batch_size must be a multiple of num_shards = 3. Received: 10": dict(batch_size=10),
    "batch_size must be in 3 .. 90. Received: 2": dict(batch_size=2),
    "num_groups must be a multiple of num_shards = 3. Received: 8": dict(num_groups=8),
    "num_groups must be a divisor of batch_size = 12. Received: 9": dict(num_groups=9),
    "num_groups must be at least 6. Received: 3": dict(num_groups=3),
    "num_examples must be 90, the number of rows of all shards. Received: 91": dict(
        num_examples=91
    ),
    "it takes equally many rows of each shard, and shard 0 has 20": dict(batch_size=63),
    r"load_shard\(1\) must not be empty": dict(load_shard=empty),
    r"float32 \[3\].* in shard 0, .*float32 \[2\].* in shard 1": dict(load_shard=another_form),
    r"load_shard\(2\) must be finite": dict(load_shard=with_nan),
}


@pytest.mark.parametrize("message", BAD_INPUT)
def test_bad_input(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sharded(**{"batch_size": 12, **BAD_INPUT[message]})


def test_equal_shards_are_noticed() -> None:
    with pytest.warns(UserWarning, match="other rows for each shard. .* for shards 0 and 1"):
        sharded(load_shard=lambda s: in_shards([30])(0))


def test_what_needs_all_examples_alike_is_refused() -> None:
    target = sharded()
    for make in (
        lambda: sgmcmc.GrowingBatch(target),
        lambda: sgmcmc.sample(target, tf.zeros([3]), 10),
    ):
        with pytest.raises(ValueError, match="needs a MinibatchLogProb, with all examples"):
            make()


def test_a_strategy_of_workers_must_be_told_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with (
        tf.distribute.MultiWorkerMirroredStrategy().scope(),
        pytest.raises(ValueError, match="must have the addresses of its workers, .* TF_CONFIG"),
    ):
        sharded()


class TwoWorkers(Replicas):
    """Worker 0 of two, which receives `other` from the other one."""

    def __init__(self, other: Any):
        self._other, self.count, self.held, self.num_workers = other, 2, [0], 2

    def all(self, value: Any) -> list[Any]:
        return [value, self._other]


def test_workers_that_differ_are_named() -> None:
    with pytest.raises(ValueError, match="Workers 0 and 1 .* Received: seed: 1 and 2; n: 3 and No"):
        TwoWorkers({"seed": 2, "same": 0}).check_same({"seed": 1, "same": 0, "n": 3})
    with pytest.raises(ValueError, match="Worker 1 could not load its shards. It raised OSError: "):
        TwoWorkers("OSError: no such file").together("load its shards", lambda: None)
    assert TwoWorkers(None).together("load its shards", lambda: 3) == 3


def test_the_variance_of_differences_needs_two_rows_of_each_shard() -> None:
    for target, is_told in ((sharded(3), True), (sharded(6), False)):
        told = pytest.raises(ValueError, match="two for each shard.* Received: 3")
        with told if is_told else contextlib.nullcontext():
            sgmcmc.ReplicaExchangeSGLD(target, 0.01, [1.0, 2.0])


def test_the_prior_may_be_a_distribution() -> None:
    prior = tfp.distributions.Sample(tfp.distributions.HalfNormal(tf.constant(2.0)), 3)
    one = sharded()
    target = sgmcmc.ShardedLogProb.from_joint(
        prior, one._log_likelihood_fn, in_shards(SIZES), len(SIZES), sum(SIZES), batch_size=12
    )
    other = sgmcmc.MinibatchLogProb.from_joint(
        prior, one._log_likelihood_fn, {"x": X[: sum(SIZES)], "y": Y[: sum(SIZES)]}
    )
    at = other.initial_state
    np.testing.assert_allclose(target.initial_state, at, rtol=1e-6)
    np.testing.assert_allclose(target(at), other(at), rtol=1e-5)
