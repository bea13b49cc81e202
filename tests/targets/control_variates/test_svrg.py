"""SVRG: when anchors move, their values, exact moments and stationary laws, and bad input."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.chains import run_chains
from tests.harness.every_minibatch import check_moments, give_every_minibatch
from tests.harness.gaussian_mean import sgld_covariance
from tests.harness.linear_regression import LinearRegression
from tests.harness.mutation import mutant
from tests.harness.statistics import Rejected, check_covariance
from tests.targets.logistic_regression import GENERATOR, in_parts, regression, score
from tfp_sgmcmc.targets.anchored import Anchor
from tfp_sgmcmc.targets.control_variates.control_variate import SVRGState


def likelihood_and_gradient(base: sgmcmc.MinibatchLogProb, theta: tf.Tensor) -> Any:
    return tfp.math.value_and_gradient(lambda t: base(t) - base.log_prior(t), theta)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_anchors_move_when_they_should_and_across_calls(jit: bool) -> None:
    """Estimate k uses the anchor of estimate k - k mod 4, with the full gradient there.

    A second call of `sample_chain` continues where the first one stopped, within a period.
    """
    base = regression(chunk_size=16, replacement=True)
    kernel = sgmcmc.SGLD(sgmcmc.SVRG(base, update_every=4), step_size=0.01)

    @tf.function(jit_compile=jit, autograph=False)
    def run(state: tf.Tensor, results: Any, seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            7,
            state,
            kernel=kernel,
            previous_kernel_results=results,
            trace_fn=lambda _, r: r.target_state,
            return_final_kernel_results=True,
            seed=seed,
        )

    start = tf.constant(GENERATOR.standard_normal([3, 2]))
    first = run(start, kernel.bootstrap_results(start), tf.constant([0, 1]))
    second = run(first.all_states[-1], first.final_kernel_results, tf.constant([0, 2]))
    states = np.concatenate([start[tf.newaxis], first.all_states, second.all_states])[:-1]
    trace = tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), first.trace, second.trace)
    at = np.arange(14) // 4 * 4
    np.testing.assert_array_equal(trace.anchor.state, states[at])
    np.testing.assert_array_equal(trace.step, np.arange(14) + 1)
    value, gradient = likelihood_and_gradient(base, tf.constant(states[at]))
    np.testing.assert_allclose(trace.anchor.log_likelihood, value, rtol=1e-11)
    np.testing.assert_allclose(trace.anchor.gradient, gradient, rtol=1e-9, atol=1e-9)
    assert len(np.unique(trace.anchor.state[:, :, 0])) == 4 * 3  # one for each chain


def test_a_full_pass_is_made_only_where_the_anchor_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    base = regression()
    target, passes = sgmcmc.SVRG(base, update_every=3), []
    full = base.sum_over_chunks
    monkeypatch.setattr(base, "sum_over_chunks", lambda *args: passes.append(0) or full(*args))
    state = tf.zeros([2, 2], tf.float64)
    carried, counts = target.bootstrap(state), []
    for step in range(7):
        carried = target.estimate(state, [0, step], carried, with_scores=False).target_state
        counts.append(len(passes))
    assert counts == [1, 1, 1, 2, 2, 2, 3]


def test_by_default_anchors_move_once_a_pass() -> None:
    assert sgmcmc.SVRG(regression(4)).update_every == 8
    assert sgmcmc.SVRG(regression(30)).update_every == 1


def test_epochs_of_the_wrapped_target_go_on() -> None:
    base = regression(5, reshuffle="epoch", shared_batch=True, score_fn=score)
    target = sgmcmc.SVRG(base, update_every=6)
    estimate = tf.function(target.estimate, autograph=False)
    start, theta = tf.ones([2, 2], tf.float64), tf.zeros([2, 2], tf.float64)
    carried = estimate(start, tf.constant([7, 0]), target.bootstrap(start)).target_state
    gradients = []
    for step in range(1, 6):
        found = estimate(theta, tf.constant([7, step]), carried)
        gradients.append(found.gradient)
        carried = found.target_state
    assert int(carried.target_state.step) == 6
    # The five minibatches after the first one hold all examples that the first one does not.
    others = base.draw(carried.target_state.key, tf.range(5, 30), [2]).numpy()
    rest = regression(25, num_examples=30, score_fn=score)
    seen, centre = (
        np.sum(rest.scores(t, rest.rows(tf.constant(others)), [])[1].numpy(), axis=-2)
        for t in (theta[0], start[0])
    )
    _, full = likelihood_and_gradient(base, start[0])
    expected = full + 6 / 5 * (
        seen - centre
    )  # over five minibatches; the log prior is flat at theta
    np.testing.assert_allclose(np.mean(gradients, axis=0)[0], expected, rtol=1e-9)


def at_anchor(base: sgmcmc.MinibatchLogProb, anchor: np.ndarray, count: int) -> SVRGState:
    """Returns the state of the target one step after its anchor."""
    state = tf.constant(np.tile(anchor, [count, 1]))
    return SVRGState(
        Anchor(state, *likelihood_and_gradient(base, state)), tf.ones([], tf.int64), ()
    )


@pytest.mark.parametrize("replacement", [False, True])
def test_mean_and_covariance_over_all_minibatches(
    replacement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean is the full gradient and the covariance is c E[V hat], up to rounding."""
    base = regression(3, 5, replacement=replacement, score_fn=score)
    target = sgmcmc.SVRG(base, update_every=5)
    count = give_every_minibatch(monkeypatch, base)
    theta, anchor = GENERATOR.standard_normal([2, 2])
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(theta))
    state = tf.constant(np.tile(theta, [count, 1]))
    carried = at_anchor(base, anchor, count)
    covariance = check_moments(target.estimate(state, [0, 0], carried), value, gradient)
    assert np.linalg.eigvalsh(covariance).min() > 1e-4
    quick = target.estimate(state, [0, 0], carried, with_scores=False)
    np.testing.assert_allclose(np.mean(quick.gradient, axis=0), gradient, rtol=1e-10)
    fresh = target.estimate(state, [0, 0], target.bootstrap(state))  # the anchor moves here
    np.testing.assert_allclose(fresh.gradient, np.tile(gradient, [count, 1]), rtol=1e-10)
    np.testing.assert_array_equal(fresh.scores, np.zeros([count, 3, 2]))
    with pytest.raises(AssertionError):  # an anchor with the gradient of another state
        stale = carried._replace(
            anchor=carried.anchor._replace(gradient=1.1 * carried.anchor.gradient)
        )
        check_moments(target.estimate(state, [0, 0], stale), value, gradient)


