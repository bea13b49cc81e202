"""Targets whose prior, bijector and start come from one distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation.target_arguments import as_problem, single_state
from tfp_sgmcmc.internal.nest import call_with_state

tfb, tfd = tfp.bijectors, tfp.distributions
ROWS = np.random.default_rng(0).normal(3.0, 2.0, [12]).astype(np.float32)


def log_likelihood(mu: tf.Tensor, sigma: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return tfd.Normal(mu[..., None], sigma[..., None]).log_prob(batch)


def by_position() -> Any:
    return tfd.JointDistributionSequential([tfd.Normal(5.0, 1.0), tfd.HalfNormal(2.0)])


def by_name() -> Any:
    return tfd.JointDistributionNamed({"mu": tfd.Normal(5.0, 1.0), "sigma": tfd.HalfNormal(2.0)})


def by_coroutine() -> Any:
    @tfd.JointDistributionCoroutineAutoBatched
    def prior() -> Any:
        yield tfd.Normal(5.0, 1.0, name="mu")
        yield tfd.HalfNormal(2.0, name="sigma")

    return prior


@pytest.mark.parametrize("prior", [by_position, by_name, by_coroutine])
def test_prior_bijector_and_start_come_from_a_joint_distribution(prior: Any) -> None:
    target = sgmcmc.MinibatchLogProb.from_joint(prior(), log_likelihood, ROWS)
    assert target.batch_size == len(ROWS)
    state = single_state(as_problem(target), None)
    u, v = tf.nest.flatten(state)
    # Medians of 101 draws have a standard error of 1.25 / 10 of the prior's deviations.
    assert abs(float(u) - 5) < 0.6
    constrained = tf.nest.flatten(target.constrain(state))
    assert abs(float(constrained[1]) - 2 * 0.674) < 0.8
    log_prior = tfd.Normal(5.0, 1.0).log_prob(u) + tfd.HalfNormal(2.0).log_prob(constrained[1])
    rows = tfd.Normal(u, constrained[1]).log_prob(ROWS)
    density = call_with_state(target, state) - tf.reduce_sum(rows) - log_prior
    jacobian = tf.math.log(-tf.math.expm1(-constrained[1]))  # of Softplus, or of Exp
    assert min(abs(density - jacobian), abs(density - v)) < 1e-3


def test_a_single_part_may_have_any_distribution() -> None:
    target = sgmcmc.MinibatchLogProb.from_joint(
        tfd.Gamma(2.0, 1.0), lambda rate, batch: -rate[..., None] * batch, np.abs(ROWS)
    )
    assert float(target.constrain(target.initial_state)) == pytest.approx(1.68, abs=0.7)


def test_what_is_no_single_distribution_is_refused() -> None:
    with pytest.raises(TypeError, match="joint must be a tfp.distributions.Distribution"):
        sgmcmc.MinibatchLogProb.from_joint(ROWS, log_likelihood, ROWS)
    with pytest.raises(ValueError, match=r"joint must be one distribution. .*batch_shape of \(2"):
        sgmcmc.MinibatchLogProb.from_joint(tfd.Normal([0.0, 1.0], 1.0), log_likelihood, ROWS)


def test_other_targets_need_a_start() -> None:
    target = sgmcmc.MinibatchLogProb(lambda x: -(x**2), lambda x, batch: x * batch, ROWS)
    with pytest.raises(ValueError, match="initial_state must be given, unless"):
        sgmcmc.sample(target, num_results=10, progress_bar=False)
