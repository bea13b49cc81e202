"""One step of SGFS equals the formula of its docstring, for the draws of that step.

theta <- theta + 2 [gamma N V + 4 B / epsilon]^-1 (g + eta),  eta ~ N(0, 4 T B / epsilon),
gamma = 1 + c / (N T)
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness import by_hand
from tests.harness.by_hand import FULL, HAND, KEPT, MODEL, SEED, START, flat, take, two_parts
from tfp_sgmcmc import random
from tfp_sgmcmc.preconditioners import FullMatrix

TOTAL, BATCH = 12, 5
LEAST = 1e-3
C = 12 * 7 / 5  # without replacement
NOISE_SEED = random.split(SEED, 2)[1]


def make_target(dtype: Any = tf.float64, **options: Any) -> sgmcmc.MinibatchLogProb:
    return MODEL.target(BATCH, dtype, **options)


def covariance(found: by_hand.Step) -> np.ndarray:
    """Returns V of the minibatch of a step, `[chains, 3, 3]`."""
    return HAND.covariance(found.theta, found.draws.batch)


def step(
    found: by_hand.Step, eta: np.ndarray, v: np.ndarray, injected: Any, gamma: float = TOTAL / BATCH
) -> np.ndarray:
    """Returns the docstring's formula, where `injected` is 4 B / epsilon."""
    g = HAND.gradient(found.theta, found.draws.batch)
    matrix = gamma * TOTAL * v + injected
    return found.theta + 2 * np.linalg.solve(matrix, (g + eta)[..., np.newaxis])[..., 0]


