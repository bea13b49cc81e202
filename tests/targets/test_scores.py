"""Scores are gradients of single examples' log likelihoods, and estimate the right covariance."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.every_minibatch import check_moments, flat, give_every_minibatch

tfb, tfd = tfp.bijectors, tfp.distributions

GENERATOR = np.random.default_rng(0)
N, BATCH = 23, 6
X, Y = GENERATOR.standard_normal([N, 3]), GENERATOR.standard_normal([N, 2])
SEED = tf.constant([1, 2])
CHAINS = [(), (4,), (2, 3)]
TOLERANCE = {tf.float32: 1e-5, tf.float64: 1e-11}


def regression(batch_size: int = BATCH, size: int = N, **options: Any) -> sgmcmc.MinibatchLogProb:
    """A regression y ~ N(x W + b, I) with W `[3, 2]`, b `[2]` and priors N(0, I)."""

    def log_likelihood(w: tf.Tensor, b: tf.Tensor, batch: Any) -> tf.Tensor:
        residual = batch["y"] - batch["x"] @ w - b[..., tf.newaxis, :]
        return -0.5 * tf.reduce_sum(residual**2, axis=-1)

    def log_prior(w: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return -0.5 * (tf.reduce_sum(w**2, axis=[-2, -1]) + tf.reduce_sum(b**2, axis=-1))

    data = {"x": X[:size], "y": Y[:size]}
    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, batch_size, **options)


def closed_form(w: Any, b: Any, batch: Any) -> dict[str, Any]:
    """Returns the scores of `regression`, for NumPy or TensorFlow."""
    residual = batch["y"] - batch["x"] @ w - b[..., np.newaxis, :]
    return {"w": batch["x"][..., np.newaxis] * residual[..., np.newaxis, :], "b": residual}


def draw_state(chains: tuple[int, ...], dtype: tf.DType = tf.float64) -> dict[str, tf.Tensor]:
    shapes = {"w": [*chains, 3, 2], "b": [*chains, 2]}
    return {k: tf.constant(GENERATOR.standard_normal(s), dtype) for k, s in shapes.items()}


def expected(target: sgmcmc.MinibatchLogProb, state: Any, chains: tuple[int, ...]) -> Any:
    """Returns log posterior, gradient and scores by NumPy for the examples that the seed names."""
    indices = target.draw(SEED, tf.range(BATCH), chains).numpy()
    w, b = (state[k].numpy().astype(np.float64) for k in ("w", "b"))
    scores = closed_form(w, b, {"x": X[indices], "y": Y[indices]})
    axis = len(chains)
    gradient = {k: N / BATCH * s.sum(axis=axis) for k, s in scores.items()}
    value = -0.5 * np.sum(scores["b"] ** 2, axis=(-2, -1)) * N / BATCH
    value -= 0.5 * (np.sum(w**2, axis=(-2, -1)) + np.sum(b**2, axis=-1))
    return value, {"w": gradient["w"] - w, "b": gradient["b"] - b}, scores


def in_mode(fn: Any, mode: str) -> Any:
    return fn if mode == "eager" else tf.function(fn, autograph=False, jit_compile=mode == "xla")


def check(
    target: sgmcmc.MinibatchLogProb, chains: tuple[int, ...], dtype: tf.DType, mode: str
) -> None:
    """Compares an estimate with NumPy, and with the estimate without scores."""
    state, tolerance = draw_state(chains, dtype), TOLERANCE[dtype]

    def both(state: Any) -> Any:
        return target.estimate(state, SEED), target.estimate(state, SEED, with_scores=False)

    estimate, plain = in_mode(both, mode)(state)
    value, gradient, scores = expected(target, state, chains)
    assert estimate.scores["w"].shape == (*chains, BATCH, 3, 2)
    assert estimate.scores["b"].shape == (*chains, BATCH, 2)
    assert estimate.scores["w"].dtype == dtype
    close = dict(rtol=tolerance, atol=10 * tolerance)
    for k in ("w", "b"):
        np.testing.assert_allclose(estimate.scores[k], scores[k], **close)
        np.testing.assert_allclose(estimate.gradient[k], gradient[k], **close)
        np.testing.assert_allclose(estimate.gradient[k], plain.gradient[k], **close)
    np.testing.assert_allclose(estimate.log_prob, value, **close)
    np.testing.assert_allclose(estimate.log_prob, plain.log_prob, **close)
    assert plain.scores == ()


@pytest.mark.parametrize("replacement", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("chains", "shared"),
    [
        pytest.param(
            chains, shared, marks=[pytest.mark.thorough] * (shared != (chains == CHAINS[-1]))
        )
        for chains in CHAINS
        for shared in (False, True)
    ],
)
def test_mapped_scores(chains: tuple[int, ...], shared: bool, replacement: bool) -> None:
    target = regression(shared_batch=shared, replacement=replacement)
    check(target, chains, tf.float64, "eager")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("chains", CHAINS)
def test_closed_form_scores(chains: tuple[int, ...], shared: bool) -> None:
    check(regression(shared_batch=shared, score_fn=closed_form), chains, tf.float64, "eager")


@pytest.mark.parametrize(
    ("mode", "chains", "options"),
    [
        pytest.param("eager", (2, 3), dict(dtype=tf.float32), marks=pytest.mark.thorough),
        ("graph", (4,), dict(replacement=True)),
        pytest.param("graph", (), dict(dtype=tf.float32, replacement=True), marks=pytest.mark.slow),
        pytest.param("xla", (4,), {}, marks=pytest.mark.slow),
        pytest.param(
            "xla",
            (2, 3),
            dict(dtype=tf.float32, replacement=True, shared_batch=True),
            marks=pytest.mark.thorough,
        ),
        pytest.param("xla", (), dict(replacement=True), marks=pytest.mark.slow),
        pytest.param(
            "xla", (4,), dict(replacement=True, score_fn=closed_form), marks=pytest.mark.thorough
        ),
    ],
)
def test_scores_in_other_modes_and_in_single_precision(
    mode: str, chains: tuple[int, ...], options: Any
) -> None:
    check(regression(**options), chains, options.get("dtype", tf.float64), mode)


def test_scores_of_unconstrained_parameters() -> None:
    """For x ~ N(mu, exp(2u)) the scores are (x - mu) exp(-2u) and (x - mu)^2 exp(-2u) - 1.

    The Jacobian belongs to the prior, not to the scores.
    """
    target = sgmcmc.MinibatchLogProb(
        lambda mu, sigma: -0.5 * mu**2 - sigma,
        lambda mu, sigma, x: tfd.Normal(mu[..., tf.newaxis], sigma[..., tf.newaxis]).log_prob(x),
        X[:, 0],
        BATCH,
        bijector=[None, tfb.Exp()],
    )
    mu, u = GENERATOR.standard_normal([2, 5])
    estimate = target.estimate([tf.constant(mu), tf.constant(u)], SEED)
    x = X[target.draw(SEED, tf.range(BATCH), [5]).numpy(), 0]
    precision, residual = np.exp(-2 * u)[:, np.newaxis], x - mu[:, np.newaxis]
    scores = residual * precision, residual**2 * precision - 1
    prior = -mu, 1 - np.exp(u)
    for i in range(2):
        np.testing.assert_allclose(estimate.scores[i], scores[i], rtol=1e-10, atol=1e-12)
        gradient = prior[i] + N / BATCH * scores[i].sum(axis=1)
        np.testing.assert_allclose(estimate.gradient[i], gradient, rtol=1e-10)


@pytest.mark.parametrize(
    ("shared", "mode"),
    [
        (False, "eager"),
        (True, "eager"),
        pytest.param(False, "xla", marks=pytest.mark.thorough),
        pytest.param(True, "graph", marks=pytest.mark.thorough),
    ],
)
def test_group_means(shared: bool, mode: str) -> None:
    """Row k is sqrt(width) times the mean score of the k-th group of `width` examples."""
    target = regression(shared_batch=shared, num_groups=3, replacement=True)
    state = draw_state((4,))
    estimate = in_mode(lambda s: target.estimate(s, SEED), mode)(state)
    value, gradient, scores = expected(target, state, (4,))
    assert target.num_scores == 3
    for k in ("w", "b"):
        groups = np.broadcast_to(scores[k], [4, *scores[k].shape[1:]])
        groups = groups.reshape(4, 3, BATCH // 3, *groups.shape[2:]).mean(axis=2)
        np.testing.assert_allclose(estimate.scores[k], 2**0.5 * groups, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(estimate.gradient[k], gradient[k], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(estimate.log_prob, value, rtol=1e-10)


@pytest.mark.parametrize(
    ("size", "batch", "options"),
    [
        (5, 3, {}),
        (5, 3, dict(replacement=True)),
        (5, 3, dict(score_fn=closed_form)),
        (5, 4, dict(num_groups=2)),
        (5, 4, dict(num_groups=2, replacement=True)),
        (6, 6, dict(num_groups=3)),
    ],
)
def test_covariance_of_the_gradient_is_c_times_the_expected_sample_covariance(
    size: int, batch: int, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cov(g) = c E[V hat] and E[V hat] = V exactly, over all minibatches of a tiny data set.

    V has the divisor N with replacement and N - 1 without, and c is `noise_scale`. With n = N and
    no replacement c is 0, but groups still estimate V.
    """
    target = regression(batch, size, **options)
    at = draw_state(())
    value, gradient = tfp.math.value_and_gradient(lambda s: target(**s), at)
    count = give_every_minibatch(monkeypatch, target)
    state = tf.nest.map_structure(lambda x: tf.stack([x] * count), at)
    estimate = target.estimate(state, SEED)
    covariance = check_moments(estimate, value, gradient)
    examples = {"x": X[:size], "y": Y[:size]}
    population = flat(closed_form(at["w"].numpy(), at["b"].numpy(), examples), 1)
    v, other = (
        np.cov(population, rowvar=False, ddof=ddof)
        for ddof in ((0, 1) if target.replacement else (1, 0))
    )
    np.testing.assert_allclose(covariance, target.noise_scale * v, rtol=1e-9, atol=1e-9)
    rows = flat(estimate.scores, 2)
    centred = rows - rows.mean(axis=1, keepdims=True)
    found = np.einsum("kia,kib->ab", centred, centred) / count / (target.num_scores - 1)
    np.testing.assert_allclose(found, v, rtol=1e-9, atol=1e-9)
    with pytest.raises(AssertionError):  # the divisor of the other way of drawing
        np.testing.assert_allclose(found, other, rtol=1e-9, atol=1e-9)


