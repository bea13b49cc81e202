"""GrowingBatch: sizes, cost, and gradients that are unbiased at every size."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.every_minibatch import check_moments
from tests.harness.gaussian_mean import PRECISION, GaussianMean
from tests.harness.statistics import Rejected, check_means
from tfp_sgmcmc.targets import growing_batch

MODEL = GaussianMean(num_examples=12)


def sizes_used(growth: float, initial: float, total: int, num_steps: int) -> list[int]:
    """Returns n_k = min(growth n_{k-1}, N), kept as a real number and rounded up for use."""
    size, used = initial, []
    for _ in range(num_steps):
        used.append(math.ceil(size))
        size = min(growth * size, total)
    return used


def indicator_target(total: int, chunk: int, **options: Any) -> Any:
    """Example i has the gradient (1, i), so that the sum tells how many were used, and which."""

    def log_likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return theta[..., 0, tf.newaxis] + batch * theta[..., 1, tf.newaxis]

    data = np.arange(total, dtype=np.float64)
    return sgmcmc.MinibatchLogProb(
        lambda t: 0.0 * t[..., 0], log_likelihood, data, chunk, **options
    )


@pytest.mark.parametrize(
    ("growth", "initial", "replacement"),
    [
        (1.1, 1.0, True),
        pytest.param(1.5, 2.0, False, marks=pytest.mark.thorough),
        pytest.param(3.0, 1.0, False, marks=pytest.mark.thorough),
        (1.0, 4.0, False),
    ],
)
def test_sizes_and_cost(
    growth: float, initial: float, replacement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step uses the examples 0 .. n_k - 1 of its permutation, in as many chunks as needed."""
    total, chunk = 12, 5
    base = indicator_target(total, chunk, replacement=replacement)
    target = sgmcmc.GrowingBatch(base, growth, initial)
    state, chunks = tf.zeros([3, 2], tf.float64), []
    rows = base.rows
    monkeypatch.setattr(base, "rows", lambda i: chunks.append(i.shape) or rows(i))
    carried = target.bootstrap(state)
    for k, size in enumerate(sizes_used(growth, initial, total, 8)):
        chunks.clear()
        seed = tf.constant([1, k])
        estimate = target.estimate(state, seed, carried, with_scores=False)
        carried = estimate.target_state
        indices = base.draw(seed, tf.range(size), [3]).numpy()
        assert chunks == [(3, chunk)] * math.ceil(size / chunk)
        np.testing.assert_allclose(estimate.gradient[:, 0], total)  # N/n_k times n_k ones
        np.testing.assert_allclose(estimate.gradient[:, 1], total / size * indices.sum(axis=1))
        np.testing.assert_allclose(float(carried.size), min(initial * growth ** (k + 1), total))


def test_a_tenth_more_than_one_grows() -> None:
    assert sizes_used(1.1, 1.0, 12, 2) == [1, 2]
    target = sgmcmc.GrowingBatch(indicator_target(12, 1), growth=1.1)
    state = tf.zeros([2], tf.float64)
    second = target.estimate(state, tf.constant([0, 1]))
    assert float(second.target_state.size) == 1.1


