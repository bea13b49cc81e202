"""RMSprop follows its formulas, from the first steps on.

s_t = 1 + decay s_{t-1},  V_t = V_{t-1} + ((g / N)^2 - V_{t-1}) / s_t,  M = 1 / (epsilon + sqrt V)
"""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.harness.matrices import divergence_by_differences, explicit
from tfp_sgmcmc.preconditioners import GradientInfo, LocalMatrix, RMSprop, SquaredGradients

GENERATOR = np.random.default_rng(0)
TOTAL = 20  # N


class FromZero(RMSprop):
    """The scheme of Li et al. with div M: V_t = decay V + (1 - decay) (g / N)^2, V_0 = 0."""

    def init(self, state: Any) -> SquaredGradients:
        return super().init(state)._replace(size=tf.constant(1 / (1 - self.decay), state.dtype))


def info(gradient: Any, curvature: float = -1.0) -> GradientInfo:
    """Returns the information of a step if the Hessian is `curvature` times the identity."""
    gradient = tf.convert_to_tensor(gradient)
    probe = tf.ones_like(gradient)
    return GradientInfo(gradient, TOTAL, probe, curvature * probe)


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_average_and_matrix(decay: float) -> None:
    """V_t is the mean of the squares so far with weights decay^age; V_1 is the first square."""
    preconditioner = RMSprop(decay, epsilon=0.1, gamma=False)
    state = tf.zeros([2], tf.float64)
    own, gradients = preconditioner.init(state), GENERATOR.standard_normal([4, 2]) * 50
    for t in range(1, 5):
        matrix, own = preconditioner.evaluate(state, 0, own, info(gradients[t - 1]))
        weights = decay ** np.arange(t - 1.0, -1.0, -1.0)
        expected = weights @ (gradients[:t] / TOTAL) ** 2 / weights.sum()
        np.testing.assert_allclose(own.average, expected)
        np.testing.assert_allclose(own.size, weights.sum())
        scale = 1 / (0.1 + np.sqrt(expected))
        np.testing.assert_allclose(explicit(matrix.multiply, np.zeros(2)), np.diag(scale))
        root = explicit(matrix.sqrt_multiply, np.zeros(2))
        np.testing.assert_allclose(root, np.diag(np.sqrt(scale)))
        assert matrix.divergence is None


@pytest.mark.parametrize("steps", ["settled", "long"])
@pytest.mark.parametrize("decay", [0.0, 0.7, 0.99])
@pytest.mark.parametrize(
    "hessian", [[[-3.0]], np.diag([-3.0, -20.0]), [[-30.0, 8.0], [8.0, -10.0]]]
)
def test_divergence(hessian: Any, decay: float, steps: str) -> None:
    """Tests div M for g(theta) = H theta + b, with V_{t-1} held fixed.

    With a diagonal Hessian every probe gives div M. With any other, the mean over all probes, which
    are equally likely, gives it.
    """
    hessian = np.array(hessian)
    size = len(hessian)
    theta, shift = GENERATOR.standard_normal(size), GENERATOR.standard_normal(size)
    share = 0.65 if steps == "settled" else 1.0  # of the final sum of the weights, 1 / (1 - decay)
    own = SquaredGradients(
        tf.constant(GENERATOR.uniform(0.5, 2.0, size)), tf.constant(share / (1 - decay), tf.float64)
    )
    preconditioner = RMSprop(decay, epsilon=0.1)
    assert preconditioner.needs_curvature

    def evaluate(theta: np.ndarray, probe: Any) -> LocalMatrix:
        gradient, probe = hessian @ theta + shift, np.array(probe)
        learnt = GradientInfo(
            tf.constant(gradient), TOTAL, tf.constant(probe), tf.constant(hessian @ probe)
        )
        return preconditioner.evaluate(tf.constant(theta), 0, own, learnt)[0]

    probes = list(itertools.product([-1.0, 1.0], repeat=size))
    estimates = np.array([evaluate(theta, probe).divergence for probe in probes])
    expected = divergence_by_differences(lambda x: evaluate(x, probes[0]).multiply, theta)
    np.testing.assert_allclose(estimates.mean(axis=0), expected, rtol=1e-5)
    if np.all(hessian == np.diag(np.diag(hessian))):
        np.testing.assert_allclose(estimates, np.tile(expected, [len(probes), 1]), rtol=1e-5)


@pytest.mark.parametrize(("decay", "first"), [(0.0, 1), (0.5, 2), (0.9, 10), (0.99, 100)])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_divergence_is_left_out_of_the_first_steps(decay: float, first: int, dtype: Any) -> None:
    """div M is used from the first t with decay^t <= 1/e, which is 1 / (1 - decay) here."""
    assert decay**first <= np.exp(-1) < decay ** (first - 1)
    preconditioner, state = RMSprop(decay), tf.ones([1], dtype)
    own = preconditioner.init(state)
    for t in range(1, first + 2):
        matrix, own = preconditioner.evaluate(state, 0, own, info(state))
        assert (float(matrix.divergence[0]) != 0) == (t >= first)


@pytest.mark.parametrize("decay", [0.9, 0.99])
def test_young_averages_bound_the_drift(decay: float) -> None:
    """|M g| <= N sqrt(s_t) even for tiny gradients. With V_0 = 0, div M would explode."""
    smallness = np.geomspace(1e-6, 1.0, 7)

    def drifts(preconditioner: RMSprop) -> np.ndarray:
        state = tf.constant(smallness)
        own = preconditioner.init(state)
        kept = []
        for t in range(1, round(1 / (1 - decay))):
            learnt = info(smallness * np.cos(7.0 * t), curvature=-100.0)
            matrix, own = preconditioner.evaluate(state, 0, own, learnt)
            kept.append(matrix.multiply(learnt.gradient) + matrix.divergence)
        return np.abs(kept)

    sizes = np.cumsum(decay ** np.arange(round(1 / (1 - decay)) - 1.0))
    bound = TOTAL * np.sqrt(sizes)[:, np.newaxis]
    assert np.all(drifts(RMSprop(decay, epsilon=1e-9)) <= bound * (1 + 1e-9))
    assert np.any(drifts(FromZero(decay, epsilon=1e-9)) > 1e6 * bound)


def test_at_a_zero_gradient_all_is_finite() -> None:
    preconditioner, zero = RMSprop(decay=0.0, epsilon=0.5), tf.zeros([2])
    matrix, _ = preconditioner.evaluate(zero, 0, preconditioner.init(zero), info(zero))
    np.testing.assert_array_equal(matrix.divergence, [0.0, 0.0])
    np.testing.assert_array_equal(matrix.multiply(tf.ones([2])), [2.0, 2.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": 1.0}, r"decay must be a number in \[0, 1\). Received: 1.0"),
        ({"epsilon": 0.0}, "epsilon must be a positive finite number. Received: 0.0"),
        ({"epsilon": float("nan")}, "epsilon must be a positive finite number. Received: nan"),
    ],
)
def test_bad_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RMSprop(**arguments)


def test_half_precision_forgets_as_slowly_as_single_precision() -> None:
    """In `bfloat16` 0.999 is 1, and 256 + 1 is 256."""
    sizes = []
    for dtype in (tf.float32, tf.bfloat16):
        preconditioner, state = RMSprop(0.999), tf.ones([1], dtype)
        own = preconditioner.init(state)._replace(size=tf.constant(900.0))
        matrix, own = preconditioner.evaluate(state, 0, own, info(state))
        assert matrix.divergence.dtype == dtype == own.average.dtype
        sizes.append(float(own.size))
    np.testing.assert_allclose(sizes, 900.1, rtol=1e-5)
