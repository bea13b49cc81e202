"""One step of modified SGLD equals the formula of its docstring, for the draws of that step.

theta <- theta + epsilon / 2 g + sqrt(epsilon T) (I - epsilon / (8 T) Sigma) z
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import KEPT, ByHand, flat, two_parts
from tests.harness.gaussian_mean import PRIOR_PRECISION, GaussianMean
from tfp_sgmcmc import random
from tfp_sgmcmc.covariance import History, LowRank

MODEL = GaussianMean(num_examples=12)
scores = ByHand(MODEL).scores
BATCH = 5
START = np.array([[0.3, -0.5, 1.0], [2.0, 0.1, -0.7]])  # two chains
SEED = tf.constant([5, 6])
SCALE = {True: 12**2 / 5, False: 12 * 7 / 5}  # c, with and without replacement


def make_target(dtype: Any = tf.float64, **options: Any) -> sgmcmc.MinibatchLogProb:
    return MODEL.target(BATCH, dtype, **options)


def gradient(theta: np.ndarray, s: np.ndarray) -> np.ndarray:
    return -theta @ PRIOR_PRECISION + 12 / BATCH * s.sum(axis=-2)


def covariance(s: np.ndarray, kept: str) -> np.ndarray:
    """Returns V of each chain, `[chains, 3, 3]`, or the part that an estimator keeps."""
    return np.stack([np.cov(rows, rowvar=False) for rows in s]) * KEPT[kept]


def step(
    theta: np.ndarray,
    g: np.ndarray,
    z: np.ndarray,
    sigma: np.ndarray,
    epsilon: Any,
    temperature: Any = 1.0,
) -> np.ndarray:
    """Returns the docstring's formula, where `epsilon` is a number or one for each entry."""
    root = np.sqrt(np.broadcast_to(epsilon, [3]))
    inner = root[:, np.newaxis] * sigma * root / (8 * temperature)
    injected = np.einsum("cij,cj->ci", np.eye(3) - inner, z)
    return theta + root**2 / 2 * g + np.sqrt(temperature) * root * injected


def run(kernel: Any, target: Any, state: Any, num_steps: int) -> list[Any]:
    """Yields (theta, its scores, z, the next theta, results) of each step."""
    results, steps = kernel.bootstrap_results(state), []
    for t in range(num_steps):
        batch_seed, noise_seed = random.split(SEED + t, 2)
        theta = flat(state)
        indices = target.draw(batch_seed, tf.range(BATCH), [len(theta)]).numpy()
        z = flat(random.normal_like(state, noise_seed))
        state, results = kernel.one_step(state, results, SEED + t)
        steps.append((theta, scores(theta, indices), z, flat(state), results))
    return steps


@pytest.mark.parametrize(
    ("kept", "replacement"),
    [
        *((kept, False) for kept in ("full", "block", "diag", "low_rank")),
        ("full", True),
        *(
            pytest.param(kept, True, marks=pytest.mark.slow)
            for kept in ("block", "diag", "low_rank")
        ),
    ],
)
def test_sigma_is_that_of_past_minibatches(kept: str, replacement: bool) -> None:
    """The first step uses its own minibatch, as there is no past. The third averages two."""
    target = make_target(parts=True, replacement=replacement)
    used = LowRank(History(4)) if kept == "low_rank" else kept
    kernel = sgmcmc.ModifiedSGLD(target, 0.02, used, temperature=0.7)
    steps = run(kernel, target, two_parts(START), 3)
    v = [covariance(s, kept) for _, s, *_ in steps]
    # decay 0.99: the second minibatch weighs 1/2, as in a plain mean.
    for past, (theta, s, z, moved, results) in zip(
        [v[0], v[0], (v[0] + v[1]) / 2], steps, strict=True
    ):
        g = gradient(theta, s)
        expected = step(theta, g, z, SCALE[replacement] * past, 0.02, 0.7)
        np.testing.assert_allclose(moved, expected, rtol=1e-10)
        np.testing.assert_allclose(results.gradient_norm, np.linalg.norm(g, axis=-1))
        assert results.step_size.numpy() == 0.02
    assert results.step.numpy() == 3 and results.step.dtype == tf.int64