def test_all_examples_give_the_exact_gradient() -> None:
    base = MODEL.target(5, tf.float64)
    target = sgmcmc.GrowingBatch(base, growth=2.0, initial_size=12)
    theta = tf.constant(np.random.default_rng(0).standard_normal([4, 3]))
    value, gradient = tfp.math.value_and_gradient(base, theta)
    estimate = target.estimate(theta, tf.constant([0, 1]), target.bootstrap(theta))
    np.testing.assert_allclose(estimate.gradient, gradient, rtol=1e-10)
    np.testing.assert_allclose(estimate.log_prob, value, rtol=1e-10)
    np.testing.assert_allclose(target(theta), value)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(1.0, marks=pytest.mark.thorough),
        3.3,
        pytest.param(7.0, marks=pytest.mark.thorough),
    ],
)
def test_estimates_are_unbiased_with_the_covariance_of_their_size(size: float) -> None:
    """For chunks of 3, the sizes are smaller, larger, and not a multiple.

    Finds errors of 5% of a standard deviation and 8% of a variance.
    """
    chains = 50_000
    target = sgmcmc.GrowingBatch(MODEL.target(3, tf.float64), 1.1, size)
    theta = np.array([0.5, 1.0, -0.3])
    estimate = target.estimate(tf.constant(np.tile(theta, [chains, 1])), tf.constant([0, 1]))
    exact = MODEL.hessian @ (MODEL.mean - theta)
    root = np.linalg.cholesky(MODEL.noise(math.ceil(size), replacement=False))
    white = np.linalg.solve(root, (estimate.gradient - exact).numpy().T).T
    rows, columns = np.tril_indices(3)
    check_means(white, 0.0, error=0.05)
    check_means(white[:, rows] * white[:, columns], rows == columns, error=0.08)
    with pytest.raises(Rejected):  # the law of another size
        smaller = MODEL.noise(math.ceil(size) + 1, replacement=False)
        ratio = MODEL.noise(math.ceil(size), replacement=False)[0, 0] / smaller[0, 0]
        check_means(white[:, rows] * white[:, columns] * ratio, rows == columns, error=0.5)


def test_hessian_product_is_that_of_the_estimate() -> None:
    """For quadratic log densities the product is -(L + N P) v with every minibatch."""
    target = sgmcmc.GrowingBatch(MODEL.target(3, tf.float64), 1.1, 7.0)
    theta, probe = np.random.default_rng(1).standard_normal([2, 4, 3])
    estimate = target.estimate(tf.constant(theta), tf.constant([0, 1]), probe=tf.constant(probe))
    np.testing.assert_allclose(estimate.hessian_product, -probe @ MODEL.hessian, rtol=1e-9)


FIVE = GaussianMean(num_examples=5)


def over_all_orders(
    monkeypatch: pytest.MonkeyPatch, size: int, chunk: int, replacement: bool, **options: Any
) -> sgmcmc.GradientEstimate:
    """Returns the estimate of which chain k draws the k-th of all sequences of examples."""
    base = FIVE.target(chunk, tf.float64, replacement=replacement, **options)
    examples = range(5)
    every = itertools.product(examples, repeat=size)
    orders = np.array(list(every if replacement else itertools.permutations(examples)))

    def draw(seed: tf.Tensor, positions: tf.Tensor, chains: Any) -> tf.Tensor:
        return tf.gather(tf.constant(orders), tf.minimum(positions, orders.shape[1] - 1), axis=1)

    monkeypatch.setattr(base, "draw", draw)
    target = sgmcmc.GrowingBatch(base, 1.1, size)
    return target.estimate(tf.constant(np.tile(THETA, [len(orders), 1])), tf.constant([0, 1]))


THETA = np.array([0.5, 1.0, -0.3])


