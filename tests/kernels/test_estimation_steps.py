"""By default the first steps only average Sigma, so that no chain is thrown by a Sigma of few."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import MODEL
from tests.harness.fast_settings import fast_settings
from tfp_sgmcmc.covariance import Full, History, RunningMean
from tfp_sgmcmc.kernels.noisy_gradients import GradientNoise
from tfp_sgmcmc.targets.base import Target

PARTS = [tf.zeros([2, 1]), tf.zeros([2, 3, 10])]  # two chains of 31 entries


def scored(batch_size: int | None) -> Target:
    """Returns a target with this number of scores."""
    target = mock.create_autospec(Target, instance=True)
    target.num_scores, target.noise_scale = batch_size, None
    return target


@pytest.mark.parametrize(
    ("covariance", "batch_size", "expected"),
    [
        ("full", 4, 78),  # 310 / 4, rounded up
        ("block", 4, 75),
        ("diag", 4, 10),
        ("full", 50, 10),
        ("low_rank", 4, 8),  # it keeps no more
        (Full(History([1.0, 1.0], lag=3)), 4, 5),
        ("full", None, 10),  # n is not known beforehand
    ],
)
def test_the_rule(covariance: Any, batch_size: int | None, expected: int) -> None:
    noise = GradientNoise(scored(batch_size), covariance, RunningMean(0.99))
    assert noise.estimation_steps(None, PARTS, 1) == expected
    assert noise.estimation_steps(0, PARTS, 1) == 0
    assert noise.estimation_steps(3, PARTS, 1) == 3


@pytest.mark.parametrize(
    ("covariance", "batch_size", "decay"),
    [
        ("full", 50, 1 - 50 / (500 * 31)),
        ("full", 400, 0.99),
        ("full", 10, 1 - 10 / (500 * 31)),
        ("diag", 2, 1 - 2 / 500),
    ],
)
def test_a_sigma_to_solve_with_remembers_enough(
    covariance: str, batch_size: int, decay: float
) -> None:
    """Weights decay^k are worth (1 + decay) / (1 - decay) minibatches."""
    noise = GradientNoise(scored(batch_size), covariance, None)
    average = noise._estimator(PARTS, 1).average
    assert isinstance(average, RunningMean) and average.decay == pytest.approx(decay)
    assert average.power == 2
    given = GradientNoise(scored(batch_size), Full(RunningMean(0.5)), None)
    assert given._estimator(PARTS, 1) is given.covariance
    assert isinstance(sgmcmc.NOGIN(MODEL.target(4), 0.1)._noise.covariance.average, type(None))


def test_exact_gradients_need_none() -> None:
    target = sgmcmc.FullDataLogProb(lambda a, b: -tf.reduce_sum(b, axis=[-2, -1]) - a[..., 0])
    noise = GradientNoise(target, "full", RunningMean(0.99))
    assert noise.estimation_steps(None, PARTS, 1) == 0


SIZE, BATCH, CHAINS = 8, 12, 10


def farthest(make: Any, num_steps: int) -> np.ndarray:
    """Returns each chain's largest distance from the mode in a run from there.

    It is the root mean square of the state, whitened by the Hessian, about 1 in the posterior.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal([300, SIZE])
    y = (rng.random(300) < 1 / (1 + np.exp(-3 * x[:, 0]))).astype(float)
    mode = np.zeros(SIZE)
    for _ in range(20):  # Newton's method
        p = 1 / (1 + np.exp(-x @ mode))
        hessian = (x.T * p * (1 - p)) @ x + np.eye(SIZE)
        mode = mode + np.linalg.solve(hessian, x.T @ (y - p) - mode)

    def slopes(theta: tf.Tensor, batch: Any) -> tf.Tensor:
        return tf.linalg.matvec(batch["x"], theta)

    target = sgmcmc.MinibatchLogProb(
        lambda theta: -0.5 * tf.reduce_sum(theta**2, axis=-1),
        lambda theta, b: b["y"] * slopes(theta, b) - tf.nn.softplus(slopes(theta, b)),
        {"x": x, "y": y},
        BATCH,
        score_fn=lambda theta, b: (b["y"] - tf.sigmoid(slopes(theta, b)))[..., None] * b["x"],
    )
    kernel, state = make(target), tf.constant(np.tile(mode, [CHAINS, 1]))
    results, found = kernel.bootstrap_results(state), []
    step = tf.function(kernel.one_step, autograph=False)
    for t in range(num_steps):
        state, results = step(state, results, tf.constant([0, t]))
        white = (state - mode) @ np.linalg.cholesky(hessian)
        found.append(np.sqrt(np.mean(white**2, axis=-1)))
    return np.max(found, axis=0)


KERNELS = {
    "SGFS": lambda target, **options: sgmcmc.SGFS(target, alpha=0.0, **options),
    "NOGIN": lambda target, **options: sgmcmc.NOGIN(target, 0.15, **options),
}


@pytest.mark.parametrize("name", fast_settings(KERNELS, "SGFS"))
def test_defaults_throw_no_chain(name: str) -> None:
    """In the posterior, a distance of 4 has a probability below 1e-20."""
    assert np.all(farthest(KERNELS[name], 40) < 4)


def test_without_estimation_chains_are_thrown() -> None:
    found = farthest(lambda target: KERNELS["SGFS"](target, num_estimation_steps=0), 40)
    assert np.median(found) > 40


def test_chains_stand_still_while_sigma_is_averaged() -> None:
    target = MODEL.target(4)
    for make in KERNELS.values():
        kernel, state = make(target), tf.ones([2, 3])
        results = kernel.bootstrap_results(state)
        for t in range(10):
            state, results = kernel.one_step(state, results, seed=t)
            np.testing.assert_array_equal(state, np.ones([2, 3]))
        state, results = kernel.one_step(state, results, seed=10)
        assert not np.any(state == 1)
        assert int(results.covariance_state.averages[0].count[0]) == 11
