"""Estimators of V compared with NumPy's covariance, and what they leave out or refuse."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.harness.every_minibatch import flat
from tests.harness.graphs import largest_tensor, trace
from tests.harness.known_covariance import KnownCovariance
from tests.harness.sigma import PLACES, SIZE, draw_parts, explicit, kept, tensors
from tfp_sgmcmc.covariance import (
    Block,
    CovarianceEstimator,
    Diag,
    Full,
    History,
    LowRank,
    RunningMean,
    Solver,
    as_covariance,
)
from tfp_sgmcmc.covariance.estimators import KINDS
from tfp_sgmcmc.covariance.matrices import inverse_or_diagonal
from tfp_sgmcmc.internal import memory

GENERATOR = np.random.default_rng(0)
ROWS, SCALE = 5, 3.0


def draw(*leading: int, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    return draw_parts(GENERATOR, *leading, dtype=dtype)


def covariance(parts: Any, name: str = "full") -> np.ndarray:
    """Returns what a kind keeps of sample covariances, `[chains..., 7, 7]`."""
    scores = flat(parts, parts["b"].ndim).astype(np.float64)
    centred = scores - scores.mean(axis=-2, keepdims=True)
    return np.where(kept(name), np.swapaxes(centred, -1, -2) @ centred / (ROWS - 1), 0)


@pytest.mark.parametrize("chains", [(), pytest.param((4,), marks=pytest.mark.thorough), (2, 3)])
@pytest.mark.parametrize("name", KINDS)
def test_sigma_is_c_times_the_average_of_past_sample_covariances(
    name: str, chains: tuple[int, ...]
) -> None:
    """Compares the part of V that a kind keeps, for an average of two, over five steps."""
    estimator: CovarianceEstimator = KINDS[name](History([2.0, 1.0]))
    like = tensors(draw(*chains))
    own, seen = estimator.init(like, len(chains), ROWS), []
    for step in range(5):
        scores = draw(*chains, ROWS)
        sigma, own = estimator.evaluate(own, tensors(scores), SCALE, like, len(chains))
        seen.append(covariance(scores, name))
        v = seen[0] if step < 2 else (2 * seen[-2] + seen[-3]) / 3
        found = explicit(sigma.multiply, chains)
        np.testing.assert_allclose(found, SCALE * v, rtol=1e-10, atol=1e-12)
        diagonal = np.diagonal(SCALE * v, axis1=-2, axis2=-1)
        found = flat(sigma.diag_part(), len(chains))
        np.testing.assert_allclose(found, diagonal, rtol=1e-10)
    assert own.step == 5 and np.all(own.num_skipped.numpy() == 0)


@pytest.mark.parametrize("include_current", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_the_current_minibatch_is_left_out_unless_asked_for(
    name: str, include_current: bool
) -> None:
    estimator = KINDS[name](History(1), include_current=include_current)
    like = tensors(draw())
    own = estimator.init(like, 0, ROWS)
    batches = [draw(ROWS), draw(ROWS)]
    for scores in batches:
        sigma, own = estimator.evaluate(own, tensors(scores), 1.0, like, 0)
    used, unused = batches[::-1] if include_current else batches
    found = explicit(sigma.multiply, ())
    np.testing.assert_allclose(found, covariance(used, name), rtol=1e-10, atol=1e-12)
    assert not np.allclose(found, covariance(unused, name), rtol=0.1)


@pytest.mark.parametrize(
    ("bad", "jit"),
    [
        (np.nan, False),
        pytest.param(np.inf, False, marks=pytest.mark.slow),
        (1e30, False),
        pytest.param(np.nan, True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", KINDS)
def test_scores_that_are_not_finite_are_left_out_of_their_chain(
    name: str, bad: float, jit: bool
) -> None:
    """Scores whose squares overflow are left out, too. Other chains use the minibatch."""
    estimator = KINDS[name](History(2) if name == "low_rank" else RunningMean())
    like = tensors(draw(3, dtype=np.float32))
    batches = [draw(3, ROWS, dtype=np.float32) for _ in range(3)]
    first, second = (covariance(b, name) for b in batches[:2])
    expected = (first + second) / 2
    expected[1] = first[1]
    batches[1]["w"][1, 2, 0, 1] = bad

    def run(batches: Any) -> Any:
        own = estimator.init(like, 1, ROWS)
        for scores in batches:
            sigma, own = estimator.evaluate(own, scores, 1.0, like, 1)
        ones = tf.nest.map_structure(tf.ones_like, like)
        minus_two = tf.nest.map_structure(lambda x: -2.0 * x, ones)
        return [sigma.multiply(v) for v in (ones, minus_two)], own.num_skipped

    if jit:
        run = tf.function(run, jit_compile=True, autograph=False)
    columns, skipped = run(tensors(batches))
    np.testing.assert_array_equal(skipped, [0, 1, 0])
    expected = expected.sum(axis=-1)
    np.testing.assert_allclose(flat(columns[0], 1), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(flat(columns[1], 1), -2 * expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_known_of_chains_without_any_finite_minibatch(name: str) -> None:
    """Sigma is zero in such chains, and the next finite minibatch counts as the first."""
    estimator = KINDS[name](History(2))
    like = tensors(draw())
    own = estimator.init(like, 0, ROWS)
    bad = tf.nest.map_structure(lambda x: tf.constant(x * np.nan), draw(ROWS))
    sigma, own = estimator.evaluate(own, bad, 1.0, like, 0)
    np.testing.assert_array_equal(explicit(sigma.multiply, ()), 0)
    scores = draw(ROWS)
    sigma, own = estimator.evaluate(own, tensors(scores), 1.0, like, 0)
    found = explicit(sigma.multiply, ())
    np.testing.assert_allclose(found, covariance(scores, name), rtol=1e-10, atol=1e-12)
    assert own.num_skipped == 1


def test_low_rank_is_full_with_the_same_history() -> None:
    low_rank, full = LowRank(History([3.0, 1.0])), Full(History([3.0, 1.0]))
    like = tensors(draw(2))
    first, second = (e.init(like, 1, ROWS) for e in (low_rank, full))
    for _ in range(4):
        scores = tensors(draw(2, ROWS))
        one, first = low_rank.evaluate(first, scores, SCALE, like, 1)
        other, second = full.evaluate(second, scores, SCALE, like, 1)
        found, expected = (explicit(sigma.multiply, (2,)) for sigma in (one, other))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


LARGE, FEW = 3000, 4


def largest(name: str) -> int:
    """Returns the size of the largest tensor in a graph of all operations."""
    estimator = KINDS[name](History(2) if name == "low_rank" else RunningMean())
    state = tf.zeros([LARGE], tf.float32)

    def run(scores: tf.Tensor, seed: tf.Tensor) -> Any:
        own = estimator.init(state, 0, FEW)
        for _ in range(2):
            sigma, own = estimator.evaluate(own, scores, 2.0, state, 0)
            sigma, own = estimator.prepare(own, sigma, 1.0, 1.0)
        value, v = sigma.power_iteration(scores[0])
        return (
            own, sigma.solve(1.0, 0.5, v), sigma.multiply(v), sigma.diag_part(),
            sigma.sample(1.0, -0.1, value, seed), sigma.draw(1.0, 0.5, seed),
        )  # fmt: skip

    return largest_tensor(trace(run, tf.TensorSpec([FEW, LARGE]), tf.TensorSpec([2], tf.int32)))


@pytest.mark.parametrize("name", ["diag", pytest.param("low_rank", marks=pytest.mark.thorough)])
def test_no_matrix_of_all_entries_is_formed(name: str) -> None:
    assert largest(name) <= 3 * FEW * LARGE


def test_full_forms_one() -> None:
    """Negative control of the test above."""
    assert largest("full") >= LARGE**2


def test_lagged_cholesky_factorises_every_k_steps_and_is_exact_in_between() -> None:
    """Inverses belong to the systems of steps 0, 1, 3, 6 and 7; solutions belong to each step."""
    estimator = Block(RunningMean(0.5), solver=Solver("lagged_cholesky", refactor_every=3))
    like = tensors(draw(2))
    own = estimator.init(like, 1, ROWS)
    scale = np.array([0.3, 2.0])
    inverses = [np.empty([2, k, k]) for k in (2, 1, 4)]
    for step in range(8):
        scores, v = draw(2, ROWS), draw(2)
        sigma, own = estimator.evaluate(own, tensors(scores), SCALE, like, 1)
        sigma, own = estimator.prepare(own, sigma, 0.5, tf.constant(scale))
        scaled = scale[:, np.newaxis, np.newaxis] * explicit(sigma.multiply, (2,))
        matrix = 0.5 * np.eye(SIZE) + scaled
        found = sigma.solve(0.5, tf.constant(scale), tensors(v))
        expected = np.linalg.solve(matrix, flat(v, 1)[..., np.newaxis])[..., 0]
        np.testing.assert_allclose(flat(found, 1), expected, rtol=1e-8, atol=1e-9)
        if step % 3 == 0 or step + 1 in (2, 4, 8):
            inverses = [np.linalg.inv(matrix[:, p, p]) for p in PLACES]
        for inverse, right in zip(own.inverses, inverses, strict=True):
            np.testing.assert_allclose(inverse, right, rtol=1e-9, atol=1e-11)


def test_a_singular_matrix_is_preconditioned_by_its_diagonal() -> None:
    """No Cholesky factor of it exists, so its inverse would make every solution NaN."""
    singular = tf.constant([[[1.0, 2.0], [2.0, 1.0]], [[2.0, 0.0], [0.0, 4.0]]], tf.float64)
    expected = [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, 0.25]]]
    np.testing.assert_allclose(inverse_or_diagonal(singular), expected, rtol=1e-12)


def test_names_and_estimators() -> None:
    for name, kind in KINDS.items():
        assert type(as_covariance(name)) is kind
    own = Diag(RunningMean(0.9))
    assert as_covariance(own) is own


def test_the_average_of_the_sampler_is_for_estimators_that_name_none() -> None:
    average = RunningMean(0.5)
    given = Full(include_current=True, solver="cg")
    made = as_covariance(given, average)
    assert made.average is average and made.include_current and made.solver.method == "cg"
    assert given.average is None
    own = Full(RunningMean(0.9))
    assert as_covariance(own, average) is own
    low_rank = as_covariance("low_rank", average).average
    assert isinstance(low_rank, History) and (len(low_rank.weights), low_rank.lag) == (4, 4)


def test_estimators_of_other_classes_stay_what_they_are() -> None:
    known = KnownCovariance(np.eye(2))
    known.average = None
    made = as_covariance(known, RunningMean())
    assert isinstance(made, KnownCovariance) and made.matrix is known.matrix


def test_exact_gradients_have_no_noise() -> None:
    estimator = as_covariance("full", exact=True)
    like = tensors(draw(2))
    sigma, own = estimator.evaluate(estimator.init(like, 1, 0), (), 0.0, like, 1)
    np.testing.assert_array_equal(explicit(sigma.multiply, (2,)), 0)
    assert own.averages == []
    np.testing.assert_array_equal(own.num_skipped, [0, 0])


@pytest.mark.parametrize("value", ["fisher", None, 1.0, Full, {}])
def test_unknown_covariances(value: Any) -> None:
    with pytest.raises(ValueError, match="covariance must be one of full, block, diag, low_rank"):
        as_covariance(value)


@pytest.mark.parametrize(
    ("kind", "solver", "methods"),
    [
        (Full, "woodbury", "one of auto, cg, cholesky, lagged_cholesky for"),
        (Block, "woodbury", "one of auto, cg, cholesky, lagged_cholesky for"),
        (LowRank, "cholesky", "one of auto, cg, woodbury for"),
        (LowRank, Solver("lagged_cholesky"), "one of auto, cg, woodbury for"),
        (Diag, "cg", "one of auto for"),
    ],
)
def test_a_solver_beside_the_wrong_kind(kind: Any, solver: Any, methods: str) -> None:
    name = solver if isinstance(solver, str) else solver.method
    message = f"{methods} covariance='{kind.name}'. Received: '{name}'"
    with pytest.raises(ValueError, match=message):
        kind(solver=solver)


def test_low_rank_keeps_scores_and_no_running_mean() -> None:
    with pytest.raises(ValueError, match=r"History.* for covariance='low_rank'.*RunningMean"):
        LowRank(RunningMean())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("num_scores", [0, 1])
def test_a_covariance_needs_two_scores(name: str, num_scores: int) -> None:
    like = tensors(draw())
    message = f"'{name}' needs at least 2 scores.*Received: {num_scores}"
    with pytest.raises(ValueError, match=message):
        KINDS[name]().init(like, 0, num_scores)


def test_blocks_need_two_parts() -> None:
    with pytest.raises(ValueError, match="'full', 'diag' or 'low_rank' for a state of one part"):
        Block().init(tf.zeros([3]), 0, ROWS)


@pytest.mark.parametrize("chains", [(), (4,)])
@pytest.mark.parametrize(
    "estimator",
    [
        Full(),
        Block(),
        Diag(),
        LowRank(),
        Full(History(3, lag=2)),
        Full(solver="lagged_cholesky"),
        Block(RunningMean(), solver="lagged_cholesky"),
    ],
    ids=lambda e: e.name,
)
def test_the_memory_that_is_told_is_what_is_kept(
    estimator: CovarianceEstimator, chains: tuple[int, ...]
) -> None:
    like = tensors(draw(*chains, dtype=np.float32))
    own = estimator.init(like, len(chains), ROWS)
    kept_arrays = [average.value for average in own.averages] + list(own.inverses)
    expected = sum(x.numpy().nbytes for x in kept_arrays)
    assert estimator.num_bytes(like, len(chains), ROWS) == expected


@pytest.mark.parametrize(
    ("estimator", "needed"),
    [
        (Full(), "43.3 GB.*diag.*low_rank"),
        (Full(solver="lagged_cholesky"), "86.5 GB.*diag.*low_rank"),
        (Full(History(2, lag=1)), "129.8 GB.*diag.*low_rank"),
        (LowRank(History(1000)), "208.0 GB.*diag.*low_rank"),
    ],
)
def test_more_than_the_memory_is_refused_before_it_is_spent(
    estimator: CovarianceEstimator, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 2 * 10**10)
    message = rf"free memory, 20.0 GB.*covariance='{estimator.name}' for D = 104,003 .* {needed}"
    with pytest.raises(MemoryError, match=message):
        estimator.init(tf.zeros([104_003]), 0, 500)
    Diag().init(tf.zeros([104_003]), 0, 500)
    with pytest.raises(MemoryError, match="Fewer chains"):
        Diag(History(100_000)).init(tf.zeros([104_003]), 0, 500)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Full(include_current="False"), TypeError, "include_current must be True or False"),
        (lambda: LowRank(include_current=np.ones(2)), TypeError, "include_current must be True"),
        (lambda: Full(solver=3), ValueError, "solver must be one of .* Received: 3"),
        (lambda: Full(solver=Solver(tolerance="1")), TypeError, "tolerance must be .* in .0, 1."),
        (lambda: Full(solver=Solver(max_iterations=2.0)), TypeError, "max_iterations must be an"),
        (lambda: Full(solver=Solver(refactor_every=True)), TypeError, "refactor_every must be an"),
        (lambda: RunningMean("0.9"), TypeError, "decay must be .* Received: '0.9'"),
        (lambda: RunningMean(np.nan), ValueError, "decay must be .* Received: nan"),
        (lambda: History(True), ValueError, "weights must be an array with at least 1 axes"),
        (lambda: History(["a"]), TypeError, "weights must be an array of numbers"),
        (lambda: History([[1.0], [1.0, 2.0]]), TypeError, "weights must be an array of numbers"),
        (lambda: History({}), TypeError, "weights must be an array of numbers"),
        (lambda: as_covariance("full", "mean"), TypeError, "average must be a RunningMean or"),
        (lambda: as_covariance("full", exact=1), TypeError, "exact must be True or False"),
    ],
)
def test_bad_options(make: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make()
