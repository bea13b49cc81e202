"""The reducer of the Stein discrepancy: the states that it keeps, and its mean.

The false-alarm rate is 1e-6 a test. The tests state their powers.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.diagnostics.folds import fold
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.statistics import Rejected, check_means
from tfp_sgmcmc.diagnostics import KernelSteinDiscrepancyReducer, squared_kernel_stein_discrepancy
from tfp_sgmcmc.diagnostics.stein import estimate_at

MODEL = GaussianMean(num_examples=12)
NORMAL = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))


def thinned(num_steps: int, size: int, every: int) -> np.ndarray:
    """Returns indices of the states kept: every k-th, with k doubled until they fit."""
    while num_steps // every > size:
        every *= 2
    return np.arange(every, num_steps + 1, every) - 1


M = np.array([[2.0, 0.3, -0.5], [0.3, 1.0, 0.2], [-0.5, 0.2, 0.4]])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(dict(size=40), marks=pytest.mark.thorough),
        dict(size=30, statistic="V"),
        dict(size=7, every=2, preconditioner=M, scale=1.3, exponent=-0.4),
        dict(size=2),
        dict(size=16, gradient_fn=lambda results: results),
    ],
    ids=["not full", "V", "halved often", "least", "given gradients"],
)
def test_it_is_the_function_of_the_thinned_chain(options: dict[str, Any]) -> None:
    """The buffer is not full, halved once or often, and of odd or even size."""
    reducer = KernelSteinDiscrepancyReducer(
        lambda a, b: -0.25 * a**4 - 0.5 * tf.reduce_sum(b**2, axis=-1), **options
    )
    x = np.random.default_rng(0).standard_normal([40, 2, 3])
    gradients = np.concatenate([-(x[..., :1] ** 3), -x[..., 1:]], axis=-1)

    def parts(x: np.ndarray) -> list[tf.Tensor]:
        return [tf.constant(x[..., 0]), tf.constant(x[..., 1:])]

    own, advance = reducer.initialize(parts(x[0])), tf.function(reducer.one_step, autograph=False)
    for state, gradient in zip(x, gradients, strict=True):
        own = advance(parts(state), own, parts(gradient))
    kept = thinned(40, options["size"], options.get("every", 1))
    names = options.keys() - {"size", "every", "gradient_fn"}
    expected = squared_kernel_stein_discrepancy(
        x[kept], gradients[kept], chain_ndims=1, **{k: options[k] for k in names}
    )
    np.testing.assert_allclose(reducer.finalize(own), expected, rtol=1e-10, atol=1e-13)


def test_at_any_time_the_states_are_evenly_spread() -> None:
    for size, every in ((5, 1), (6, 3)):
        reducer = KernelSteinDiscrepancyReducer(NORMAL, size, every=every)
        advance = tf.function(reducer.one_step, autograph=False)
        own = reducer.initialize(tf.zeros([1]))
        assert np.isnan(reducer.finalize(own))
        for step in range(1, 41):
            own = advance(tf.constant([float(step)]), own)
            kept = thinned(step, size, every) + 1
            assert int(own.num_kept) == len(kept)
            np.testing.assert_array_equal(own.samples[: len(kept), 0], kept)
            np.testing.assert_array_equal(own.gradients[: len(kept), 0], -kept)
            assert len(kept) >= min(size // 2, step // every)


@pytest.mark.thorough
def test_each_state_has_a_minibatch_of_its_own() -> None:
    target = MODEL.target(4, dtype=tf.float64)
    state = tf.constant(np.tile(MODEL.mean, [2, 1]))
    reducer = KernelSteinDiscrepancyReducer(target, 10, seed=3)
    advance = tf.function(reducer.one_step, autograph=False)
    own = reducer.initialize(state)
    for _ in range(10):
        own = advance(state, own)
    rows = own.gradients.numpy().reshape(20, 3)
    assert len(np.unique(rows.round(9), axis=0)) > 15
    expected = squared_kernel_stein_discrepancy(own.samples, own.gradients, chain_ndims=1)
    np.testing.assert_allclose(reducer.finalize(own), expected)


@pytest.mark.slow
def test_with_reductions_in_sample_chain() -> None:
    reducer = KernelSteinDiscrepancyReducer(NORMAL, 8)
    kernel = tfp.experimental.mcmc.WithReductions(sgmcmc.SGLD(NORMAL, 1.0), reducer)

    @tf.function(jit_compile=True, autograph=False)
    def run(seed: tf.Tensor) -> Any:
        states, _, last = tfp.mcmc.sample_chain(
            20,
            tf.zeros([2, 3]),
            kernel=kernel,
            trace_fn=lambda *_: (),
            return_final_kernel_results=True,
            seed=seed,
        )
        return states, reducer.finalize(last.reduction_results)

    states, found = run(tf.constant([0, 1]))
    x = states.numpy()[thinned(20, 8, 1)]
    expected = squared_kernel_stein_discrepancy(x, -x, chain_ndims=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


NUM_CHAINS, SIZE = 8000, 25


@pytest.mark.slow
def test_of_a_biased_chain_it_is_larger() -> None:
    """The mean is zero for exact draws, S^2 of the law for others. An error of 25 % is found.

    A step of 2 takes SGLD on N(0, 1) to theta' = (2 T)^1/2 z from anywhere. So the draws are
    independent, from N(0, 2) at T = 1 and from the target at T = 1/2. S^2 is found by quadrature.
    """
    biased, exact = (
        fold(
            sgmcmc.SGLD(NORMAL, 2.0, temperature),
            tf.zeros([NUM_CHAINS, 1]),
            60,
            KernelSteinDiscrepancyReducer(NORMAL, SIZE),
        )
        for temperature in (1.0, 0.5)
    )
    grid = np.linspace(-10, 10, 401)[:, np.newaxis]
    expected = squared_kernel_stein_discrepancy(
        grid, -grid, weights=np.exp(-(grid[:, 0] ** 2) / 4), statistic="V"
    ).numpy()
    assert expected > 0.05
    check_means(exact, [0.0], 0.25 * expected)
    check_means(biased, [expected], 0.25 * expected)
    with pytest.raises(Rejected):
        check_means(biased, [0.0], 0.25 * expected)


def test_bad_input() -> None:
    for bad, match in (
        (dict(size=1), "size must be at least 2. Received: 1"),
        (dict(every=0), "every must be at least 1. Received: 0"),
    ):
        with pytest.raises(ValueError, match=match):
            KernelSteinDiscrepancyReducer(NORMAL, **{"size": 4, **bad})
    for bad, match in (
        (dict(scale=0.0), "scale must be a positive finite number. Received: 0"),
        (dict(statistic="W"), "statistic must be 'U' or 'V'. Received: 'W'"),
        (dict(preconditioner=np.eye(2)), r"must have shape \[3, 3\]. Received: \(2, 2\)"),
    ):
        with pytest.raises(ValueError, match=match):
            KernelSteinDiscrepancyReducer(NORMAL, 4, **bad).initialize(tf.zeros([3]))


@pytest.mark.parametrize("reshuffle", ["step", "epoch", "symmetric"])
def test_another_minibatch_is_not_the_next_of_the_chain(reshuffle: str) -> None:
    """The state of a target with epochs names its next minibatch, whatever the seed."""
    target = sgmcmc.MinibatchLogProb(
        lambda x: 0.0 * x,
        lambda x, batch: x[..., None] * batch,
        np.arange(20, dtype=np.float32) ** 2,
        5,
        reshuffle=reshuffle,
    )
    state, kernel = tf.constant(0.0), sgmcmc.SGLD(target, 1e-3)
    results, seed, zero = kernel.bootstrap_results(state), [0, 7], tf.constant(0, tf.int64)
    first = estimate_at(target, state, seed, zero, results)[1]
    for step in range(2):
        _, results = kernel.one_step(state, results, seed=[1, step])
        assert estimate_at(target, state, seed, zero, results)[1] == first
    others = [estimate_at(target, state, [0, i], zero, results)[1].numpy() for i in range(5)]
    assert len({*others}) > 1
