"""Models that compute in half precision, with weights and chains in single precision.

Each rounding to bfloat16 or float16 has a relative error of at most u = 2^-8 or 2^-11. For a model
with one dense layer, the tests bound the resulting errors of the scores to first order in u.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.keras import small_models
from tfp_sgmcmc.covariance.factored_scores import FactoredScores
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.log_prob import ModelLogProb

N, B, EPS = 24, 8, 0.01
RNG = np.random.default_rng(0)
X = RNG.normal(size=[B, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[B])
ROUNDING = {"mixed_bfloat16": 2.0**-8, "mixed_float16": 2.0**-11}
MIXED = pytest.mark.parametrize("policy", fast_settings(ROUNDING, "mixed_float16"))


def classifier(policy):
    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense(4, bias_initializer="normal", dtype=policy)
    return small_models.sequential(dense)


def sampler(make_kernel_fn):
    prior = small_models.standard_normal()
    given = {"check_num_examples": False, "independent_batches": False}
    return small_models.sampler(make_kernel_fn, N, prior, **given)


def scores(kernel, bias):
    """Returns gradients of each log likelihood by the kernel, `[B, 3, 4]`, and by the bias."""
    probabilities = tf.nn.softmax(X.astype(np.float64) @ kernel + bias).numpy()
    delta = np.eye(4)[Y] - probabilities
    return X[:, :, None] * delta[:, None, :], delta


def score_bounds(kernel, bias, u):
    """Bounds the errors of `scores` if operands, products, logits and deltas are rounded."""
    logits = 4 * u * (np.abs(X) @ np.abs(kernel) + np.abs(bias))
    _, delta = scores(kernel, bias)
    # A softmax changes by at most half as much as its logits.
    of_delta = 0.5 * logits.max(axis=1, keepdims=True) + 2 * u * np.abs(delta)
    of_products = of_delta + 2 * u * np.abs(delta)
    return np.abs(X)[:, :, None] * of_products[:, None, :], of_delta


def estimate(policy, num_examples=N):
    model, batch = classifier(policy), (tf.constant(X), tf.constant(Y), None)
    internals.build(model, *batch)
    target = ModelLogProb(model, num_examples, lambda state: tf.zeros([]), batch)
    state = [tf.constant(w) for w in model.get_weights()]
    return model.get_weights(), target.estimate(state, seed=tf.constant([0, 0]))


@MIXED
def test_gradient_is_rounded_and_no_more(policy):
    weights, got = estimate(policy)
    _, single = estimate("float32")
    bounds = score_bounds(*weights, ROUNDING[policy])
    for g, s, exact, bound in zip(
        got.gradient, single.gradient, scores(*weights), bounds, strict=True
    ):
        assert g.dtype == tf.float32
        error = np.abs(g - N / B * exact.sum(axis=0))
        assert np.all(error <= N / B * bound.sum(axis=0))
        # Controls: half precision was used, and the bound is not wide.
        assert error.max() > 1e-5 > np.abs(s - N / B * exact.sum(axis=0)).max()
        assert np.all(bound.sum(axis=0) < 0.5 * np.abs(exact).sum(axis=0))


@MIXED
def test_many_examples_do_not_overflow(policy):
    """The gradient of N = 24e6 examples is above 65504, the largest number of float16."""
    (_, few), (_, many) = estimate(policy), estimate(policy, 10**6 * N)
    for a, b in zip(few.gradient, many.gradient, strict=True):
        np.testing.assert_allclose(b, 1e6 * a, rtol=1e-5)
    assert max(np.abs(g).max() for g in many.gradient) > 65504
    for a, b in zip(few.scores, many.scores, strict=True):
        a, b = (s.rows() if isinstance(s, FactoredScores) else s for s in (a, b))
        np.testing.assert_allclose(b, a, rtol=2 * ROUNDING[policy], atol=1e-6)


@MIXED
def test_scores_are_rounded_and_no_more(policy):
    weights, got = estimate(policy)
    bounds = score_bounds(*weights, ROUNDING[policy])
    for rows, exact, bound in zip(got.scores, scores(*weights), bounds, strict=True):
        if isinstance(rows, FactoredScores):
            # A standard deviation is a norm of centred scores, so errors add up at most.
            deviations, variances = exact.std(axis=0, ddof=1), rows.variances()
            error = np.abs(np.sqrt(variances) - deviations.reshape(-1))
            assert np.all(error <= np.linalg.norm(bound, axis=0).reshape(-1) / (B - 1) ** 0.5)
            rows = rows.rows()
        assert rows.dtype == tf.float32
        assert np.all(np.abs(rows - exact) <= bound)


@MIXED
def test_noise_and_state_are_single(policy):
    """A step at temperature 1 minus one at 0 is sqrt(eps) z, with z drawn in float32."""
    runs = []
    for temperature in (0.0, 1.0):
        model = classifier(policy)
        initial = [tf.constant(w) for w in model.get_weights()]
        callback = sampler(small_models.sgld(EPS, temperature))
        small_models.fit(model, callback, X, Y, batch_size=B)
        runs.append(callback)
    seed = sgmcmc.random.fold_in(sgmcmc.random.as_seed(0), 0)
    noise = sgmcmc.random.normal_like(initial, sgmcmc.random.split(seed, 3)[1])
    for still, noisy, z in zip(runs[0].samples, runs[1].samples, noise, strict=True):
        assert noisy.dtype == np.float32
        np.testing.assert_allclose(noisy[0], still[0] + np.sqrt(EPS) * z, rtol=1e-6, atol=1e-7)
        rounded = tf.cast(tf.cast(z, tf.bfloat16), tf.float32)
        control = np.abs(noisy[0] - (still[0] + np.sqrt(EPS) * rounded))
        assert control.max() > 1e-5
    results = tf.nest.flatten(runs[1].recorder.chain.state.results)
    assert {x.dtype for x in results if x.dtype.kind != "i"} == {np.dtype(np.float32)}


@pytest.mark.thorough
def test_covariance_is_kept_in_single_precision():
    callback = sampler(lambda target: sgmcmc.SGHMC(target, EPS, covariance="diag"))
    model = classifier("mixed_bfloat16")
    model.fit(X, Y, batch_size=B, verbose=0, callbacks=[callback])
    results = tf.nest.flatten(callback.recorder.chain.state.results)
    assert {x.dtype for x in results if x.dtype.kind != "i"} == {np.dtype(np.float32)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_in_half_precision_are_refused(dtype):
    with pytest.raises(
        ValueError, match=f"kernel must be .*Received: {dtype}.*policy 'mixed_{dtype}'"
    ):
        sampler(small_models.sgld(EPS)).set_model(classifier(dtype))
