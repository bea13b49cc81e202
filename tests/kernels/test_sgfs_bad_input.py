"""SGFS refuses what it cannot sample before the first step, and never returns NaN.

The matrix can be singular if no noise is injected (alpha = 0) or noise in proportion to V: with
constant or collinear features, or fewer scores than entries.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.thermostats import NoisyQuadratic
from tfp_sgmcmc.preconditioners import FullMatrix

MODEL = GaussianMean(num_examples=12)
TARGET = MODEL.target(5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "Either step_size or alpha .* Received: step_size=None, alpha=None"),
        (dict(step_size=0.1, alpha=2.0), ValueError, "Either .*: step_size=0.1, alpha=2.0"),
        (dict(step_size=0.0), ValueError, "step_size must be a positive finite .*: 0.0"),
        (dict(step_size="small"), TypeError, "step_size must be a number. Received: 'small'"),
        (dict(alpha=-1.0), ValueError, "alpha must be .* of at least 0.*: -1.0"),
        (dict(alpha=np.inf), ValueError, "alpha must be .* of at least 0.*: inf"),
        (dict(alpha=1.0, temperature=0.0), ValueError, "temperature must be a positive .*: 0.0"),
        (dict(alpha=1.0, B=0.0), ValueError, "B must be a positive finite number. Received: 0.0"),
        (dict(alpha=1.0, B=[1.0, -1.0]), ValueError, "B must be a positive finite .*: -1.0"),
        (
            dict(alpha=1.0, B="hessian"),
            ValueError,
            "B must be 'fisher', 'scaled_fisher', numbers or a FullMatrix",
        ),
        (dict(alpha=1.0, covariance="half"), ValueError, "covariance must be one of full, bl"),
        (
            dict(alpha=1.0, B=FullMatrix(np.eye(3)), covariance="diag"),
            ValueError,
            "must be 'full' if B is a FullMatrix. Received: covariance='diag'",
        ),
        (
            dict(alpha=1.0, B=FullMatrix(np.eye(3)), covariance="block"),
            ValueError,
            "must be 'full' if B is a FullMatrix. Received: covariance='block'",
        ),
    ],
)
def test_options(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        sgmcmc.SGFS(TARGET, **options)


@pytest.mark.parametrize(
    "target",
    [
        sgmcmc.FullDataLogProb(lambda x: -(x**2)),
        NoisyQuadratic(1.0, 0.5),
        sgmcmc.ControlVariate(TARGET, center=np.zeros([3], np.float32)),
    ],
    ids=lambda target: type(target).__name__,
)
def test_targets_without_a_fisher_matrix(target: sgmcmc.targets.Target) -> None:
    with pytest.raises(ValueError, match="scores of single .* covariance.* which gives none"):
        sgmcmc.SGFS(target, 0.1)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (MODEL.target(1), dict(alpha=1.0), "needs at least 2 scores .* Received: 1"),
        (TARGET, dict(alpha=1.0, covariance="block"), "'block', which has one block for each part"),
        (TARGET, dict(alpha=np.ones([4])), r"alpha must be a scalar, or .*: shape \(4,\)"),
        (TARGET, dict(step_size=[0.1, 0.1, 0.1]), "step_size must be a number, or an array"),
        (
            TARGET,
            dict(alpha=1.0, B=np.ones([3, 3])),
            r"B must broadcast .* Received: shape \(3, 3\). Give .* as FullMatrix\(B\)",
        ),
        (
            TARGET,
            dict(alpha=1.0, B=FullMatrix(np.eye(2))),
            r"a chain's state has 3 entries. Received: shape \(2, 2\)",
        ),
        (
            MODEL.target(3),
            dict(alpha=0.0, num_estimation_steps=0),
            "with alpha = 0 or B = 'fisher' .* rank of at most 2",
        ),
        (
            MODEL.target(3),
            dict(alpha=1.0, B="fisher", num_estimation_steps=1),
            "rank of at most 2",
        ),
        (
            MODEL.target(3),
            dict(alpha=0.0, covariance="low_rank", num_estimation_steps=1),
            "rank of at most 2",
        ),
        (
            MODEL.target(8, num_groups=2),
            dict(alpha=0.0, num_estimation_steps=2),
            "Received: 2 scores .* num_groups",
        ),
        (MODEL.target(12), dict(alpha=0.0), "all its examples, which bring no noise"),
        (sgmcmc.GrowingBatch(TARGET), dict(alpha=0.0), "comes to hold all its examples"),
        (
            MODEL.target(12),
            dict(alpha=np.array([1.0, 0.0]), covariance="diag"),
            "which bring no noise",
        ),
    ],
)
def test_what_does_not_fit_the_state(
    target: sgmcmc.MinibatchLogProb, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sgmcmc.SGFS(target, **options).bootstrap_results(tf.zeros([2, 3]))


def test_few_scores_are_enough_for_diagonals_small_blocks_and_injected_noise() -> None:
    few = MODEL.target(3, parts=True)
    state = [tf.zeros([1]), tf.zeros([2])]
    for options in (
        dict(alpha=0.0, covariance="diag"),
        dict(alpha=0.0, covariance="block"),
        dict(alpha=0.1),
        dict(alpha=0.1, covariance="low_rank"),
    ):
        kernel = sgmcmc.SGFS(few, **options)
        moved, results = kernel.one_step(state, kernel.bootstrap_results(state), seed=0)
        assert all(np.all(np.isfinite(x)) for x in moved)
        assert results.num_frozen == 0


def logistic(dtype: Any) -> sgmcmc.MinibatchLogProb:
    """Returns a target with five features. One is constant, one the sum of two others."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal([2000, 5])
    x[:, 1], x[:, 4] = 0.0, x[:, 2] + x[:, 3]
    y = (generator.uniform(size=2000) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)

    def log_likelihood(theta: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        logits = tf.linalg.matvec(batch["x"], theta)
        return batch["y"] * logits - tf.nn.softplus(logits)

    return sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        log_likelihood,
        {"x": x, "y": y},
        20,
        dtype=dtype,
        score_fn=lambda theta, batch: (
            (batch["y"] - tf.sigmoid(tf.linalg.matvec(batch["x"], theta)))[..., tf.newaxis]
            * batch["x"]
        ),
    )


