"""Posteriors whose chains are put side by side."""

import keras
import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models

X = np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], np.float32)


def draws(num_kept, *chains, seed=0):
    return [np.random.default_rng(seed).normal(size=[num_kept, *chains, 3, 4]).astype(np.float32)]


def test_predictions_are_means_over_all_chains():
    model = small_models.linear(jit_compile=False)
    one = small_models.posterior_of(model, draws(6))
    two = small_models.posterior_of(model, draws(6, 2, seed=1), num_chains=2)
    both = sgmcmc.keras.Posterior.concatenate([one, two])
    assert both.num_chains == 3 and len(both) == 6
    np.testing.assert_array_equal(both.samples[0][:, 0], one.samples[0])
    np.testing.assert_array_equal(both.samples[0][:, 1:], two.samples[0])
    expected = (one.predict(X).mean + 2 * two.predict(X).mean) / 3
    np.testing.assert_allclose(both.predict(X).mean, expected, rtol=1e-5)
    outputs = both.outputs(X)
    np.testing.assert_array_equal(outputs[:, 1:], two.outputs(X))


def test_weights_are_kept():
    model, weights = small_models.linear(), np.arange(1.0, 5.0)
    parts = [
        sgmcmc.keras.Posterior(model, model.trainable_variables, draws(4, seed=i), None, weights)
        for i in range(2)
    ]
    both = sgmcmc.keras.Posterior.concatenate(parts)
    np.testing.assert_array_equal(both.weights, weights)
    means = [part.predict(X).mean for part in parts]
    np.testing.assert_allclose(both.predict(X).mean, np.mean(means, axis=0), rtol=1e-5)


def test_what_does_not_fit_is_refused():
    model, other = small_models.linear(), small_models.linear()
    one = small_models.posterior_of(model, draws(4))
    affine = keras.Sequential([keras.Input([3]), keras.layers.Dense(4)])
    kernel = sgmcmc.keras.Posterior(affine, affine.trainable_variables[:1], draws(4))
    bias = sgmcmc.keras.Posterior(affine, affine.trainable_variables[1:], [np.ones([4, 4], "f4")])
    weighted = one.with_samples(one.samples, [1.0, 2.0, 3.0, 4.0])
    for given, error, words in (
        ([], ValueError, "at least one Posterior"),
        ([one, 3], TypeError, "Received: an int at place 1"),
        ([one, small_models.posterior_of(other, draws(4))], ValueError, "one model.*load"),
        ([kernel, bias], ValueError, "same variables.*kernel.*bias"),
        ([one, small_models.posterior_of(model, draws(5))], ValueError, "equally many.*4, 5"),
        ([one, weighted], ValueError, "weight their samples alike.*place 1"),
    ):
        with pytest.raises(error, match=words):
            sgmcmc.keras.Posterior.concatenate(given)