def fisher_noise(
    v: np.ndarray, gamma: float = TOTAL / BATCH, factor: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the raised diagonal, and C = 4 B / epsilon with it, where epsilon = 0.5.

    B is `factor` N V.
    """
    added = LEAST * (gamma + 8 * factor) * TOTAL * np.einsum("cii->ci", v)
    return added, 8 * factor * TOTAL * v + diagonal(added)


def diagonal(x: np.ndarray) -> np.ndarray:
    return x[..., np.newaxis] * np.eye(3)


def times(matrix: np.ndarray, x: Any) -> np.ndarray:
    return np.einsum("cij,cj->ci", matrix, x)


@pytest.mark.parametrize(
    ("kept", "replacement"),
    [
        *(
            pytest.param(kept, False, marks=[pytest.mark.thorough] * (kept != "diag"))
            for kept in KEPT
        ),
        *(pytest.param(kept, True, marks=[pytest.mark.slow] * (kept != "full")) for kept in KEPT),
    ],
)
def test_v_is_that_of_past_minibatches(kept: str, replacement: bool) -> None:
    """The first step uses its own minibatch, as there is no past. The third averages two.

    With replacement gamma is (N + n) / n as in the paper, without replacement N / n.
    """
    target = make_target(parts=True, replacement=replacement)
    kernel = sgmcmc.SGFS(
        target, 0.5, B=2.0, covariance=by_hand.as_estimator(kept), num_estimation_steps=0
    )
    gamma = (TOTAL + BATCH) / BATCH if replacement else TOTAL / BATCH
    steps = take(kernel, target, two_parts(START), 3)
    v = [covariance(s) * KEPT[kept] for s in steps]
    for past, s in zip([v[0], v[0], (v[0] + v[1]) / 2], steps, strict=True):
        expected = step(s, 4 * s.draws.z, past, 16 * np.eye(3), gamma)
        np.testing.assert_allclose(s.moved, expected, rtol=1e-8)
        g = HAND.gradient(s.theta, s.draws.batch)
        np.testing.assert_allclose(s.results.gradient_norm, np.linalg.norm(g, axis=-1))
        assert s.results.step_size.numpy() == 0.5
        np.testing.assert_array_equal(s.results.num_frozen, [0, 0])
    assert steps[-1].results.step.numpy() == 3 and steps[-1].results.step.dtype == tf.int64


def test_the_papers_average_includes_the_current_minibatch() -> None:
    target = make_target()
    estimator = sgmcmc.covariance.Full(include_current=True)
    steps = take(
        sgmcmc.SGFS(target, 0.5, covariance=estimator, num_estimation_steps=0),
        target,
        tf.constant(START),
        3,
    )
    v = np.mean([covariance(s) for s in steps], axis=0)
    s = steps[-1]
    expected = step(s, np.sqrt(8) * s.draws.z, v, 8 * np.eye(3))
    np.testing.assert_allclose(s.moved, expected, rtol=1e-8)


@pytest.mark.parametrize("kept", [pytest.param("full", marks=pytest.mark.thorough), "diag"])
def test_diagonal_b(kept: str) -> None:
    """B is one array for each part, or one that broadcasts with all."""
    target = make_target(parts=True)
    for B, entries in (([3.0, np.array([1.0, 2.0])], [3.0, 1.0, 2.0]), (np.ones([1]), np.ones(3))):
        kernel = sgmcmc.SGFS(target, alpha=2.0, B=B, covariance=kept, num_estimation_steps=0)
        (s,) = take(kernel, target, two_parts(START))
        injected = 4 * np.array(entries)
        eta = np.sqrt(injected) * s.draws.z
        expected = step(s, eta, covariance(s) * KEPT[kept], np.diag(injected))
        np.testing.assert_allclose(s.moved, expected, rtol=1e-8)
        np.testing.assert_allclose(s.results.step_size, 1.0)


def test_full_b() -> None:
    target = make_target(parts=True)
    kernel = sgmcmc.SGFS(target, 0.5, FullMatrix(FULL), num_estimation_steps=0)
    (s,) = take(kernel, target, two_parts(START))
    # The first of two draws. The second is for what is missing on B's diagonal.
    z = flat(random.normal_like(two_parts(START), random.split(NOISE_SEED, 2)[0]))
    eta = np.sqrt(8) * z @ np.linalg.cholesky(FULL).T
    expected = step(s, eta, covariance(s), 8 * FULL)
    np.testing.assert_allclose(s.moved, expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("B", "factor", "kept"),
    [
        *(("fisher", 1.0, kept) for kept in KEPT),
        ("scaled_fisher", TOTAL / BATCH, "full"),
        ("scaled_fisher", TOTAL / BATCH, "low_rank"),
    ],
)
def test_b_proportional_to_the_fisher_matrix(B: str, factor: float, kept: str) -> None:
    """With B = N V or gamma N V, a root of V makes the noise, by any estimator."""
    target = make_target(parts=True)
    kernel = sgmcmc.SGFS(
        target, 0.5, B, covariance=by_hand.as_estimator(kept), num_estimation_steps=0
    )
    (s,) = take(kernel, target, two_parts(START))
    v = covariance(s) * KEPT[kept]
    added, injected = fisher_noise(v, factor=factor)
    if kept == "low_rank":
        scores = HAND.scores(START, s.draws.batch)
        centred = (scores - scores.mean(axis=1, keepdims=True)) / 2  # sqrt(n - 1)
        # There are four slots of five rows. The only minibatch so far is in the first.
        seeds = random.split(NOISE_SEED, 2)
        z = random.normal([2, 20], tf.float64, seeds[0]).numpy()[:, :5]
        eta = np.sqrt(8 * factor * TOTAL) * np.einsum("cni,cn->ci", centred, z)
        eta += np.sqrt(added) * random.normal([2, 3], tf.float64, seeds[1])
    else:
        shapes = [[2, 3]] if kept == "full" else [[2, 1], [2, 2]]
        seeds = random.split(NOISE_SEED, 2) if len(shapes) > 1 else [NOISE_SEED]
        z = [random.normal(n, tf.float64, seed) for n, seed in zip(shapes, seeds, strict=True)]
        eta = times(np.linalg.cholesky(injected), np.concatenate(z, axis=-1))
    expected = step(s, eta, v, injected)
    np.testing.assert_allclose(s.moved, expected, rtol=1e-7)
    np.testing.assert_array_equal(s.results.num_raised, [3, 3])


@pytest.mark.parametrize(
    ("kept", "B"),
    [("full", 1.0), ("diag", 1.0), ("full", FullMatrix(FULL))],
    ids=["full", "diag", "full B"],
)
def test_without_injected_noise(kept: str, B: Any) -> None:
    """With alpha = 0, a step is the preconditioned g, except for 1e-3."""
    target = make_target()
    kernel = sgmcmc.SGFS(target, alpha=0.0, B=B, covariance=kept, num_estimation_steps=0)
    (s,) = take(kernel, target, tf.constant(START))
    v = covariance(s) * KEPT[kept]
    added = LEAST * TOTAL**2 / BATCH * np.einsum("cii->ci", v)
    z = s.draws.z
    if B != 1.0:  # the second of two draws, as the first belongs to B
        z = random.normal([2, 3], tf.float64, random.split(NOISE_SEED, 2)[1])
    expected = step(s, np.sqrt(added) * z, v, diagonal(added))
    np.testing.assert_allclose(s.moved, expected, rtol=1e-7)
    assert np.isinf(s.results.step_size)
    np.testing.assert_array_equal(s.results.num_raised, [3, 3])


def test_entries_are_raised_one_by_one() -> None:
    target = make_target()
    kernel = sgmcmc.SGFS(target, alpha=1.0, B=[1e-6, 1.0, 1e-6], num_estimation_steps=0)
    (s,) = take(kernel, target, tf.constant(START))
    v = covariance(s)
    injected = LEAST * TOTAL**2 / BATCH * np.einsum("cii->ci", v)
    injected[:, 1] = 1.0
    expected = step(s, np.sqrt(injected) * s.draws.z, v, diagonal(injected))
    np.testing.assert_allclose(s.moved, expected, rtol=1e-7)
    np.testing.assert_array_equal(s.results.num_raised, [2, 2])


@pytest.mark.parametrize("B", [1.0, "fisher"])
def test_temperature(B: Any) -> None:
    """The injected noise has T times the variance, and gamma falls towards 1."""
    target = make_target()
    kernel = sgmcmc.SGFS(target, 0.5, B, temperature=np.array([2.0, 0.5]), num_estimation_steps=0)
    (s,) = take(kernel, target, tf.constant(START))
    v = covariance(s)
    for chain, temperature in enumerate([2.0, 0.5]):
        gamma = 1 + C / (TOTAL * temperature)
        injected = np.stack([8 * np.eye(3)] * 2) if B == 1.0 else fisher_noise(v, gamma)[1]
        eta = np.sqrt(temperature) * times(np.linalg.cholesky(injected), s.draws.z)
        expected = step(s, eta, v, injected, gamma)
        np.testing.assert_allclose(s.moved[chain], expected[chain], rtol=1e-7)


def test_step_sizes_of_chains_and_schedules() -> None:
    target = make_target()
    sizes = np.array([0.5, 2.0])
    (s,) = take(sgmcmc.SGFS(target, sizes, num_estimation_steps=0), target, tf.constant(START))
    v, rate = covariance(s), (4 / sizes)[:, np.newaxis]
    injected = rate[..., np.newaxis] * np.eye(3)
    expected = step(s, np.sqrt(rate) * s.draws.z, v, injected)
    np.testing.assert_allclose(s.moved, expected, rtol=1e-8)
    np.testing.assert_array_equal(s.results.step_size, sizes)

    kernel = sgmcmc.SGFS(
        target, alpha=lambda t: 3.0 - tf.cast(t, tf.float64), num_estimation_steps=0
    )
    steps = take(kernel, target, tf.constant(START), 2)
    v = covariance(steps[0])
    for alpha, s in zip([3.0, 2.0], steps, strict=True):
        expected = step(s, alpha * s.draws.z, v, alpha**2 * np.eye(3))
        np.testing.assert_allclose(s.moved, expected, rtol=1e-8)
        np.testing.assert_allclose(s.results.step_size, 4 / alpha**2)


@pytest.mark.parametrize(
    ("B", "alpha"),
    [
        (1.0, 0.0),
        pytest.param("fisher", 2.0, marks=pytest.mark.thorough),
        pytest.param(FullMatrix(FULL), 2.0, marks=pytest.mark.thorough),
        pytest.param(1.0, 2.0, marks=pytest.mark.slow),
        pytest.param("fisher", 0.0, marks=pytest.mark.slow),
        pytest.param(FullMatrix(FULL), 0.0, marks=pytest.mark.slow),
    ],
    ids=["1-0", "fisher-2", "full-2", "1-2", "fisher-0", "full-0"],
)
def test_solvers_agree(B: Any, alpha: float) -> None:
    target = make_target()
    moved = []
    for solver in ("cholesky", "cg", "lagged_cholesky"):
        estimator = sgmcmc.covariance.Full(solver=solver)
        kernel = sgmcmc.SGFS(target, alpha=alpha, B=B, covariance=estimator, num_estimation_steps=0)
        moved.append(take(kernel, target, tf.constant(START), 3)[-1].moved)
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-6)
    np.testing.assert_allclose(moved[2], moved[0], rtol=1e-6)


def test_steps_of_estimation_count_for_the_rank_of_the_first_matrix() -> None:
    """Three scores have a rank of two, those of two steps of four."""
    target, state = MODEL.target(3, tf.float64), tf.constant(START)
    averages = sgmcmc.covariance
    last = averages.Full(averages.History(1))
    for options in ({"num_estimation_steps": 0}, {"num_estimation_steps": 2, "covariance": last}):
        kernel = sgmcmc.SGFS(target, alpha=0.0, **options)
        with pytest.raises(ValueError, match="must span 3 dimensions.*Received: 3 scores.*most 2"):
            kernel.bootstrap_results(state)
    kernel = sgmcmc.SGFS(target, alpha=0.0, num_estimation_steps=2)
    moved = take(kernel, target, state, 3)[-1].moved
    assert np.isfinite(moved).all()


@pytest.mark.thorough
def test_one_chain_without_chain_dimensions_and_a_dict() -> None:
    """`tf.vectorized_map` computes the scores."""
    target = make_target(parts=True, score_fn=None, chunk_size=BATCH)
    kernel = sgmcmc.SGFS(target, 0.5, B={"a": 1.0, "b": 2.0}, num_estimation_steps=0)
    state = two_parts(START[0], {"b": 0, "a": 0})
    got, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    (s,) = take(kernel, target, state)
    injected = 8 * np.array([1.0, 2.0, 2.0])
    expected = step(s, np.sqrt(injected) * s.draws.z, covariance(s), np.diag(injected))
    assert list(got) == ["b", "a"]
    np.testing.assert_allclose(flat(got), expected, rtol=1e-8)
    assert results.target_log_prob.shape == results.num_frozen.shape == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("B", "jit"),
    [
        (1.0, True),
        *(pytest.param("fisher", jit, marks=pytest.mark.slow) for jit in (False, True)),
    ],
)
def test_compiled_steps(B: Any, jit: bool) -> None:
    kernel = sgmcmc.SGFS(make_target(), 0.5, B, num_estimation_steps=0)
    s = by_hand.compiled(kernel, kernel.target_log_prob_fn, jit)(tf.constant(START))
    v = covariance(s)
    injected = np.stack([8 * np.eye(3)] * 2) if B == 1.0 else fisher_noise(v)[1]
    eta = times(np.linalg.cholesky(injected), s.draws.z)
    np.testing.assert_allclose(s.moved, step(s, eta, v, injected), rtol=1e-7)


def test_estimation_steps_average_and_do_not_move() -> None:
    """Three steps stand still. The fourth is that of a chain with the same average."""
    data = np.random.default_rng(3).standard_normal([40, 2])
    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, x: -0.5 * tf.reduce_sum((x - theta[..., tf.newaxis, :]) ** 2, axis=-1),
        data,
        10,
        score_fn=lambda theta, x: x - theta[..., tf.newaxis, :],
    )
    kernel = sgmcmc.SGFS(target, alpha=1.0, num_estimation_steps=3)
    moving = sgmcmc.SGFS(target, alpha=1.0, num_estimation_steps=0)
    start = tf.constant([0.3, -0.2], tf.float64)
    state, results = start, kernel.bootstrap_results(start)
    for i in range(3):
        state, results = kernel.one_step(state, results, seed=i)
        np.testing.assert_array_equal(state, start)
    expected, _ = moving.one_step(start, results, seed=3)
    state, _ = kernel.one_step(state, results, seed=3)
    np.testing.assert_array_equal(state, expected)
    assert np.abs(state - start).max() > 1e-3


@pytest.mark.parametrize("include_current", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_v_of_the_first_steps_is_kept(include_current: bool) -> None:
    """From step 2 on V is that of two minibatches, and the target computes no scores."""
    target, scored = make_target(), []
    estimate = target.estimate
    target.estimate = lambda *args, with_scores=True: (
        scored.append(with_scores) or estimate(*args, with_scores=with_scores)
    )
    kernel = sgmcmc.SGFS(
        target,
        0.5,
        covariance=sgmcmc.covariance.Full(include_current=include_current),
        num_estimation_steps=0,
        num_fisher_steps=2,
    )
    steps = take(kernel, target, tf.constant(START), 5)
    v = np.mean([covariance(s) for s in steps[:2]], axis=0)
    for s in steps[2:]:
        expected = step(s, np.sqrt(8) * s.draws.z, v, 8 * np.eye(3))
        np.testing.assert_allclose(s.moved, expected, rtol=1e-8)
    assert scored == [True, True, False, False, False]
    all_steps = kernel.copy(num_fisher_steps=None)
    other = take(all_steps, target, tf.constant(START), 5)
    assert np.abs(other[-1].moved - steps[-1].moved).max() > 1e-3
    counts = [r[-1].results.covariance_state.averages[0].count.numpy() for r in (steps, other)]
    np.testing.assert_array_equal(counts, [[2, 2], [5, 5]])


@pytest.mark.thorough
def test_a_history_of_the_first_steps_is_kept() -> None:
    history = sgmcmc.covariance.History(4)
    target = make_target()
    for estimator in (sgmcmc.covariance.LowRank(history), sgmcmc.covariance.Full(history)):
        kernel = sgmcmc.SGFS(
            target, 0.5, covariance=estimator, num_estimation_steps=0, num_fisher_steps=2
        )
        steps = take(kernel, target, tf.constant(START), 8)
        v = np.mean([covariance(s) for s in steps[:2]], axis=0)
        s = steps[-1]
        expected = step(s, np.sqrt(8) * s.draws.z, v, 8 * np.eye(3))
        np.testing.assert_allclose(s.moved, expected, rtol=1e-7)


@pytest.mark.slow
def test_a_run_goes_on_with_the_v_that_it_kept(tmp_path: Path) -> None:
    """The run is cut before V is kept and again after that."""
    pytest.importorskip("zarr")
    kernel = sgmcmc.SGFS(make_target(tf.float32), 0.5, num_estimation_steps=0, num_fisher_steps=5)
    options = dict(seed=3, progress_bar=False, jit_compile=False, preflight_check=False)
    start = tf.zeros([3])
    whole = sgmcmc.sample_chain(kernel, start, 12, **options)
    for count in (3, 8, 12):
        cut = sgmcmc.sample_chain(kernel, start, count, directory=tmp_path, **options)
    np.testing.assert_array_equal(np.asarray(cut.states), np.asarray(whole.states))
    assert whole.final_kernel_results.covariance_state.averages[0].count.numpy() == 5
