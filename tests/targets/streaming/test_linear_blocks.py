"""The short way of linear models to sums and remainders agrees with automatic differentiation."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.targets.streaming.block_sums import BlockDerivatives
from tfp_sgmcmc.targets.streaming.row_pool import pilot_mode
from tfp_sgmcmc.targets.streaming.row_remainders import RowRemainders

N, D = 40, 3
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=[N, D]), RNG.poisson(1.0, size=N).astype(np.float64)
THETA = np.array([0.2, -0.1, 0.3])
LIKE = tf.zeros([D], tf.float64)


def log_prob(eta: Any, y: Any) -> Any:
    return y * eta - tf.exp(eta)


def target(linear: bool, **options: Any) -> sgmcmc.MinibatchLogProb:
    likelihood: Any = sgmcmc.LinearModel(log_prob)
    if not linear:
        likelihood = lambda w, batch: log_prob(tf.linalg.matvec(batch[0], w), batch[1])  # noqa: E731
    return sgmcmc.MinibatchLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1), likelihood, (X, Y), 10, **options
    )


@pytest.mark.parametrize("affine", [False, True])
def test_sums_and_remainders_are_those_of_automatic_differentiation(affine: bool) -> None:
    """Weights that are an affine function of the state have another Jacobian than the rows."""
    scale = tf.constant([2.0, 0.5, 1.5], tf.float64)
    shift = tf.constant([0.1, 0.2, -0.3], tf.float64)
    bijector = tfp.bijectors.Shift(shift)(tfp.bijectors.Scale(scale)) if affine else None
    factor = np.tril(RNG.normal(size=[D, D])) / 3
    weights, found = RNG.random(N), []
    for linear in (True, False):
        model = target(linear, bijector=bijector)
        derivatives = BlockDerivatives(model, LIKE, N, True, jit_compile=False)
        center = tf.constant(THETA)
        remainders = RowRemainders(model, center, factor, tf.constant([0, 1]), False)
        sums, norms = derivatives.with_norms(remainders, (X, Y), weights)
        alone = derivatives(THETA, (X, Y), weights)
        found.append((*sums[:3], norms, *alone[:3], *remainders.moments((X, Y))))
    assert np.ptp(found[1][3]) > 0.01
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


def test_the_mode_of_a_sample_is_found_from_afar() -> None:
    """The rows stand for four times as many. The search agrees with `find_center`."""
    found = []
    for linear in (True, False):
        model = target(linear)
        derivatives = BlockDerivatives(model, LIKE, 16, True, jit_compile=False)  # not a divisor
        start = tf.constant([3.0, -3.0, 3.0], tf.float64)
        found.append(pilot_mode(model, (X, Y), 4 * N, start, derivatives))
    (mode, precision), (expected, _) = found
    deviations = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert (np.abs(mode - expected) / deviations).max() < 0.2
    rate = np.exp(X @ mode)
    np.testing.assert_allclose(precision, np.eye(D) + 4 * (X.T * rate) @ X, rtol=1e-9)