def test_no_scores_beside_a_hessian_product() -> None:
    state = draw_state(())
    estimate = regression().estimate(state, SEED, probe=state)
    assert estimate.scores == () and set(estimate.hessian_product) == {"w", "b"}


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda w, b, batch: closed_form(w, b, batch)["w"], "2 parts .* Received: 1 arrays"),
        (
            lambda w, b, batch: {**closed_form(w, b, batch), "b": b},
            r"shape \(4, 6, 2\) for a state part of shape \(4, 2\): .* Received: shape \(4, 2\)",
        ),
        (
            lambda w, b, batch: tf.nest.map_structure(
                lambda s: tf.reduce_mean(s, axis=-2), closed_form(w, b, batch)
            ),
            "the gradient of each example's log likelihood",
        ),
    ],
)
def test_closed_form_of_a_wrong_shape(fn: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regression(score_fn=fn).estimate(draw_state((4,)), SEED)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(num_groups=4), ValueError, "num_groups must be a divisor of batch_size = 6.*: 4"),
        (dict(num_groups=1), ValueError, "num_groups must be .* at least 2. Received: 1"),
        (dict(num_groups=0), ValueError, "num_groups must be a divisor .* Received: 0"),
        (dict(num_groups=12), ValueError, "num_groups must be a divisor .* Received: 12"),
        (dict(score_fn=closed_form, num_groups=3), ValueError, "score_fn must be given without"),
        (
            dict(score_fn=closed_form, bijector={"w": None, "b": tfb.Exp()}),
            ValueError,
            "score_fn must be",
        ),
        (dict(score_fn=X), TypeError, "score_fn must be a callable. Received: an ndarray"),
    ],
)
def test_bad_options(options: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        regression(**options)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_products_of_matrices_with_weights_do_not_stop_the_process(compiled: bool) -> None:
    """oneDNN fails in the vectorized product of a single example `[1, T, C]` with `[C, k]`."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal([40, 12, 16]).astype(np.float32)

    def log_likelihood(w: tf.Tensor, batch: Any) -> tf.Tensor:
        return tf.reduce_sum(tf.tanh(tf.matmul(batch, w)), axis=[-1, -2])

    base = sgmcmc.MinibatchLogProb(
        lambda w: -tf.reduce_sum(w**2), log_likelihood, x, 20, shared_batch=True
    )
    w = tf.constant(generator.standard_normal([16, 8]), tf.float32)
    estimate = tf.function(
        lambda s: base.estimate(w, tf.constant([0, 1]), with_scores=s)[0], autograph=False
    )
    estimate = estimate.python_function if not compiled else estimate
    with pytest.warns(UserWarning, match="one after another.*'MatMul'"):
        found = estimate(True)
    np.testing.assert_allclose(found, estimate(False), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_likelihoods_with_a_loop_that_tensorflow_does_not_vectorize(mode: str) -> None:
    """`tf.scan` gives x_t = a^t, so the score of the log likelihood -x_t is -t a^(t - 1)."""
    times = np.array([1, 4, 5, 9, 2], np.int32)

    def log_likelihood(a: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        x, _ = tf.scan(lambda c, _: (c[0] * a, c[1]), tf.range(9), (tf.ones_like(a), 0 * a))
        return -tf.gather(x, batch - 1)

    target = sgmcmc.MinibatchLogProb(lambda a: -(a**2), log_likelihood, times, 5, replacement=True)
    estimate = in_mode(lambda a: target.estimate(a, SEED), mode)
    a = tf.constant(0.9, tf.float64)
    with pytest.warns(UserWarning, match="one after another.*TensorFlow reports"):
        found = estimate(a)
    drawn = times[target.draw(SEED, tf.range(5), ()).numpy()]
    np.testing.assert_allclose(found.scores, -drawn * 0.9 ** (drawn - 1), rtol=1e-12)
    np.testing.assert_allclose(found.gradient, -1.8 + found.scores.numpy().sum(), rtol=1e-12)
