"""alpha is the largest ratio of gradient noise to injected noise, and ends burn-in."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy.linalg import eigh

import tfp_sgmcmc as sgmcmc
from tests.diagnostics.folds import fold
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.known_scores import KnownScores
from tfp_sgmcmc.covariance.factored_scores import OuterProducts
from tfp_sgmcmc.diagnostics import (
    SamplingThresholdReducer,
    gradient_noise_share,
    sampling_threshold,
)

GENERATOR = np.random.default_rng(0)
SCORES = GENERATOR.standard_normal([2, 7, 3]) * [1.0, 2.0, 0.5]  # [chains, n, D]
V = np.stack([np.cov(s, rowvar=False) for s in SCORES])
SCALE = 5.0
SIGMA = SCALE * V
FULL = np.array([[1.0, -0.3, 0.2], [-0.3, 0.6, 0.1], [0.2, 0.1, 0.8]])
DIAGONAL = np.array([1.2, 0.5, 0.8])
ENOUGH = 60  # iterations
FIGURES = (lambda *arguments: sampling_threshold(*arguments, seed=1), gradient_noise_share)


def estimate(parts: bool = False, **changes: Any) -> sgmcmc.GradientEstimate:
    scores = tf.constant(SCORES)
    zeros = tf.zeros([2, 3], tf.float64)
    found = sgmcmc.GradientEstimate(zeros, zeros[:, 0], scores, noise_scale=SCALE)
    found = found._replace(**changes)
    if not parts:
        return found
    split = [zeros[:, :1, tf.newaxis], zeros[:, 1:]]
    return found._replace(gradient=split, scores=[scores[..., :1, tf.newaxis], scores[..., 1:]])


def ratios(step: np.ndarray, matrix: np.ndarray, temperature: float, chain: int) -> np.ndarray:
    """Returns eigenvalues of gradient noise against injected noise, from one step."""
    step = np.diag(np.broadcast_to(step, [3]))
    noise = step @ matrix @ SIGMA[chain] @ matrix @ step / 4
    return eigh(noise, temperature * np.sqrt(step) @ matrix @ np.sqrt(step), eigvals_only=True)


PRECONDITIONERS = {
    "none": (None, np.eye(3)),
    "number": (0.3, 0.3 * np.eye(3)),
    "diagonal": (DIAGONAL, np.diag(DIAGONAL)),
    "full": (sgmcmc.preconditioners.FullMatrix(FULL), FULL),
}


@pytest.mark.parametrize("name", PRECONDITIONERS)
@pytest.mark.parametrize("parts", [False, True])
def test_ratios_of_the_variances_of_one_step(name: str, parts: bool) -> None:
    preconditioner, matrix = PRECONDITIONERS[name]
    if parts and name == "diagonal":
        preconditioner = [DIAGONAL[:1], DIAGONAL[1:]]
    alpha = sampling_threshold(
        estimate(parts), 0.1, preconditioner, seed=1, temperature=2.0, num_iterations=ENOUGH
    )
    share = gradient_noise_share(estimate(parts), 0.1, preconditioner, temperature=2.0)
    for chain in range(2):
        expected = ratios(0.1, matrix, 2.0, chain)
        np.testing.assert_allclose(alpha[chain], expected.max(), rtol=1e-9)
        np.testing.assert_allclose(share[chain], expected.mean() / (1 + expected.mean()))


def test_step_sizes_of_parts() -> None:
    found = sampling_threshold(
        estimate(parts=True), [0.1, 0.4], DIAGONAL[0], seed=1, num_iterations=ENOUGH
    )
    step = np.array([0.1, 0.4, 0.4])
    expected = [ratios(step, DIAGONAL[0] * np.eye(3), 1.0, chain).max() for chain in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_matrix_at_the_state() -> None:
    """M(W) G = G W^T W for ICA, at a W for each chain; D = 4."""
    w, scores = GENERATOR.standard_normal([2, 2, 2]), GENERATOR.standard_normal([2, 9, 2, 2])
    found = sgmcmc.GradientEstimate(
        tf.constant(w), tf.zeros([2], tf.float64), tf.constant(scores), noise_scale=SCALE
    )
    natural = sgmcmc.preconditioners.NaturalGradientICA()
    with pytest.raises(TypeError, match="NaturalGradientICA, whose M depends on the state"):
        sampling_threshold(found, 0.1, natural, seed=0)
    matrix, _ = natural.evaluate(tf.constant(w), chain_ndims=1)
    alpha = sampling_threshold(found, 0.1, matrix, seed=0, num_iterations=ENOUGH)
    share = gradient_noise_share(found, 0.1, matrix)
    for chain in range(2):
        explicit = np.kron(np.eye(2), w[chain].T @ w[chain])
        sigma = SCALE * np.cov(scores[chain].reshape(9, 4), rowvar=False)
        values = 0.1 / 4 * np.linalg.eigvals(explicit @ sigma).real
        np.testing.assert_allclose(alpha[chain], values.max(), rtol=1e-6)
        np.testing.assert_allclose(share[chain], values.mean() / (1 + values.mean()))


def test_the_formula_in_the_papers_notation() -> None:
    """Welling & Teh: alpha = epsilon N^2 / (4n) lambda_max(M^1/2 V_s M^1/2), V_s with divisor n."""
    model, n, epsilon = GaussianMean(num_examples=12), 4, 0.02
    target = model.target(n, dtype=tf.float64, replacement=True)
    found = target.estimate(tf.zeros([3], tf.float64), tf.constant([0, 1]))
    centred = found.scores - tf.reduce_mean(found.scores, axis=0)
    v_s = (tf.transpose(centred) @ centred).numpy() / n
    root = np.linalg.cholesky(FULL)
    paper = epsilon * 12**2 / (4 * n) * np.linalg.eigvalsh(root.T @ v_s @ root).max()
    ours = sampling_threshold(
        found, epsilon, sgmcmc.preconditioners.FullMatrix(FULL), seed=1, num_iterations=ENOUGH
    )
    np.testing.assert_allclose(ours, paper * n / (n - 1), rtol=1e-9)


def test_few_iterations_come_from_below() -> None:
    exact = np.array([ratios(0.1, np.eye(3), 1.0, chain).max() for chain in range(2)])
    found = [
        sampling_threshold(estimate(), 0.1, seed=3, num_iterations=k).numpy() for k in (1, 2, 5, 10)
    ]
    assert np.all(np.diff([*found, exact], axis=0) > 0)
    np.testing.assert_allclose(found[-1], exact, rtol=0.01)


@pytest.mark.parametrize(
    "jit",
    [
        None,
        pytest.param(False, marks=pytest.mark.thorough),
        pytest.param(True, marks=pytest.mark.thorough),
    ],
)
def test_eager_graph_and_xla_agree(jit: bool | None) -> None:
    def both(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = estimate(parts=True)
        alpha = sampling_threshold(found, step, 0.3, seed=1, num_iterations=50)
        return alpha, gradient_noise_share(found, step, 0.3)

    run = both if jit is None else tf.function(both, jit_compile=jit, autograph=False)
    alpha, share = run(tf.constant(0.1, tf.float64))
    values = [ratios(0.1, 0.3 * np.eye(3), 1.0, chain) for chain in range(2)]
    np.testing.assert_allclose(alpha, [x.max() for x in values], rtol=1e-5)
    np.testing.assert_allclose(share, [x.mean() / (1 + x.mean()) for x in values])


def test_factored_scores() -> None:
    inputs, gradients = (GENERATOR.standard_normal([8, 1, k]) for k in (3, 2))
    factored = OuterProducts(tf.constant(inputs), tf.constant(gradients), [3, 2])
    found = sgmcmc.GradientEstimate(
        tf.zeros([3, 2], tf.float64), tf.zeros([], tf.float64), factored, noise_scale=SCALE
    )
    dense = found._replace(scores=factored.rows())
    for figure in FIGURES:
        assert figure(dense, 0.1, 0.5) > 0
        np.testing.assert_allclose(figure(found, 0.1, 0.5), figure(dense, 0.1, 0.5))


@pytest.mark.parametrize("num_positions", [1, 2])
def test_a_wide_layer_beside_another_part(num_positions: int) -> None:
    """With one position the scores are not formed, and alpha is that of the scores."""
    inputs, gradients = (GENERATOR.standard_normal([2, 5, num_positions, k]) + 1 for k in (30, 20))
    wide = OuterProducts(tf.constant(inputs), tf.constant(gradients), [30, 20], scale=0.5)
    assert (wide.gram() is None) == (num_positions > 1)
    bias = tf.constant(GENERATOR.standard_normal([2, 5, 3]))
    like = [tf.zeros([2, 30, 20], tf.float64), tf.zeros([2, 3], tf.float64)]
    found = sgmcmc.GradientEstimate(like, like[1][:, 0], [wide, bias], noise_scale=SCALE)
    alpha = sampling_threshold(found, 0.1, 0.3, seed=1, num_iterations=ENOUGH)
    rows = np.concatenate([wide.rows().numpy().reshape(2, 5, 600), bias.numpy()], axis=-1)
    for chain in range(2):
        noise = SCALE * np.cov(rows[chain], rowvar=False)
        exact = 0.1 / 4 * 0.3 * np.linalg.eigvalsh(noise).max()
        np.testing.assert_allclose(alpha[chain], exact, rtol=1e-9)


def test_exact_gradients_have_no_noise() -> None:
    target = sgmcmc.FullDataLogProb(lambda x: -(x**2))
    found = target.estimate(tf.zeros([4]), tf.constant([0, 1]))
    for figure in FIGURES:
        np.testing.assert_array_equal(figure(found, 0.1), np.zeros(4))


def test_a_single_score_has_no_covariance() -> None:
    single = estimate(scores=tf.constant(SCORES[:, :1]))
    growing = sgmcmc.GrowingBatch(GaussianMean().target(4))  # from one example on
    one = growing.estimate(tf.zeros([2, 3]), tf.constant([0, 1]))
    for found in (single, one):
        assert all(np.all(np.isnan(figure(found, 0.1))) for figure in FIGURES)


def test_bad_input() -> None:
    model = GaussianMean(num_examples=12)
    target, theta, seed = model.target(4), tf.zeros([3]), tf.constant([0, 1])
    without = target.estimate(theta, seed, with_scores=False)
    for figure in FIGURES:
        with pytest.raises(ValueError, match="has no scores"):
            figure(without, 0.1)
    with pytest.raises(TypeError, match="RMSprop, whose M depends"):
        gradient_noise_share(estimate(), 0.1, sgmcmc.preconditioners.RMSprop())
    with pytest.raises(TypeError, match="step_size must be the value at one step"):
        sampling_threshold(estimate(), sgmcmc.schedules.PolynomialDecay(1.0), seed=1)
    for bad, message in (
        (dict(num_iterations=0), "num_iterations must be at least 1. Received: 0"),
        (dict(temperature=0.0), "temperature must be a positive finite number. Received: 0"),
        (dict(seed=None), "seed must be an integer or a pair"),
    ):
        with pytest.raises(ValueError, match=message):
            sampling_threshold(estimate(), 0.1, **{"seed": 1, **bad})


def test_the_noise_scale_of_a_growing_batch() -> None:
    """c = N^2/n with replacement and N (N - n)/n without, n = 3 here."""
    model = GaussianMean(num_examples=12)
    for replacement, expected in ((True, 12 * 12 / 3), (False, 12 * 9 / 3)):
        target = sgmcmc.GrowingBatch(model.target(4, replacement=replacement), initial_size=3)
        found = target.estimate(tf.zeros([3]), tf.constant([0, 1]))
        np.testing.assert_allclose(found.noise_scale, expected)


# The end of burn-in, with known covariance of the scores, so that alpha is known at every step.
TARGET = KnownScores(
    GaussianMean(num_examples=12).target(4, replacement=True),
    np.diag([1.0, 4.0, 9.0]),
    noise_scale=10.0,
)
SCHEDULE = sgmcmc.schedules.PolynomialDecay(a=0.01, b=1.0, gamma=0.55)
NUM_STEPS = 30
ALPHA = SCHEDULE(tf.range(NUM_STEPS)).numpy() / 4 * 10.0 * 9.0  # after steps 1, 2, ...
THRESHOLD = (ALPHA[15] + ALPHA[16]) / 2  # between steps 16 and 17


def check_end_of_burn_in(found: Any, every: int) -> None:
    looked_at = np.arange(every, NUM_STEPS + 1, every)
    np.testing.assert_array_equal(found.first_step, [looked_at[looked_at >= 17].min()] * 2)
    np.testing.assert_allclose(found.alpha, [ALPHA[looked_at[-1] - 1]] * 2, rtol=1e-4)
    assert int(found.num_steps) == NUM_STEPS


@pytest.mark.thorough
def test_the_end_of_burn_in_within_a_compiled_chain() -> None:
    reducer = SamplingThresholdReducer(TARGET, THRESHOLD, seed=1, every=7)
    found = fold(sgmcmc.SGLD(TARGET, SCHEDULE), tf.zeros([2, 3]), NUM_STEPS, reducer)
    check_end_of_burn_in(found, every=7)


@pytest.mark.parametrize("threshold", [THRESHOLD, pytest.param(1e-6, marks=pytest.mark.thorough)])
def test_the_end_of_burn_in(threshold: float) -> None:
    reducer = SamplingThresholdReducer(
        TARGET, threshold, seed=1, every=1, num_iterations=8, step_size_fn=lambda r: r
    )
    state = tf.zeros([2, 3])
    found, advance = reducer.initialize(state), tf.function(reducer.one_step, autograph=False)
    for step in range(NUM_STEPS):
        found = advance(state, found, SCHEDULE(step))
    found = reducer.finalize(found)
    if threshold == THRESHOLD:
        check_end_of_burn_in(found, every=1)
    else:  # the threshold is not reached
        np.testing.assert_array_equal(found.first_step, [0, 0])


@pytest.mark.parametrize("step_size", [0.0, -0.5, float("nan")])
def test_step_sizes_out_of_range(step_size: float) -> None:
    for figure in FIGURES:
        with pytest.raises(ValueError, match=f"step_size must be a positive .*: {step_size}"):
            figure(estimate(), step_size)


def test_bad_input_of_the_reducer() -> None:
    target = GaussianMean(num_examples=12).target(4)
    with pytest.raises(TypeError, match="target must be a Target. Received: a function"):
        SamplingThresholdReducer(lambda x: x, 0.1, seed=1)
    for bad, message in (
        (dict(threshold=0.0), "threshold must be a positive finite number. Received: 0"),
        (dict(every=0), "every must be at least 1. Received: 0"),
        (dict(seed=None), "seed must be an integer or a pair"),
    ):
        with pytest.raises(ValueError, match=message):
            SamplingThresholdReducer(target, **{"threshold": 0.1, "seed": 1, **bad})
