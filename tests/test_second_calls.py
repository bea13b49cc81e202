"""A second call on the same target traces and compiles nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.harness.programs import counted

tfd = tfp.distributions
QUIET: dict[str, Any] = {"progress_bar": False}


def make_target(replacement: bool = True) -> sgmcmc.MinibatchLogProb:
    x = np.random.default_rng(0).normal(1.0, 1.0, [200, 2]).astype(np.float32)
    return sgmcmc.MinibatchLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        lambda w, x: tfd.MultivariateNormalDiag(w[..., None, :], tf.ones([2])).log_prob(x),
        x,
        20,
        replacement=replacement,  # traces faster
    )


TARGET, START = make_target(), tf.zeros([2])
KERNEL = sgmcmc.SGLD(TARGET, 1e-3)


@pytest.fixture(scope="module")
def result() -> sgmcmc.SampleResult:
    return sgmcmc.sample_chain(KERNEL, START, 100, num_chains=2, seed=0, jit_compile=False, **QUIET)


CALLS: dict[str, Callable[[int, Any], Any]] = {
    "sample": lambda seed, _: sgmcmc.sample(TARGET, START, 100, min_ess=20, seed=seed, **QUIET),
    "sample_chain": lambda seed, _: sgmcmc.sample_chain(
        KERNEL, START, 100 + seed, num_chains=2, seed=seed, **QUIET
    ),
    "NOGIN": lambda seed, _: sgmcmc.sample_chain(
        sgmcmc.NOGIN(TARGET, 1e-3 * (1 + seed), 1.0), START, 100, num_chains=2, seed=seed, **QUIET
    ),
    "preflight": lambda seed, _: sgmcmc.preflight(TARGET, START + 0.1 * seed, kernel=KERNEL),
    "find_center": lambda seed, _: sgmcmc.find_center(TARGET, START + 0.1 * seed),
    "L-BFGS": lambda seed, _: sgmcmc.find_center(TARGET, START + 0.1 * seed, "lbfgs", seed=seed),
    "ControlVariate": lambda seed, _: sgmcmc.ControlVariate(TARGET, START + 0.1 * seed),
    "certify": lambda seed, result: sgmcmc.certify(result, TARGET, seed=seed),
    "report": lambda _, result: sgmcmc.report(result, TARGET),
}


def many_rows() -> sgmcmc.MinibatchLogProb:
    """So many rows that a draw of minibatches with control variates takes least."""
    x = np.random.default_rng(0).normal(size=[1_000_000, 10]).astype(np.float32)
    return sgmcmc.MinibatchLogProb(
        lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
        sgmcmc.LinearModel(lambda eta, y: tfd.Bernoulli(logits=eta).log_prob(y)),
        (x, (x[:, 0] > 0.5).astype(np.float32)),
        20,
    )


@pytest.mark.slow
def test_nothing_is_traced_for_control_variates() -> None:
    target, start = many_rows(), tf.zeros([10])
    first = sgmcmc.sample(target, start, 100, min_ess=20, seed=0, **QUIET)
    assert "UnderdampedLangevin" in str(first.explanation)
    with counted() as made:
        second = sgmcmc.sample(target, start, 100, min_ess=20, seed=1, **QUIET)
    assert made.graphs == [] and made.maps[0] < 20
    assert not np.array_equal(first.states, second.states)


@pytest.mark.filterwarnings("ignore")  # so few draws are not judged here
@pytest.mark.parametrize(
    "name", fast_settings(CALLS, "preflight", "find_center", "ControlVariate", "certify", "report")
)
def test_nothing_is_traced_or_compiled(name: str, result: sgmcmc.SampleResult) -> None:
    CALLS[name](0, result)
    with counted() as made:
        CALLS[name](1, result)
    assert made.graphs == []
    assert made.maps[0] < 20  # a program of XLA takes about 50


@pytest.mark.thorough
def test_a_new_small_target_leaves_no_programs() -> None:
    """It is traced, which is the negative control, but XLA compiles nothing for it."""
    CALLS["sample"](0, None)
    with counted() as made:
        sgmcmc.sample(make_target(), START, 100, min_ess=20, seed=1, **QUIET)
    assert made.graphs and made.maps[0] < 20


@pytest.mark.thorough
def test_another_batch_size_has_its_own_gradients() -> None:
    """Kept programs of estimates distinguish the minibatches of copies."""
    samples, seed = tf.ones([3, 2]), tf.constant([0, 1])
    target = make_target(replacement=False)
    whole = sgmcmc.diagnostics.gradients_at(target.with_minibatches(200), samples, seed)
    exact = sgmcmc.diagnostics.gradients_at(target, samples)
    noisy = sgmcmc.diagnostics.gradients_at(target, samples, seed)
    np.testing.assert_allclose(whole, exact, rtol=1e-3)
    assert np.abs(noisy - exact).max() > 1
