"""Named parts of a state are passed by name, and a list of one part is treated as the part."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.internal.nest import call_with_state

tfb, tfd = tfp.bijectors, tfp.distributions

X = np.random.default_rng(0).normal(2.0, 1.0, size=[12])
SEED = tf.constant([0, 1])


class Parts(NamedTuple):
    """A state whose fields have another order than the keys of a dict."""

    scale: Any
    loc: Any


def target(**options: Any) -> sgmcmc.MinibatchLogProb:
    """A target whose minibatches hold all examples, so that estimates are exact."""
    return sgmcmc.MinibatchLogProb(
        lambda scale, loc: -scale - 0.5 * loc**2,
        lambda scale, loc, batch: (
            -0.5 * ((batch - loc[..., tf.newaxis]) / scale[..., tf.newaxis]) ** 2
            - tf.math.log(scale)[..., tf.newaxis]
        ),
        X,
        len(X),
        **options,
    )


def log_posterior(scale: np.ndarray, loc: np.ndarray) -> np.ndarray:
    constant = 0.5 * np.log(2 * np.pi) * len(X)
    return stats.norm.logpdf(X[:, None], loc, scale).sum(axis=0) + constant - scale - 0.5 * loc**2


U, LOC = np.array([0.3, 0.1]), np.array([-0.5, -0.2])  # the scale is exp(U)
NESTS = {
    "namedtuple": Parts,
    "dict": lambda scale, loc: {"scale": scale, "loc": loc},
    "list": lambda scale, loc: [scale, loc],
}
BIJECTORS = [("namedtuple", "namedtuple"), ("namedtuple", "dict"), ("dict", "namedtuple"),
             ("dict", "dict"), ("list", "list")]  # fmt: skip


@pytest.mark.parametrize(("state", "bijector"), BIJECTORS)
def test_bijectors_go_by_name(state: str, bijector: str) -> None:
    made = target(bijector=NESTS[bijector](tfb.Exp(), None))
    theta = NESTS[state](tf.constant(U), tf.constant(LOC))
    expected = log_posterior(np.exp(U), LOC) + U
    np.testing.assert_allclose(call_with_state(made, theta), expected, rtol=1e-10)
    estimate = made.estimate(theta, SEED, with_scores=False)
    np.testing.assert_allclose(estimate.log_prob, expected, rtol=1e-10)
    tf.nest.assert_same_structure(estimate.gradient, theta)
    constrained = made.constrain(theta)
    tf.nest.assert_same_structure(constrained, theta)
    np.testing.assert_allclose(call_with_state(lambda scale, loc: scale, constrained), np.exp(U))


@pytest.mark.parametrize(("state", "bijector"), [("namedtuple", "list"), ("dict", "list")])
def test_bijectors_without_names_for_named_parts_are_refused(state: str, bijector: str) -> None:
    made = target(bijector=NESTS[bijector](tfb.Exp(), None))
    with pytest.raises(ValueError, match="bijector must have the structure of the state"):
        made.constrain(NESTS[state](tf.constant(U), tf.constant(LOC)))


@pytest.mark.parametrize(
    ("bijector", "pack"), list(itertools.product([tfb.Exp(), [tfb.Exp()]], [list, tuple, None]))
)
def test_a_list_of_one_part_is_that_part(bijector: Any, pack: Any) -> None:
    made = sgmcmc.MinibatchLogProb(
        lambda scale: -scale,
        lambda scale, batch: -0.5 * (batch * scale[..., tf.newaxis]) ** 2,
        X, 4, bijector=bijector,
    )  # fmt: skip
    theta = tf.constant(U) if pack is None else pack([tf.constant(U)])
    expected = -np.exp(U) - 0.5 * np.sum(X**2) * np.exp(2 * U) + U
    found = sgmcmc.CorrectedLangevin(made, 0.1).bootstrap_results(theta)
    np.testing.assert_allclose(found.accepted_results.target_log_prob, expected, rtol=1e-10)
    tf.nest.assert_same_structure(made.constrain(theta), theta)


@pytest.mark.parametrize("returned", NESTS)
def test_closed_form_scores_go_by_name(returned: str) -> None:
    def score(scale: tf.Tensor, loc: tf.Tensor, batch: tf.Tensor) -> Any:
        scale, residual = scale[..., tf.newaxis], batch - loc[..., tf.newaxis]
        return NESTS[returned](residual**2 / scale**3 - 1 / scale, residual / scale**2)

    theta = Parts(tf.constant(np.exp(U)), tf.constant(LOC))
    found = target(score_fn=score).estimate(theta, SEED).gradient
    expected = target().estimate(theta, SEED, with_scores=False).gradient
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10)


@pytest.mark.parametrize(("center", "state"), list(itertools.product(NESTS, NESTS)))
def test_a_center_with_parts_in_another_order_is_refused(center: str, state: str) -> None:
    at = NESTS[center](tf.constant(1.5, tf.float64), tf.constant(2.0, tf.float64))
    control = sgmcmc.ControlVariate(target(), at)
    theta = NESTS[state](tf.constant(np.exp(U)), tf.constant(LOC))
    if center != state:
        with pytest.raises(ValueError, match="must have the structure of ControlVariate's center"):
            control.estimate(theta, SEED)
        return
    found, expected = (
        t.estimate(theta, SEED, with_scores=False).gradient for t in (control, target())
    )
    for x, y in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10)