@pytest.mark.parametrize(
    ("options", "dtype", "jit"),
    [
        (dict(alpha=0.0), tf.float32, True),
        (dict(alpha=0.0), tf.float64, False),
        (dict(step_size=1.0, B="fisher"), tf.float32, False),
    ],
)
@pytest.mark.slow
def test_features_that_tell_nothing_or_the_same(
    options: dict[str, Any], dtype: Any, jit: bool
) -> None:
    """The constant feature does not move. The collinear ones stay within posterior and prior."""
    kernel = sgmcmc.SGFS(logistic(dtype), **options)
    start = tf.constant([[0.0, 0.7, 0.1, 0.2, 0.3], [0.5, -0.7, 0.0, 0.0, 0.0]], dtype)

    @tf.function(jit_compile=jit, autograph=False)
    def run() -> Any:
        return tfp.mcmc.sample_chain(
            2000,
            start,
            kernel=kernel,
            trace_fn=lambda _, results: results.num_frozen,
            seed=tf.constant([0, 1]),
        )

    samples, num_frozen = (x.numpy() for x in run())
    np.testing.assert_array_equal(num_frozen, 1)
    np.testing.assert_array_equal(samples[:, :, 1], np.broadcast_to(start[:, 1], [2000, 2]))
    # The likelihood depends on theta_2 + theta_4 and theta_3 + theta_4, each about 0.06 wide.
    identified = samples[100:, :, 2:4] + samples[100:, :, 4:]
    assert np.all(np.abs(np.mean(identified, axis=0)) < 0.3)
    deviations = np.std(identified, axis=0)
    assert np.all((deviations > 0.03) & (deviations < 0.15))
    # Only the prior acts along (1, 1, -1), and the least injected noise explores it.
    along = samples[:, :, 2:] @ np.array([1.0, 1.0, -1.0]) / 3**0.5
    assert np.all(np.abs(along) < 5)
    assert np.all((np.std(along, axis=0) > 0.6) & (np.std(along, axis=0) < 1.5))


def test_injected_noise_moves_them() -> None:
    kernel = sgmcmc.SGFS(logistic(tf.float32), alpha=5.0, num_estimation_steps=0)
    state = tf.zeros([2, 5])
    moved, results = kernel.one_step(state, kernel.bootstrap_results(state), seed=0)
    np.testing.assert_array_equal(results.num_frozen, 0)
    assert np.all(moved.numpy() != 0)