@pytest.mark.parametrize(
    ("size", "chunk", "replacement", "options"),
    [
        (3, 2, False, {}),
        (3, 5, False, {}),
        (4, 3, True, {}),
        (5, 4, False, dict(num_groups=2)),
        *(
            pytest.param(*setting, marks=pytest.mark.thorough)
            for setting in (
                *((size, 2, False, {}) for size in (2, 4, 5)),
                (4, 3, False, {}),
                (4, 3, False, dict(score_fn=None)),
                (3, 4, True, {}),
                (3, 4, False, dict(num_groups=2)),
            )
        ),
    ],
)
def test_scores_have_the_covariance_of_the_gradient_of_their_size(
    size: int,
    chunk: int,
    replacement: bool,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over all equally likely minibatches cov(g) = c E[V], to rounding, at every size."""
    estimate = over_all_orders(monkeypatch, size, chunk, replacement, **options)
    gradient = FIVE.hessian @ (FIVE.mean - THETA)
    base = FIVE.target(chunk, tf.float64)
    covariance = check_moments(estimate, base(tf.constant(THETA)), gradient)
    np.testing.assert_allclose(covariance, FIVE.noise(size, replacement), rtol=1e-9, atol=1e-9)
    rows = options.get("num_groups", chunk)
    in_use = len({(i % chunk) * rows // chunk for i in range(size)})
    assert estimate.scores.shape[1] == rows and int(estimate.num_scores) == in_use


@pytest.mark.parametrize(("size", "chunk"), [(3, 2), (4, 3)])
def test_rows_that_ignore_how_many_examples_they_sum_are_wrong(
    size: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def naive(sums: tf.Tensor, widths: tf.Tensor, axis: int) -> tf.Tensor:
        return sums / tf.sqrt(widths)[:, tf.newaxis]

    monkeypatch.setattr(growing_batch, "_rows_of_equal_weight", naive)
    estimate = over_all_orders(monkeypatch, size, chunk, replacement=False)
    value = FIVE.target(chunk, tf.float64)(tf.constant(THETA))
    with pytest.raises(AssertionError):
        check_moments(estimate, value, FIVE.hessian @ (FIVE.mean - THETA))


def test_a_minibatch_of_one_chunk_has_the_scores_of_its_examples() -> None:
    """The rows have exactly the sample covariance of the first scores."""
    base = MODEL.target(5, tf.float64)
    theta, seed = tf.constant(np.random.default_rng(0).standard_normal([4, 3])), tf.constant([0, 1])
    for size in (2, 3, 5):
        found = sgmcmc.GrowingBatch(base, 1.1, size).estimate(theta, seed).scores.numpy()
        rows = (MODEL.data[base.draw(seed, tf.range(size), [4])] - theta[:, None]) @ PRECISION
        for chain in range(4):
            expected = np.cov(rows[chain], rowvar=False)
            np.testing.assert_allclose(np.cov(found[chain], rowvar=False), expected, rtol=1e-9)
        np.testing.assert_allclose(found.mean(axis=1), 0.0, atol=1e-10)


def test_a_linear_model_has_the_scores_of_its_likelihood() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal([12, 3]), generator.standard_normal(12)

    def log_prob(eta: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return -0.5 * (y - eta) ** 2

    def plain(theta: tf.Tensor, batch: Any) -> tf.Tensor:
        return log_prob(tf.linalg.matvec(batch[0], theta), batch[1])

    theta, seed, found = tf.constant(generator.standard_normal([4, 3])), tf.constant([0, 1]), []
    for likelihood in (sgmcmc.LinearModel(log_prob), plain):
        base = sgmcmc.MinibatchLogProb(
            lambda t: -0.5 * tf.reduce_sum(t**2, axis=-1), likelihood, (x, y), 4
        )
        found.append(sgmcmc.GrowingBatch(base, 1.1, 7).estimate(theta, seed))
    np.testing.assert_allclose(found[0].gradient, found[1].gradient, rtol=1e-9)
    np.testing.assert_allclose(found[0].scores, found[1].scores, rtol=1e-9, atol=1e-12)


def learnt(kernel: Any, num_steps: int) -> Any:
    """Returns the results after steps, which all states stand still for."""
    state = tf.zeros([6, 3])
    results = kernel.bootstrap_results(state)
    for t in range(num_steps):
        _, results = kernel.one_step(state, results, tf.constant([0, t]))
    return results


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *(
            pytest.param(name, make, marks=pytest.mark.thorough)
            for name, make in (
                ("SGFS", lambda target: sgmcmc.SGFS(target, 0.01)),
                ("NOGIN", lambda target: sgmcmc.NOGIN(target, 0.01)),
                ("CCAdL", lambda target: sgmcmc.CCAdL(target, 0.01)),
                ("SGHMC", lambda target: sgmcmc.SGHMC(target, 0.01)),
                ("mSGLD", lambda target: sgmcmc.ModifiedSGLD(target, 0.001, "diag")),
            )
        ),
        ("NOGIN, low rank", lambda target: sgmcmc.NOGIN(target, 0.01, covariance="low_rank")),
    ],
)
def test_samplers_with_the_noise_covariance(name: str, make: Callable[[Any], Any]) -> None:
    """The first minibatch, of one example, is left out and is not counted as skipped."""
    target = sgmcmc.GrowingBatch(MODEL.target(5), growth=1.5)
    first, later = (learnt(make(target), n).covariance_state for n in (1, 4))
    assert np.all(first.num_skipped.numpy() == 0) and np.all(later.num_skipped.numpy() == 0)
    counts = [np.sum(s.averages[0].count.numpy() > 0, axis=-1) for s in (first, later)]
    assert np.all(counts[0] == 0) and np.all(counts[1] > 0)


@pytest.mark.parametrize("shared", [False, True])
def test_chains_have_minibatches_of_their_own_unless_shared(shared: bool) -> None:
    target = sgmcmc.GrowingBatch(MODEL.target(3, tf.float64, shared_batch=shared), 1.1, 4.0)
    gradient = target.estimate(tf.zeros([6, 3], tf.float64), tf.constant([0, 1])).gradient
    distinct = len(np.unique(np.round(gradient.numpy(), 9), axis=0))
    assert distinct == (1 if shared else 6)


@pytest.mark.thorough
def test_compiled_chain_grows_to_all_examples() -> None:
    """At temperature 0 the chain becomes exact gradient ascent, and ends in the posterior mode."""
    target = sgmcmc.GrowingBatch(MODEL.target(5, tf.float64), growth=1.3)
    kernel = sgmcmc.SGLD(target, step_size=0.08, temperature=0.0)

    one_step = tf.function(kernel.one_step, jit_compile=True, autograph=False)
    state = tf.zeros([7, 3], tf.float64)
    results, samples, sizes = kernel.bootstrap_results(state), [], []
    for t in range(120):
        state, results = one_step(state, results, tf.constant([0, t]))
        samples.append(state.numpy())
        sizes.append(results.target_state.size.numpy())
    expected = np.minimum(1.3 ** np.arange(1, 121), 12)
    np.testing.assert_allclose(sizes, expected)
    np.testing.assert_allclose(samples[-1], np.tile(MODEL.mean, [7, 1]), rtol=1e-9)
    assert np.ptp(samples[5], axis=0).min() > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(growth=0.9), "growth must be a factor of at least 1. Received: 0.9"),
        (dict(growth=float("nan")), "growth must be a factor of at least 1. Received: nan"),
        (dict(initial_size=0.5), "initial_size must be in 1 .. N = 12. Received: 0.5"),
        (dict(initial_size=13), "initial_size must be in 1 .. N = 12. Received: 13"),
    ],
)
def test_bad_arguments(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sgmcmc.GrowingBatch(MODEL.target(3), **options)


@pytest.mark.parametrize("reshuffle", ["epoch", "symmetric"])
def test_targets_that_draw_by_epochs_are_refused(reshuffle: str) -> None:
    with pytest.raises(ValueError, match=f"have reshuffle='step', .* reshuffle='{reshuffle}'"):
        sgmcmc.GrowingBatch(MODEL.target(3, reshuffle=reshuffle))


def test_sizes_are_not_raised_by_rounding() -> None:
    """1.1 * 100 is 110.00000000000001."""
    model = indicator_target(500, 1)
    target, state = (
        sgmcmc.GrowingBatch(model, growth=1.1, initial_size=100),
        tf.zeros([2], tf.float64),
    )
    carried = target.bootstrap(state)
    sizes = []
    for step in range(3):
        found = target.estimate(state, tf.constant([0, step]), carried)
        carried = found.target_state
        sizes.append(found.noise_scale.numpy())
    expected = [500**2 / n * (1 - n / 500) for n in (100, 110, 121)]
    np.testing.assert_allclose(sizes, expected, rtol=1e-9)
