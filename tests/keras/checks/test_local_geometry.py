"""Measured curvature and gradient noise, against closed forms."""

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.adaptation.small_auto import D, N, X, Y, regression
from tests.keras.small_models import unit_normal
from tfp_sgmcmc import random
from tfp_sgmcmc.keras.adaptation import network_settings
from tfp_sgmcmc.keras.chain.chain import Chain
from tfp_sgmcmc.keras.chain.collection import Collection
from tfp_sgmcmc.keras.checks import local_geometry
from tfp_sgmcmc.keras.data.training_data import Source
from tfp_sgmcmc.keras.model import internals
from tfp_sgmcmc.keras.model.priors import as_log_prior


def measured(model, scale):
    """Returns the geometry at the model's weights with this diagonal preconditioner."""
    internals.build(model, X[:2], Y[:2], None)
    prior = as_log_prior(small_models.standard_normal(), model)
    seed, collection = random.as_seed(0), Collection(0)
    chain = Chain(model, lambda target: sgmcmc.SGLD(target, 1.0), N, prior, collection, seed)
    source = Source("arrays", N, 12, 10, (X, Y, None))
    compiled = local_geometry.CompiledGradients(chain)
    return local_geometry.measure_geometry(chain, compiled, source, 12, [scale])


class TestLocalGeometry:
    def test_a_linear_regression_has_its_closed_form(self):
        """H = X^T X + I, and V is the sample covariance of the scores. All examples are seen."""
        model, scale = regression(), np.float32([[0.5], [1.0], [3.0]])
        found, (weights,) = measured(model, scale), model.get_weights()
        root = np.sqrt(scale.ravel().astype(np.float64))
        x = X.astype(np.float64)
        hessian = root[:, None] * (x.T @ x + np.eye(D)) * root
        noise = root[:, None] * np.cov((x * (Y - x @ weights)).T) * root
        values, vectors = np.linalg.eigh(noise)
        np.testing.assert_allclose(found.noise, values[::-1], rtol=1e-3)
        np.testing.assert_allclose(np.abs(found.directions), np.abs(vectors.T[::-1]), atol=1e-3)
        np.testing.assert_allclose(found.mean_noise, np.trace(noise) / D, rtol=1e-4)
        np.testing.assert_allclose(
            found.noise_of_diagonal, found.directions**2 @ np.diag(noise), rtol=1e-3
        )
        along = np.einsum("ki,ij,kj->k", found.directions, hessian, found.directions)
        np.testing.assert_allclose(found.curvature, along, rtol=1e-4)
        assert np.isclose(found.largest_curvature, np.linalg.eigvalsh(hessian)[-1], rtol=1e-4)
        assert np.isclose(found.prior_curvature, np.median(scale), rtol=1e-5)
        assert found.has_hessian

    def test_directions_of_few_gradients_are_measured_by_others(self):
        """Pure noise in 200 dimensions has no direction that is hotter than others.

        The largest eigenvalue of a sample covariance of 40 rows is about (1 + sqrt(200/40))^2 = 10
        times too large. The mean of 20 chi-square ratios with 40 degrees of freedom exceeds 1.5
        with probability below 1e-10.
        """
        rows = np.random.default_rng(1).normal(size=[80, 200])
        shown, measured = (local_geometry._normalised(r) for r in np.array_split(rows, 2))
        directions = local_geometry._leading(shown)
        np.testing.assert_allclose(directions @ directions.T, np.eye(len(directions)), atol=1e-9)
        assert np.mean(np.sum((measured @ directions.T) ** 2, axis=0)) < 1.5
        assert np.sum((shown @ directions[0]) ** 2) > 5  # negative control

    def test_without_second_derivatives_the_noise_stands_for_the_curvature(self):
        @tf.custom_gradient
        def once(x):
            return tf.identity(x), lambda upstream: tf.raw_ops.PreventGradient(input=upstream)

        model = small_models.sequential(
            keras.layers.Dense(1, use_bias=False),
            keras.layers.Lambda(once),
            loss=unit_normal,
            inputs=D,
        )
        found = measured(model, np.ones([D, 1], np.float32))
        assert not found.has_hessian and found.largest_curvature == N * found.noise.max()
        chosen = network_settings.choose(found, None, N, 12, 100, ())
        assert "no second derivatives" in str(chosen)
