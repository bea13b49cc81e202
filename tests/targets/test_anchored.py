"""ControlVariate and SVRG: estimates around an anchor, for any chains and in all modes."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.targets.logistic_regression import CENTER, GENERATOR, at, regression, score

KINDS = [sgmcmc.ControlVariate, sgmcmc.SVRG]


def anchored(kind: Any, base: Any, *chains: int) -> tuple[Any, tf.Tensor, Any]:
    """Returns the target, the anchors of the chains, and the state carried one step later."""
    if kind is sgmcmc.ControlVariate:
        return kind(base, CENTER), at(CENTER, *chains), ()
    target, anchor = kind(base, 2), tf.constant(GENERATOR.standard_normal([*chains, 2]))
    return target, anchor, target.estimate(anchor, [1, 1], with_scores=False).target_state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("chains", [(), pytest.param((4,), marks=pytest.mark.slow), (2, 3)])
def test_one_chain_and_many(chains: tuple[int, ...], shared: bool, kind: Any) -> None:
    """The estimate is the plain estimate minus the one at the anchor, plus the exact one."""
    base = regression(shared_batch=shared, score_fn=score)
    target, anchor, carried = anchored(kind, base, *chains)
    theta, seed = tf.constant(GENERATOR.standard_normal([*chains, 2])), tf.constant([1, 2])
    estimate = target.estimate(theta, seed, carried)
    here, there = (base.estimate(t, seed) for t in (theta, anchor))
    exact, full = tfp.math.value_and_gradient(base, anchor)
    np.testing.assert_allclose(
        estimate.gradient, here.gradient - there.gradient + full, rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(estimate.log_prob, here.log_prob - there.log_prob + exact)
    np.testing.assert_allclose(estimate.scores, here.scores - there.scores, atol=1e-12)
    assert estimate.scores.shape == (*chains, 4, 2)
    assert estimate.noise_scale == base.noise_scale
    np.testing.assert_allclose(target(theta), base(theta))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("jit", "dtype"), [(False, tf.float64), (True, tf.float64), (True, tf.float32)]
)
def test_modes_agree(jit: bool, dtype: tf.DType, kind: Any) -> None:
    """Compares three steps, within which the anchor of SVRG moves."""
    base = regression(dtype=dtype, chunk_size=16, replacement=kind is sgmcmc.SVRG)
    target = kind(base, at(CENTER, dtype=dtype) if kind is sgmcmc.ControlVariate else 2)
    states = tf.constant(GENERATOR.standard_normal([3, 6, 2]), dtype)

    def estimates(states: tf.Tensor) -> list[tf.Tensor]:
        carried, found = target.bootstrap(states[0]), []
        for k in range(3):
            estimate = target.estimate(states[k], [1, k], carried)
            carried = estimate.target_state
            found.append(estimate._replace(target_state=getattr(carried, "anchor", ())))
        return [x for x in tf.nest.flatten(found) if x is not None]

    tolerance = 1e-10 if dtype == tf.float64 else 1e-4
    eager = estimates(states)
    compiled = tf.function(estimates, jit_compile=jit, autograph=False)(states)
    assert len(eager) == len(compiled) == 3 * (4 if kind is sgmcmc.ControlVariate else 7)
    for x, y in zip(eager, compiled, strict=True):
        assert x.dtype == y.dtype == dtype
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_hessian_product_is_that_of_the_same_minibatch(kind: Any) -> None:
    base = regression()
    target, _, carried = anchored(kind, base, 4) if kind else (base, None, ())
    theta, probe = GENERATOR.standard_normal([2, 4, 2])

    def estimate(state: np.ndarray, **options: Any) -> Any:
        return target.estimate(tf.constant(state), [1, 2], carried, with_scores=False, **options)

    found = estimate(theta, probe=tf.constant(probe))
    up, down = (estimate(theta + h * probe).gradient for h in (1e-6, -1e-6))
    np.testing.assert_allclose(found.hessian_product, (up - down) / 2e-6, rtol=1e-6)
    np.testing.assert_allclose(found.gradient, estimate(theta).gradient, rtol=1e-10)
