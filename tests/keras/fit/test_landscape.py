"""What the pilot of `SamplerCallback("auto")` measures, against closed forms."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import small_models
from tests.keras.fit.small_auto import D, N, X, Y, auto, quietly, regression
from tests.keras.small_models import unit_normal
from tfp_sgmcmc.keras.fit import landscape, pilot


def surveyed(model, callback, batch_size=12, epochs=4):
    """Returns what the pilot measured, and the weights where it did."""
    seen = {}
    survey = pilot.survey

    def remember(chain, views, state, *arguments):
        seen["weights"] = [x.numpy() for x in state]
        seen["landscape"] = survey(chain, views, state, *arguments)
        return seen["landscape"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pilot, "survey", remember)
        quietly(model, callback, batch_size=batch_size, epochs=epochs)
    return seen["landscape"], seen["weights"]


class TestLandscape:
    def test_a_linear_regression_has_its_closed_form(self):
        """H = X^T X + I, and V is the sample covariance of the scores. All examples are seen."""
        found, (weights,) = surveyed(regression(), auto())
        scale = found.scale[0].ravel().astype(np.float64)
        root = np.sqrt(scale)
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
        shown, measured = (landscape._normalised(r) for r in np.array_split(rows, 2))
        directions = landscape._leading(shown)
        np.testing.assert_allclose(directions @ directions.T, np.eye(len(directions)), atol=1e-9)
        assert np.mean(np.sum((measured @ directions.T) ** 2, axis=0)) < 1.5
        assert np.sum((shown @ directions[0]) ** 2) > 5  # negative control

    def test_without_second_derivatives_the_noise_stands_for_the_curvature(self):
        @tf.custom_gradient
        def once(x):
            return tf.identity(x), lambda upstream: tf.raw_ops.PreventGradient(input=upstream)

        model = small_models.sequential(
            keras.layers.Dense(1), keras.layers.Lambda(once), loss=unit_normal, inputs=D
        )
        callback = auto()
        found, _ = surveyed(model, callback)
        assert not found.has_hessian and found.largest_curvature == N * found.noise.max()
        assert "no second derivatives" in str(callback.choices)
