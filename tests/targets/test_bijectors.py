"""Bijectors of targets: the log posterior of an unconstrained state, with its Jacobian."""

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc

tfb, tfd = tfp.bijectors, tfp.distributions

GENERATOR = np.random.default_rng(0)
N, D = 23, 3
X = GENERATOR.standard_normal([N, D])


def gamma_model(batch_size: int, bijector: Any) -> Any:
    """A model of the location and positive scale of Student's t."""
    zero = tf.zeros([], tf.float64)
    return sgmcmc.MinibatchLogProb(
        lambda loc, scale: (
            tfd.Normal(zero, 3.0).log_prob(loc) + tfd.Gamma(zero + 2.0, 1.0).log_prob(scale)
        ),
        lambda loc, scale, x: tfd.StudentT(
            zero + 4.0, loc[..., tf.newaxis], scale[..., tf.newaxis]
        ).log_prob(x),
        X[:, 0],
        batch_size,
        bijector=[None, bijector],
    )


@pytest.mark.parametrize(
    ("bijector", "forward", "derivative"),
    [
        (tfb.Exp(), np.exp, np.exp),
        (tfb.Softplus(), lambda u: np.logaddexp(0, u), lambda u: 1 / (1 + np.exp(-u))),
    ],
    ids=["exp", "softplus"],
)
def test_bijector_of_one_part(bijector: Any, forward: Any, derivative: Any) -> None:
    """The unconstrained log posterior is prior + likelihood + log |d scale / d u|."""
    target, whole = gamma_model(5, bijector), gamma_model(N, bijector)
    loc, u = np.array([0.3, -1.0]), np.array([-0.4, 1.2])
    scale = forward(u)
    expected = (
        stats.norm.logpdf(loc, 0, 3)
        + stats.gamma.logpdf(scale, 2)
        + stats.t.logpdf(X[:, :1], 4, loc, scale).sum(axis=0)
        + np.log(derivative(u))
    )
    state = [tf.constant(loc), tf.constant(u)]
    np.testing.assert_allclose(target(*state), expected, rtol=1e-10)
    estimate = whole.estimate(state, tf.constant([0, 0]))
    np.testing.assert_allclose(estimate.log_prob, expected, rtol=1e-10)
    constrained = target.constrain(state)
    np.testing.assert_allclose(constrained, [loc, scale])
    np.testing.assert_allclose(target.unconstrain(constrained), state, rtol=1e-10)


def test_bijector_of_a_single_part_and_of_a_dict() -> None:
    u = np.array([0.3, -0.7])

    def log_likelihood(rate: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return tfd.Exponential(rate[..., tf.newaxis]).log_prob(batch)

    def log_prior(rate: tf.Tensor) -> tf.Tensor:
        return tfd.Exponential(tf.constant(1.0, tf.float64)).log_prob(rate)

    data = np.abs(X[:, 0])
    single, by_name = (
        sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, 5, bijector=bijector)
        for bijector in (tfb.Exp(), {"rate": tfb.Exp()})
    )
    rate = np.exp(u)
    expected = -rate + N * u - rate * data.sum() + u
    np.testing.assert_allclose(single(tf.constant(u)), expected)
    np.testing.assert_allclose(by_name(rate=tf.constant(u)), expected)
    np.testing.assert_allclose(single.constrain(tf.constant(u)), rate)


@pytest.mark.parametrize("chains", [(), (3,), (2, 2)])
def test_bijector_that_changes_the_event_size(chains: tuple[int, ...]) -> None:
    """Maps two numbers to the probabilities of three classes."""
    labels = GENERATOR.integers(0, 3, N)
    bijector = tfb.IteratedSigmoidCentered()
    target = sgmcmc.MinibatchLogProb(
        lambda p: tfd.Dirichlet(tf.constant([1.0, 2.0, 3.0], tf.float64)).log_prob(p),
        lambda p, batch: tf.math.log(tf.reduce_sum(p[..., tf.newaxis, :] * batch, axis=-1)),
        np.eye(3)[labels],
        5,
        bijector=bijector,
    )
    u = GENERATOR.standard_normal([*chains, 2])
    p = bijector.forward(tf.constant(u)).numpy()
    assert p.shape == (*chains, 3)
    prior = math.lgamma(6) - math.lgamma(2) - math.lgamma(3) + np.log(p) @ [0.0, 1.0, 2.0]
    jacobian = np.log(p).sum(axis=-1)  # the Jacobian of the first two probabilities is p_1 p_2 p_3
    expected = prior + np.log(p) @ np.bincount(labels, minlength=3) + jacobian
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(u))
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    assert gradient.shape == u.shape
    estimate = target.estimate(tf.constant(u), tf.constant([0, 1]))
    assert estimate.log_prob.shape == chains and estimate.gradient.shape == u.shape
    np.testing.assert_allclose(target.unconstrain(target.constrain(tf.constant(u))), u, rtol=1e-8)


def test_bijector_from_vector_to_matrix() -> None:
    """Maps [3] to the factor of a correlation matrix, [3, 3]; differences give the Jacobian."""
    bijector = tfb.CorrelationCholesky()
    target = sgmcmc.MinibatchLogProb(
        lambda factor: tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1),
        lambda factor, x: tfd.MultivariateNormalTriL(
            scale_tril=factor[..., tf.newaxis, :, :]
        ).log_prob(x),
        X,
        5,
        bijector=bijector,
    )
    u = np.array([[0.2, -0.5, 0.9], [0.0, 0.1, 0.4]])
    free = np.array([[1, 0], [2, 0], [2, 1]])  # the entries that parametrise the factor
    expected = []
    for row in u:
        factor = bijector.forward(tf.constant(row)).numpy()
        up, down = (bijector.forward(row + s * np.eye(3)).numpy() for s in (1e-6, -1e-6))
        jacobian = ((up - down) / 2e-6)[:, free[:, 0], free[:, 1]]  # transposed
        expected.append(
            np.log(np.diag(factor)).sum()
            + stats.multivariate_normal.logpdf(X, cov=factor @ factor.T).sum()
            + np.linalg.slogdet(jacobian)[1]
        )
    np.testing.assert_allclose(target(tf.constant(u)), expected, rtol=1e-7)
