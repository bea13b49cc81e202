"""Whitened targets: the same posterior in coordinates in which its Hessian is -I."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.targets.logistic_regression import X, log_prior, regression, score
from tfp_sgmcmc.targets.laplace import low_rank_hessian
from tfp_sgmcmc.targets.laplace.quadratic import quadratic_at

tfb, tfd = tfp.bijectors, tfp.distributions


class Pair(NamedTuple):
    loc: Any
    scale: Any


PACKS = {
    "list": lambda loc, scale: [loc, scale],
    "tuple": lambda loc, scale: (loc, scale),
    "dict": lambda loc, scale: {"loc": loc, "scale": scale},
    "namedtuple": Pair,
}


@pytest.mark.parametrize(
    "kind",
    ["list", *(pytest.param(k, marks=pytest.mark.slow) for k in ("namedtuple", "tuple", "dict"))],
)
def test_parts_and_bijectors(kind: str) -> None:
    """The density equals the density of the parts times det L, and the way back is exact."""
    pack = PACKS[kind]
    base = sgmcmc.MinibatchLogProb(
        lambda loc, scale: log_prior(loc) - scale,
        lambda loc, scale, batch: tf.reduce_sum(
            tfd.Normal(loc[..., None, :], scale[..., None, None]).log_prob(batch), axis=-1
        ),
        X,
        5,
        bijector=pack(None, tfb.Exp()),
    )
    start = pack(tf.zeros([2], tf.float64), tf.zeros([], tf.float64))
    center, _ = sgmcmc.find_center(base, start, tolerance=1e-3)
    whitened, bijector = sgmcmc.whiten(base, center)
    z = tf.constant(np.random.default_rng(0).standard_normal([5, 3]))
    parameters = bijector.forward(z)
    assert type(parameters) is type(start)
    np.testing.assert_allclose(bijector.inverse(parameters), z, atol=1e-12)
    log_prob = sgmcmc.targets.base.call_with_state(base, base.unconstrain(parameters))
    difference = whitened(z) - log_prob
    quadratic = quadratic_at(base, center)
    expected = np.linalg.slogdet(quadratic.factor)[1]
    np.testing.assert_allclose(difference, np.full(5, expected), rtol=1e-10)
    hessian = quadratic_at(whitened, tf.zeros([3], tf.float64), "full").hessian
    np.testing.assert_allclose(hessian, -np.eye(3), atol=1e-9)
    # Estimates and their scores follow from the chain rule.
    state = tf.zeros([2, 3], tf.float64)
    estimate = whitened.estimate(state, tf.constant([0, 1]))
    assert estimate.scores.shape == (2, 5, 3)


@pytest.mark.thorough
def test_draws_come_back_with_the_moments_of_the_posterior() -> None:
    """Means and variances on a grid, within six standard errors between independent chains.

    With all examples in a batch the scheme's bias at h = 0.25 is far below these errors. False
    alarms: 1e-8. Draws of Laplace's approximation are the control and fail.
    """
    base = regression(30)
    center, _ = sgmcmc.find_center(base, tf.zeros([2], tf.float64))
    whitened, bijector = sgmcmc.whiten(base, center)
    control = sgmcmc.ControlVariate(whitened, np.zeros(2), order=2)
    kernel = sgmcmc.UnderdampedLangevin(control, step_size=0.25, friction=1.5)
    run = tf.function(tfp.mcmc.sample_chain, jit_compile=True, autograph=False)
    z = run(
        1000, tf.zeros([400, 2], tf.float64), kernel=kernel, num_burnin_steps=50, trace_fn=None,
        seed=tf.constant([0, 1]),
    )  # fmt: skip
    grid = np.stack(np.meshgrid(*[np.linspace(-4, 4, 161)] * 2, indexing="ij"), -1).reshape(-1, 2)
    weights = np.exp(base(tf.constant(grid)).numpy())
    weights /= weights.sum()
    mean = weights @ grid
    variance = weights @ (grid - mean) ** 2

    def largest_error(z: Any) -> float:
        squares = (bijector.forward(z).numpy() - mean) ** 2
        first = (bijector.forward(z).numpy() - mean).mean(axis=0) / np.sqrt(variance)
        second = squares.mean(axis=0) / variance - 1
        errors = [x.mean(axis=0) / (x.std(axis=0) / np.sqrt(len(x))) for x in (first, second)]
        return float(np.abs(errors).max())

    assert largest_error(z) < 6
    assert largest_error(tf.random.stateless_normal(z.shape, [0, 1], dtype=z.dtype)) > 6


def test_a_diagonal_hessian_is_exact_without_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 groups of 1 to 7 rows. An iteration would find each of the 7 curvatures once."""
    counts = 1 + np.arange(300) % 7
    target = sgmcmc.MinibatchLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        lambda w, batch: -0.5 * tf.gather(w, batch, axis=-1) ** 2,
        np.repeat(np.arange(300), counts),
        5,
    )
    monkeypatch.delattr(low_rank_hessian, "lanczos")
    found = quadratic_at(target, tf.zeros([300], tf.float64), "low_rank")
    np.testing.assert_allclose(found.diagonal, 1.0 + counts, rtol=1e-12)
    assert found.vectors.shape == (300, 0)


def test_which_hessians_are_diagonal() -> None:
    """Two coupled entries of 300 are seen. Few entries beyond the prior's keep unit vectors."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], [20, 300])
    matrix = np.diag(np.r_[41.0, 3.0, np.ones(298)])
    whole = low_rank_hessian._exact_diagonal(signs @ matrix, signs)
    assert whole is not None
    np.testing.assert_allclose(whole, np.diag(matrix))
    found = low_rank_hessian._of_diagonal(whole, np.ones(300), 2, tf.float64)
    np.testing.assert_allclose(-found.hessian.to_dense(), matrix)
    assert found.values.shape == (2,)
    matrix[7, 8] = matrix[8, 7] = 0.1
    assert low_rank_hessian._exact_diagonal(signs @ matrix, signs) is None


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="target must be made without score_fn"):
        sgmcmc.whiten(regression(score_fn=score), np.zeros(2))
    with pytest.raises(TypeError, match="target must be a MinibatchLogProb"):
        sgmcmc.whiten(log_prior, np.zeros(2))
    with pytest.raises(ValueError, match="center must be one state without chain dimensions"):
        sgmcmc.whiten(regression(), np.zeros([3, 2]))