@pytest.mark.thorough
def test_parts_give_what_the_whole_gives() -> None:
    whole, parts = sgmcmc.SVRG(regression(4), 2), sgmcmc.SVRG(in_parts(4), 2)
    first, then = GENERATOR.standard_normal([2, 3, 2])
    carried = whole.estimate(tf.constant(first), [1, 1]).target_state
    carried_parts = parts.estimate(list(tf.unstack(first, axis=-1)), [1, 1]).target_state
    expected = whole.estimate(tf.constant(then), [1, 2], carried)
    found = parts.estimate(list(tf.unstack(then, axis=-1)), [1, 2], carried_parts)
    np.testing.assert_allclose(tf.stack(found.gradient, -1), expected.gradient, rtol=1e-10)
    np.testing.assert_allclose(tf.stack(found.scores, -1), expected.scores, rtol=1e-9, atol=1e-12)


LINEAR = LinearRegression(num_examples=12)
STEP, PERIOD, CHAINS = 0.08, 6, 10_000


def ends_of_periods(target: Any) -> np.ndarray:
    """Returns the states that become anchors, `[CHAINS, 20, 2]`."""
    kernel = sgmcmc.SGLD(target, STEP)
    samples = run_chains(kernel, tf.zeros([CHAINS, 2]), 20 * PERIOD, 10 * PERIOD, 1, jit=False)
    return samples[:, PERIOD - 1 :: PERIOD]


@pytest.mark.thorough
def test_law_of_sgld() -> None:
    """Checks SGLD on a linear regression, once in each period of the anchor.

    The false-alarm rate is 1e-6, and an error of 6% in a variance is found. The laws of another
    period and of exact gradients are rejected.
    """
    base = LINEAR.target(3, replacement=True)
    samples = ends_of_periods(sgmcmc.SVRG(base, PERIOD))
    law = LINEAR.covariance(base, STEP, period=PERIOD)
    check_covariance(samples, LINEAR.mean, law, 0.06)
    exact = sgld_covariance(LINEAR.hessian, np.zeros([2, 2]), STEP)
    for wrong in (LINEAR.covariance(base, STEP, period=2), exact):
        with pytest.raises(Rejected):
            check_covariance(samples, LINEAR.mean, wrong, 0.06)


@pytest.mark.slow
def test_an_anchor_that_stays_has_another_law() -> None:
    """Negative control: the anchor moves only at the first estimate."""
    base = LINEAR.target(3, replacement=True)
    stuck = mutant(sgmcmc.SVRG, ("step % self.update_every == 0", "step < 1"))
    law = LINEAR.covariance(base, STEP, period=PERIOD)
    with pytest.raises(Rejected):
        check_covariance(ends_of_periods(stuck(base, PERIOD)), LINEAR.mean, law, 0.06)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "update_every must be at least 1. Received: 0"),
        (2.0, TypeError, "update_every must be an integer. Received: 2.0"),
        (True, TypeError, "update_every must be an integer. Received: True"),
    ],
)
def test_bad_periods(value: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        sgmcmc.SVRG(regression(), value)