def test_the_current_minibatch_can_be_included() -> None:
    target = make_target()
    estimator = sgmcmc.covariance.Full(include_current=True)
    steps = run(sgmcmc.ModifiedSGLD(target, 0.02, estimator), target, tf.constant(START), 2)
    v = [covariance(s, "full") for _, s, *_ in steps]
    theta, s, z, moved, _ = steps[1]
    expected = step(theta, gradient(theta, s), z, SCALE[False] * (v[0] + v[1]) / 2, 0.02)
    np.testing.assert_allclose(moved, expected, rtol=1e-10)


def test_steps_of_their_own_for_the_parts() -> None:
    target = make_target(parts=True)
    kernel = sgmcmc.ModifiedSGLD(target, [0.03, lambda t: 0.01], temperature=0.7)
    theta, s, z, moved, results = run(kernel, target, two_parts(START), 1)[0]
    sigma = SCALE[False] * covariance(s, "full")
    epsilon = np.array([0.03, 0.01, 0.01])
    expected = step(theta, gradient(theta, s), z, sigma, epsilon, 0.7)
    np.testing.assert_allclose(moved, expected, rtol=1e-8)
    np.testing.assert_allclose(results.step_size, [0.03, 0.01])


def test_schedules_of_step_size_and_temperature() -> None:
    target = make_target()
    kernel = sgmcmc.ModifiedSGLD(
        target,
        lambda t: tf.constant(0.02, tf.float64) / tf.cast(t + 1, tf.float64),
        "diag",
        temperature=lambda t: tf.cast(t + 1, tf.float64),
    )
    steps = run(kernel, target, tf.constant(START), 2)
    v = covariance(steps[0][1], "diag")
    for t, (theta, s, z, moved, results) in enumerate(steps):
        epsilon = 0.02 / (t + 1)
        expected = step(theta, gradient(theta, s), z, SCALE[False] * v, epsilon, t + 1.0)
        np.testing.assert_allclose(moved, expected, rtol=1e-10)
        np.testing.assert_allclose(results.step_size, epsilon)


def test_one_chain_without_chain_dimensions_and_a_dict() -> None:
    quadratic = MODEL.target(BATCH, tf.float64, parts=True)
    target = sgmcmc.MinibatchLogProb(
        lambda a, b: quadratic.log_prior([a, b]),
        lambda a, b, batch: quadratic.log_likelihood([a, b], batch, batch.shape[-2]),
        MODEL.data,
        BATCH,
        chunk_size=BATCH,
    )
    kernel = sgmcmc.ModifiedSGLD(target, 0.02)
    state = {"b": tf.constant(START[0, 1:]), "a": tf.constant(START[0, :1])}
    moved, results = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    batch_seed, noise_seed = random.split(SEED, 2)
    s = scores(START[:1], target.draw(batch_seed, tf.range(BATCH), []).numpy())
    z = flat(random.normal_like(state, noise_seed))[np.newaxis]
    sigma = SCALE[False] * covariance(s, "full")
    expected = step(START[:1], gradient(START[:1], s), z, sigma, 0.02)[0]
    assert list(moved) == ["b", "a"]
    np.testing.assert_allclose(flat(moved), expected, rtol=1e-10)
    assert results.target_log_prob.shape == []


