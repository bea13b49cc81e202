"""A chain turns NaN with every sampler, as with SGLD, if the likelihood is NaN."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

FIRST_ESTIMATE = (sgmcmc.NOGIN, sgmcmc.SGFS, sgmcmc.CCAdL)  # steps that average Sigma
DATA = np.array([[1.0], [2.0], [3.0], [4.0]]) * np.ones(3)
ROOT = sgmcmc.MinibatchLogProb(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
    lambda x, batch: tf.reduce_sum(tf.sqrt(x[..., tf.newaxis, :]) * batch, axis=-1),
    DATA,
    batch_size=2,
)
FAST = [(kernel, "full") for kernel in (sgmcmc.NOGIN, sgmcmc.CCAdL, sgmcmc.ModifiedSGLD)]
CASES = [
    (sgmcmc.SGLD, dict(step_size=1e-3)),
    (sgmcmc.SGHMC, dict(step_size=1e-3, small_friction="refuse", friction=1e4)),
    *(
        pytest.param(
            kernel,
            dict(step_size=1e-3, covariance=covariance),
            marks=[pytest.mark.thorough] * ((kernel, covariance) not in FAST),
        )
        for kernel in (sgmcmc.NOGIN, sgmcmc.SGHMC, sgmcmc.CCAdL, sgmcmc.ModifiedSGLD)
        for covariance in ("full", "diag", "low_rank")
    ),
    (sgmcmc.SGFS, dict(alpha=100.0)),
    pytest.param(sgmcmc.SGFS, dict(alpha=0.0, covariance="diag"), marks=pytest.mark.thorough),
    pytest.param(sgmcmc.SGFS, dict(alpha=100.0, covariance="low_rank"), marks=pytest.mark.thorough),
]


def run(kernel: Any, start: np.ndarray, num_steps: int) -> tuple[np.ndarray, Any]:
    state = tf.constant(start)
    results = kernel.bootstrap_results(state)
    for seed in range(num_steps):
        state, results = kernel.one_step(state, results, seed)
    return state.numpy(), results


@pytest.mark.parametrize(("kernel", "options"), CASES)
def test_the_state_turns_nan_where_the_likelihood_is(kernel: Any, options: dict[str, Any]) -> None:
    """The second chain starts where the root is NaN, in one of its three entries."""
    steps = {"num_estimation_steps": 0} if kernel in FIRST_ESTIMATE else {}
    start = np.array([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]])
    state, results = run(kernel(ROOT, **options, **steps), start, num_steps=2)
    np.testing.assert_array_equal(np.isnan(state[:, 1]), [False, True])
    assert np.all(np.isfinite(state[0]))
    if kernel is not sgmcmc.SGLD:
        np.testing.assert_array_equal(results.covariance_state.num_skipped, [0, 2])


@pytest.mark.parametrize(
    "kernel", [sgmcmc.NOGIN, pytest.param(sgmcmc.SGFS, marks=pytest.mark.thorough)]
)
def test_steps_of_estimation_count_what_is_skipped(kernel: Any) -> None:
    options = dict(alpha=1.0) if kernel is sgmcmc.SGFS else dict(step_size=1e-3)
    made = kernel(ROOT, **options, num_estimation_steps=2)
    start = np.array([[1.0, -1.0, 1.0]])
    state, results = run(made, start, num_steps=2)
    np.testing.assert_array_equal(state, start)
    np.testing.assert_array_equal(results.covariance_state.num_skipped, [2])
    assert np.isnan(run(made, start, num_steps=3)[0][0, 1])


@pytest.mark.parametrize(
    "kernel",
    [
        sgmcmc.NOGIN,
        *(
            pytest.param(kernel, marks=pytest.mark.thorough)
            for kernel in (sgmcmc.SGHMC, sgmcmc.CCAdL, sgmcmc.ModifiedSGLD)
        ),
    ],
)
def test_scores_whose_squares_overflow_teach_nothing_but_move(kernel: Any) -> None:
    target = sgmcmc.MinibatchLogProb(
        lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
        lambda x, batch: tf.reduce_sum(x[..., tf.newaxis, :] * batch, axis=-1),
        np.float32(1e20) * DATA.astype(np.float32),
        batch_size=2,
    )
    steps = {"num_estimation_steps": 0} if kernel in FIRST_ESTIMATE else {}
    state, results = run(kernel(target, 1e-3, **steps), np.ones([1, 3], np.float32), num_steps=2)
    assert np.all(np.isfinite(state)) and np.all(state > 1e9)
    np.testing.assert_array_equal(results.covariance_state.num_skipped, [2])
