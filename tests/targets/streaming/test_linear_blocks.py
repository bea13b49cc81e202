"""The short way of linear models to sums and remainders agrees with automatic differentiation."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.targets.streaming.block_sums import BlockDerivatives
from tfp_sgmcmc.targets.streaming.row_pool import pilot_mode
from tfp_sgmcmc.targets.streaming.row_remainders import Draws, LinearBlocks, RowRemainders

N, D = 40, 3
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=[N, D]), RNG.poisson(1.0, size=N).astype(np.float64)
THETA = np.array([0.2, -0.1, 0.3])
LIKE = tf.zeros([D], tf.float64)


def log_prob(eta: Any, y: Any) -> Any:
    return y * eta - tf.exp(eta)


def target(linear: bool, x: np.ndarray = X, **options: Any) -> sgmcmc.MinibatchLogProb:
    likelihood: Any = sgmcmc.LinearModel(log_prob)
    if not linear:
        likelihood = lambda w, batch: log_prob(tf.linalg.matvec(batch[0], w), batch[1])  # noqa: E731
    return sgmcmc.MinibatchLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1), likelihood, (x, Y), 10, **options
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
        sums, norms = derivatives.with_norms(remainders)((X, Y), weights)
        alone = derivatives.at(THETA)((X, Y), weights)
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


MANY = 80
WIDE = RNG.normal(size=[N, MANY]) / MANY**0.5


@pytest.mark.parametrize(
    ("is_flat", "jit_compile"),
    [(False, False), (True, False), pytest.param(False, True, marks=pytest.mark.thorough)],
)
def test_hessians_of_many_features_are_whitened_where_a_direction_is_flat(
    is_flat: bool, jit_compile: bool
) -> None:
    """By random directions, the lengths of rows are right within 60 % and on average."""
    factor = np.tril(np.full([MANY, MANY], 0.01)) + np.eye(MANY)
    if is_flat:
        factor[-1, 0] = 1e6
        factor /= 1e6
    x, weights, like = WIDE, RNG.random(N), tf.zeros([MANY], tf.float64)
    theta, found = RNG.normal(size=MANY), []
    for linear in (True, False):
        model = target(linear, x)
        derivatives = BlockDerivatives(model, like, N, True, jit_compile)
        at = RowRemainders(model, tf.constant(theta), factor, tf.constant([0, 1]), jit_compile)
        sums, norms = derivatives.with_norms(at)((x, Y), weights)
        assert (sums.factor is not None) == (is_flat or not linear)
        sums = sums if is_flat else sums.not_whitened()
        found.append((sums, norms, at.moments((x, Y))))
    (sums, norms, moments), (expected, lengths, others) = found
    np.testing.assert_allclose(moments.norms, norms, rtol=1e-7)
    for one, other in zip((*sums[:3], *moments[1:]), (*expected[:3], *others[1:]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9 * np.abs(other).max())
    if is_flat:
        np.testing.assert_allclose(norms, lengths, rtol=1e-7)
    else:
        assert np.abs(np.log(norms / lengths)).max() < np.log(1.6)
        assert abs(np.mean((norms / lengths) ** 2) - 1) < 0.15


def test_without_a_flat_direction_a_block_takes_one_product_of_matrices_less() -> None:
    """A product of matrices multiplies the root of the product of all three sizes of numbers.

    Both multiply the rows by the center, eight draws and slopes, and the Hessian takes N D^2. The
    rows are also multiplied by 16 directions, or by L.
    """
    counts, like = [], tf.zeros([MANY], tf.float64)
    blocks = LinearBlocks(target(True, WIDE), like)
    for slope in (0.0, 1e8):  # with the second, the last direction is flat
        factor = np.eye(MANY)
        factor[-1, 0] = slope
        at = Draws.all_at(np.zeros(MANY), factor, tf.float64)
        args = at.stacked, (tf.constant(WIDE), tf.constant(Y)), tf.ones([N], tf.float64)
        graph = (
            tf.function(blocks.sums_and_norms, autograph=False).get_concrete_function(*args).graph
        )
        products = [op for op in graph.get_operations() if op.type in ("MatMul", "BatchMatMulV2")]
        counts.append(
            sum(
                np.prod([float(x.shape.num_elements()) for x in (*op.inputs, *op.outputs)]) ** 0.5
                for op in products
            )
        )
    expected = [N * MANY * (10 + directions) + N * MANY**2 for directions in (16, MANY)]
    np.testing.assert_allclose(counts, expected)