def test_an_exact_gradient_makes_it_sgld() -> None:
    target = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
    state = tf.constant(START)
    kernel = sgmcmc.ModifiedSGLD(target, 0.1, temperature=0.5)
    moved, _ = kernel.one_step(state, kernel.bootstrap_results(state), SEED)
    z = random.normal_like(state, random.split(SEED, 2)[1])
    np.testing.assert_allclose(moved, START - 0.05 * START + np.sqrt(0.05) * z)


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_compiled_steps(jit: bool) -> None:
    """Normals differ between modes. The formula holds with each mode's draws."""
    target = make_target()
    kernel = sgmcmc.ModifiedSGLD(target, 0.02, temperature=0.7)
    state = tf.constant(START)

    @tf.function(jit_compile=jit, autograph=False)
    def compiled(state: tf.Tensor, seed: tf.Tensor) -> Any:
        before = kernel.bootstrap_results(state)
        moved, after = kernel.one_step(state, before, seed)
        tf.nest.assert_same_structure(before, after)
        batch_seed, noise_seed = random.split(seed, 2)
        indices = target.draw(batch_seed, tf.range(BATCH), [2])
        return moved, indices, random.normal_like(state, noise_seed)

    moved, indices, z = (x.numpy() for x in compiled(state, SEED))
    s = scores(START, indices)
    expected = step(START, gradient(START, s), z, SCALE[False] * covariance(s, "full"), 0.02, 0.7)
    np.testing.assert_allclose(moved, expected, rtol=1e-10)


def test_results_keep_their_structure_shapes_and_dtypes() -> None:
    for dtype, kept in ((tf.float32, "low_rank"), (tf.float64, "diag")):
        state = tf.zeros([2, 4, 3], dtype)
        kernel = sgmcmc.ModifiedSGLD(make_target(dtype, reshuffle="epoch"), 0.01, kept)
        before = kernel.bootstrap_results(state)
        moved, after = kernel.one_step(state, before, SEED)
        assert moved.shape == state.shape and moved.dtype == dtype
        tf.nest.assert_same_structure(before, after)
        for x, y in zip(tf.nest.flatten(before), tf.nest.flatten(after), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)


def test_bad_input() -> None:
    target = MODEL.target(BATCH)
    for step_size in (0.0, -1.0, np.nan, [0.1, 0.0]):
        with pytest.raises(ValueError, match="step_size must be a positive finite number"):
            sgmcmc.ModifiedSGLD(target, step_size)
    for temperature in (0.0, -1.0, np.inf):
        with pytest.raises(ValueError, match="temperature must be a positive finite number"):
            sgmcmc.ModifiedSGLD(target, 0.1, temperature=temperature)
    with pytest.raises(ValueError, match="covariance must be one of full, block, diag"):
        sgmcmc.ModifiedSGLD(target, 0.1, "half")
    with pytest.raises(ValueError, match="a GrowingBatch, which gives none"):
        sgmcmc.ModifiedSGLD(sgmcmc.GrowingBatch(target), 0.1)
    state = tf.zeros([2, 3])
    for kernel, message in (
        (sgmcmc.ModifiedSGLD(target, 0.1, "block"), "for a state of one part. .*='block'"),
        (sgmcmc.ModifiedSGLD(MODEL.target(1), 0.1), "at least 2 scores from each minibatch"),
        (sgmcmc.ModifiedSGLD(target, [0.1, 0.1]), r"step_size must broadcast .*: shape \(2,\)"),
        (sgmcmc.ModifiedSGLD(target, 0.1, temperature=np.ones([4])), "temperature must broadcast"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel.bootstrap_results(state)
    with pytest.raises(ValueError, match="initial state must be finite. Received: NaN"):
        sgmcmc.ModifiedSGLD(target, 0.1).bootstrap_results(tf.constant([[np.nan] * 3]))


def test_parameters_rebuild_the_kernel() -> None:
    kernel = sgmcmc.ModifiedSGLD(MODEL.target(BATCH), 0.01, "diag", 0.5)
    copy = kernel.copy(step_size=0.02)
    assert copy.step_size == 0.02 and kernel.step_size == 0.01
    assert list(copy.parameters) == ["target_log_prob_fn", "step_size", "covariance", "temperature"]
    assert copy.parameters["covariance"] == "diag" and not copy.is_calibrated
