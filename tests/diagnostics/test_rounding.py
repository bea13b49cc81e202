"""Rounding that decides on a log density is told from a log density that is smooth."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation.coordinates import whiten_at_mode
from tfp_sgmcmc.adaptation.draw_checks import flags_of_spacing
from tfp_sgmcmc.adaptation.target_arguments import as_problem
from tfp_sgmcmc.diagnostics.vector_functions import rounded_share

tfb = tfp.bijectors
PLACES = np.linspace(-10, 10, 11)


@pytest.mark.parametrize("dtype, told", [(np.float32, True), (np.float64, False)])
def test_a_factor_of_a_nearly_singular_matrix_is_rounding(dtype: type, told: bool) -> None:
    """A Gaussian process with 1e-10 on the diagonal, which float32 cannot add to 1."""

    def log_prob(log_length: np.ndarray) -> np.ndarray:
        scaled = (PLACES - PLACES[:, np.newaxis]) / np.exp(log_length[..., np.newaxis])
        covariance = np.exp(-(scaled**2) / 2) + 1e-10 * np.eye(11)
        factor = tf.linalg.cholesky(tf.constant(covariance, dtype)).numpy()
        return -(factor.sum(axis=-1) ** 2).sum(axis=-1) / 2

    rng = np.random.default_rng(0)
    draws = (np.log(6.0) + 0.2 * rng.standard_normal([500, 1])).astype(dtype)
    assert (rounded_share(log_prob, draws, rng) > 0.05) == told


def test_a_smooth_density_is_not() -> None:
    """Fifty entries of N(0, 1), in float32."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal([500, 50]).astype(np.float32)
    assert rounded_share(lambda x: -(x**2).sum(axis=-1) / 2, draws, rng) == 0


@pytest.mark.parametrize("dtype, told", [(np.float32, True), (np.float64, False)])
def test_draws_that_are_as_wide_as_some_numbers_are_moved_to_the_next_one(
    dtype: type, told: bool
) -> None:
    """Counts near 1e6, whose log likelihood is near 1e9. Chains stick to a few draws."""
    counts = np.random.default_rng(1).poisson(np.exp(14.0), 100).astype(dtype)

    def log_prob(log_rate: np.ndarray) -> np.ndarray:
        return (counts * log_rate - np.exp(log_rate)).sum(axis=-1, dtype=dtype)

    rng = np.random.default_rng(0)
    few = 14 + 1e-4 * rng.standard_normal([4, 1])
    assert (rounded_share(log_prob, np.repeat(few, 125, axis=0).astype(dtype), rng) > 0.05) == told


@pytest.mark.parametrize("dtype, told", [(np.float32, True), (np.float64, False)])
def test_draws_of_a_large_intercept_that_lie_on_few_numbers_are_told(
    dtype: type, told: bool
) -> None:
    """Near 1e5 float32 numbers are 0.0078 apart, 1.3 of the standard deviation of 0.006."""
    rng = np.random.default_rng(0)
    w = (np.array([1e5, 1.0]) + 0.006 * rng.standard_normal([500, 4, 2])).astype(dtype)
    problem = as_problem(lambda constant, w: tf.zeros([]))
    flags = flags_of_spacing({"constant": np.ones([500, 4, 1], dtype), "w": w}, problem)
    assert [flag.grade for flag in flags] == ["wrong"] * told
    assert not told or "w is too large for float32: near 100000 " in flags[0]
    assert not flags_of_spacing({"w": w[..., 1:]}, problem)
    assert not flags_of_spacing(w[:0], problem)


@pytest.mark.parametrize(
    "offset, dtype",
    [
        (1e6, np.float32),
        (1e6, np.float64),
        pytest.param(1e5, np.float32, marks=pytest.mark.thorough),
    ],
)
def test_a_posterior_between_two_numbers_is_refused_before_sampling(
    offset: float, dtype: type
) -> None:
    """A mean near 1e6 with the sd 0.01, where float32 numbers are 0.06 apart."""
    y = (offset + np.random.default_rng(0).standard_normal(10_000)).astype(dtype)
    target = sgmcmc.MinibatchLogProb(
        lambda mu, c: tf.zeros_like(mu) - 0.5 * c**2,
        lambda mu, c, batch: -0.5 * (batch - mu[..., tf.newaxis]) ** 2,
        y,
    )
    start = {"mu": tf.constant(0, dtype), "c": tf.constant(0, dtype)}
    if offset == 1e6 and dtype == np.float32:
        with pytest.raises(ValueError, match="mu is too large for float32: near 1e.06 its numbers"):
            whiten_at_mode(target, start)
    else:
        assert whiten_at_mode(target, start).kind == "hessian"


def test_parameters_that_are_constant_up_to_rounding_are_not() -> None:
    """The diagonal of a correlation matrix is 1; its bijector computes it, and rounds."""
    bijector = tfb.Chain([tfb.CholeskyOuterProduct(), tfb.CorrelationCholesky()])
    z = np.random.default_rng(0).standard_normal([500, 4, 3]).astype(np.float32)
    draws = bijector.forward(z).numpy()
    deviations = np.einsum("...ii->...i", draws).std(axis=(0, 1))
    assert 0 < deviations.max() < np.spacing(np.float32(1))
    assert not flags_of_spacing(draws, as_problem(lambda c: tf.zeros([]), bijector))
    # The same rounding is told where no bijector computes it.
    assert flags_of_spacing(draws, as_problem(lambda c: tf.zeros([])))


def test_a_draw_at_the_bound_of_a_parameter_is_left_out() -> None:
    """It is infinite without the bound, and made all others NaN."""
    draws = np.random.default_rng(0).standard_normal([400, 2]).astype(np.float32)
    draws[7, 0] = np.inf
    share = rounded_share(lambda x: -0.5 * (x**2).sum(axis=-1), draws, np.random.default_rng(0))
    assert share == 0.0
    draws[:] = np.inf
    assert rounded_share(lambda x: x[:, 0], draws, np.random.default_rng(0)) == 1.0
