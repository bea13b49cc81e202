"""Rejection probabilities agree with the rejections of CorrectedLangevin."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tests.harness.gaussian_mean import GaussianMean
from tfp_sgmcmc.diagnostics import RejectionReducer, rejection_probability
from tfp_sgmcmc.preconditioners import FullMatrix, NaturalGradientICA, RMSprop

GENERATOR = np.random.default_rng(0)
MODEL = GaussianMean(num_examples=12)
FULL = np.array([[1.0, -0.3, 0.2], [-0.3, 0.6, 0.1], [0.2, 0.1, 0.8]])


def gaussian(x: tf.Tensor) -> tf.Tensor:
    return -0.5 * x**2


def unmixing(w: tf.Tensor) -> tf.Tensor:
    """Returns the log of a density of matrices that vanishes for singular ones."""
    return tf.math.log(tf.abs(tf.linalg.det(w))) - 0.5 * tf.reduce_sum(w**2, axis=[-2, -1])


CASES = {
    "identity": (MODEL.target(4, dtype=tf.float64), 0.15, None, [50, 3]),
    "diagonal": (MODEL.target(4, dtype=tf.float64), 0.15, np.array([1.2, 0.5, 0.8]), [50, 3]),
    "full": (MODEL.target(4, dtype=tf.float64), 0.15, FullMatrix(FULL), [50, 3]),
    "natural gradient": (unmixing, 0.05, NaturalGradientICA(), [50, 2, 2]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rejections_of_corrected_langevin(name: str) -> None:
    target, epsilon, preconditioner, shape = CASES[name]
    kernel = sgmcmc.CorrectedLangevin(target, epsilon, preconditioner)
    state = tf.constant(1 + GENERATOR.standard_normal(shape))
    results = kernel.one_step(state, kernel.bootstrap_results(state), seed=1)[1]
    found = rejection_probability(target, state, results.proposed_state, epsilon, preconditioner)
    expected = 1 - np.exp(np.minimum(results.log_accept_ratio, 0.0))
    assert expected.max() > 0.2  # so that there is something to compare
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_closed_form_in_one_dimension() -> None:
    """On N(0, 1), log r = -epsilon/8 (theta'^2 - theta^2)."""
    theta, proposed = tf.constant(GENERATOR.standard_normal([2, 100]))
    found = rejection_probability(gaussian, theta, proposed, 0.3)
    expected = 1 - np.exp(np.minimum(-0.3 / 8 * (proposed**2 - theta**2), 0.0))
    np.testing.assert_allclose(found, expected, atol=1e-14)


def mean_rejection(epsilon: float) -> float:
    """Returns the mean over N(0, 1) and the step from there, by quadrature."""
    nodes = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    theta, z = np.meshgrid(nodes, nodes)
    step = (1 - epsilon / 2) * theta + np.sqrt(epsilon) * z
    found = rejection_probability(gaussian, tf.constant(theta), tf.constant(step), epsilon)
    return float(np.mean(found))


@pytest.mark.thorough
def test_rejections_vanish_with_the_step_size() -> None:
    """The mean on N(0, 1) is epsilon^(3/2) / (4 pi) in the limit of small steps."""
    for epsilon in (1e-3, 1e-4):
        limit = epsilon**1.5 / (4 * np.pi)
        np.testing.assert_allclose(mean_rejection(epsilon), limit, rtol=0.01)


def test_states_that_cannot_be_accepted() -> None:
    found = rejection_probability(tf.math.log, tf.ones([3]), tf.constant([1.0, -1.0, np.inf]), 0.1)
    np.testing.assert_array_equal(found, [0.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("every", "jit"), [(3, True), pytest.param(1, False, marks=pytest.mark.slow)]
)
def test_the_reducer_is_the_mean_over_the_steps(every: int, jit: bool) -> None:
    """Follows a chain of SGLD whose step size has a schedule."""
    target = MODEL.target(4, dtype=tf.float64)
    kernel = sgmcmc.SGLD(target, sgmcmc.schedules.PolynomialDecay(0.2), preconditioner=0.7)
    states = [tf.ones([2, 3], tf.float64)]
    results = [kernel.bootstrap_results(states[0])]
    for seed in range(10):
        state, result = kernel.one_step(states[-1], results[-1], seed=seed)
        states.append(state)
        results.append(result)
    reducer = RejectionReducer(target, 0.7, every=every)
    advance = tf.function(reducer.one_step, jit_compile=jit, autograph=False)
    own = reducer.initialize(states[0], results[0])
    assert np.all(np.isnan(reducer.finalize(own)))
    for state, result in zip(states[1:], results[1:], strict=True):
        own = advance(state, own, result)
    tested = range(every, 11, every)
    each = [
        rejection_probability(target, states[t - 1], states[t], results[t].step_size, 0.7).numpy()
        for t in tested
    ]
    assert np.ptp(each) > 0.1
    np.testing.assert_allclose(reducer.finalize(own), np.mean(each, axis=0), rtol=1e-9)
    assert (int(own.num_tested), int(own.num_steps)) == (len(tested), 10)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="every must be at least 1. Received: 0"):
        RejectionReducer(gaussian, every=0)
    x = tf.ones([3])
    with pytest.raises(ValueError, match="RMSprop must learn from gradient"):
        rejection_probability(gaussian, x, x, 0.1, RMSprop())
    for bad in (0.0, -0.5, np.nan):
        with pytest.raises(ValueError, match=f"step_size must be a positive finite .*: {bad}"):
            rejection_probability(gaussian, x, x, bad)
    no_inverse = sgmcmc.preconditioners.PositionDependent(
        lambda _, v: v, lambda _, z: z, tf.zeros_like
    )
    with pytest.raises(ValueError, match="preconditioner must give a log determinant"):
        rejection_probability(gaussian, x, x, 0.1, no_inverse)


def test_a_step_out_of_zero_density_is_accepted() -> None:
    def log_prob(x: tf.Tensor) -> tf.Tensor:
        return tf.where(x > 0.0, -0.5 * x**2, -np.inf)

    target, out, back = sgmcmc.FullDataLogProb(log_prob), tf.constant(-1.0), tf.constant(1.0)
    assert float(rejection_probability(target, out, back, 0.1)) == 0.0
    assert float(rejection_probability(target, back, out, 0.1)) == 1.0
