"""Targets whose prior, bijector and start come from one distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.harness.programs import num_maps
from tfp_sgmcmc.adaptation.settings import SampleCall
from tfp_sgmcmc.adaptation.target_arguments import (
    as_problem,
    check_target,
    finite_start,
    single_state,
)
from tfp_sgmcmc.adaptation.target_driver import TargetSettings
from tfp_sgmcmc.internal.nest import call_with_state
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import value_and_gradient

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


@pytest.mark.parametrize("prior", fast_settings([by_position, by_name, by_coroutine], by_name))
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


def test_a_stream_has_the_same_prior_and_start() -> None:
    blocks = tf.data.Dataset.from_tensor_slices(ROWS).batch(len(ROWS) // 2)
    stream = sgmcmc.StreamedLogProb.from_joint(by_name(), log_likelihood, blocks, len(ROWS))
    target = sgmcmc.MinibatchLogProb.from_joint(by_name(), log_likelihood, ROWS)
    state = single_state(stream.of_one_batch, None)
    tf.nest.map_structure(np.testing.assert_array_equal, state, target.initial_state)
    np.testing.assert_allclose(stream(**state), target(**state), rtol=1e-6)
    settings = TargetSettings(SampleCall(stream, num_results=500, jit_compile=False), None)
    tf.nest.map_structure(np.testing.assert_array_equal, settings.state, state)
    loaded, _ = sgmcmc.draw_pool(stream)
    np.testing.assert_allclose(loaded(**state), target(**state), rtol=1e-6)


def test_automatic_batches_are_compiled_once() -> None:
    """Where `tf.vectorized_map` makes a function, XLA compiles gradients for each value again."""

    @tfd.JointDistributionCoroutineAutoBatched
    def joint() -> Any:
        mu = yield tfd.Normal(5.0, 1.0, name="mu")
        effects = yield tfd.Sample(tfd.Normal(0.0, 1.0), len(ROWS), name="effects")
        yield tfd.Normal(mu * tf.exp(effects), 1.0, name="y")

    target = sgmcmc.FullDataLogProb(joint.experimental_pin(y=ROWS).unnormalized_log_prob)

    def slope(mu: tf.Tensor) -> tf.Tensor:
        state = {"mu": mu, "effects": tf.zeros([2, len(ROWS)])}
        return value_and_gradient(target, state)[1]["mu"]

    maps = []
    for compiled in (traced(slope, True), tf.function(slope, jit_compile=True)):
        compiled(tf.constant([0.5, 1.0]))
        before = num_maps()
        for x in (2.0, 3.0, 4.0, 5.0):
            expected = 5 - x + (ROWS - x).sum()
            np.testing.assert_allclose(compiled(tf.constant([x, 1.0]))[0], expected, rtol=1e-4)
        maps.append(num_maps() - before)
    assert maps[0] < 4 <= maps[1]


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


@pytest.mark.parametrize(
    "prior",
    [
        tfd.Poisson(3.0),  # its dtype is float32
        tfd.JointDistributionNamed({"mu": tfd.Poisson(3.0), "sigma": tfd.HalfNormal(1.0)}),
        tfd.MixtureSameFamily(tfd.Categorical([0.0, 0.0]), tfd.Normal(0.0, [1.0, 2.0])),
    ],
)
def test_discrete_parts_and_mixtures_are_refused(prior: Any) -> None:
    with pytest.raises(TypeError, match="joint must have continuous parts"):
        sgmcmc.MinibatchLogProb.from_joint(prior, log_likelihood, ROWS)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(tfd.WishartTriL(5.0, tf.eye(2)), marks=pytest.mark.thorough),
        pytest.param(
            tfd.WishartTriL(5.0, tf.eye(2), input_output_cholesky=True), marks=pytest.mark.thorough
        ),
        tfd.SphericalUniform(3),
    ],
    ids=lambda part: part.name,
)
def test_a_default_bijector_that_does_not_reach_all_values_is_refused(part: Any) -> None:
    """The Wishart's gives no small diagonals, that of points on a sphere positive entries only."""

    def rows(a: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(a) * batch

    message = r"reaches every value.* not give back \d+ of 4000 draws"
    with pytest.raises(ValueError, match=message):
        sgmcmc.MinibatchLogProb.from_joint(part, rows, ROWS)

    @tfd.JointDistributionCoroutineAutoBatched
    def joint() -> Any:
        a = yield part
        yield tfd.Normal(tf.reduce_sum(a), 1.0, name="y")

    with pytest.raises(ValueError, match=message):
        as_problem(joint.experimental_pin(y=1.0))
    named = tfd.JointDistributionNamed({"b": tfd.Normal(0.0, 1.0), "a": part})
    with pytest.raises(ValueError, match="draws of the part a, of shape"):
        sgmcmc.MinibatchLogProb.from_joint(named, lambda a, b, batch: b + rows(a, batch), ROWS)


@pytest.mark.parametrize(
    "prior",
    [
        tfd.Gamma(1e-3, 1.0),  # most of its draws are 0 or hardly more
        tfd.Dirichlet([0.05, 0.05, 0.05]),  # with entries of exactly 0
        tfd.HalfStudentT(0.3, 0.0, 1.0),
        tfd.Uniform(1e6, 1e6 + 1),
        *(
            pytest.param(d, marks=pytest.mark.thorough)
            for d in (tfd.InverseGamma(0.1, 1.0), tfd.LKJ(8, 0.5))
        ),
    ],
    ids=lambda prior: prior.name,
)
def test_draws_at_the_end_of_single_precision_are_not_lost(prior: Any) -> None:
    target = sgmcmc.MinibatchLogProb.from_joint(
        prior, lambda a, batch: tf.reduce_sum(a) * batch, ROWS
    )
    assert np.isfinite(target.initial_state).all()


def test_a_prior_has_a_bijector_already() -> None:
    with pytest.raises(TypeError, match="bijector must be left out"):
        sgmcmc.MinibatchLogProb.from_joint(
            tfd.Normal(0.0, 1.0), log_likelihood, ROWS, bijector=tfp.bijectors.Exp()
        )


def test_other_targets_need_a_start() -> None:
    target = sgmcmc.MinibatchLogProb(lambda x: -(x**2), lambda x, batch: x * batch, ROWS)
    with pytest.raises(ValueError, match="initial_state must be given, unless"):
        sgmcmc.sample(target, num_results=10, progress_bar=False)


def pinned() -> Any:
    @tfd.JointDistributionCoroutineAutoBatched
    def joint() -> Any:
        mu = yield tfd.Normal(5.0, 1.0, name="mu")
        sigma = yield tfd.HalfNormal(2.0, name="sigma")
        yield tfd.Sample(tfd.Normal(mu, sigma), len(ROWS), name="y")

    return joint.experimental_pin(y=ROWS)


@pytest.mark.thorough
def test_a_pinned_joint_distribution_is_a_posterior() -> None:
    problem = as_problem(pinned())
    state = single_state(problem, None)
    target = sgmcmc.MinibatchLogProb.from_joint(by_coroutine(), log_likelihood, ROWS)
    expected = call_with_state(target, {"mu": state.mu, "sigma": state.sigma})
    assert float(call_with_state(problem, state)) == pytest.approx(float(expected), rel=1e-5)


def test_a_callable_takes_bijectors() -> None:
    def log_prob(a: tf.Tensor, b: dict[str, tf.Tensor]) -> tf.Tensor:
        return tfd.Normal(0.0, 1.0).log_prob(a) - tf.reduce_sum(b["c"], axis=-1)

    problem = as_problem(log_prob, {"b": {"c": tfb.Exp()}})
    state = {"a": 0.5, "b": {"c": tf.constant([0.1, -0.2])}}
    found = single_state(problem, state)
    c = np.exp([0.1, -0.2])
    expected = -0.125 - 0.5 * np.log(2 * np.pi) - c.sum() - 0.1  # the Jacobian is exp(0.1 - 0.2)
    assert float(call_with_state(problem, found)) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(problem.constrain(found)["b"]["c"], c, rtol=1e-6)


def test_a_target_has_a_bijector_already() -> None:
    target = sgmcmc.MinibatchLogProb.from_joint(by_name(), log_likelihood, ROWS)
    for given in (target, pinned()):
        with pytest.raises(ValueError, match="bijector must be None, because a .* has one"):
            check_target(given, tfb.Exp())


def test_a_dirichlet_prior_has_a_bijector_with_every_numpy() -> None:
    prior = tfd.JointDistributionNamed({"weight": tfd.Dirichlet([2.0, 2.0, 2.0])})
    target = sgmcmc.MinibatchLogProb.from_joint(
        prior, lambda weight, batch: tf.math.log(weight[..., :1]) * batch, ROWS
    )
    weight = target.constrain(target.initial_state)["weight"]
    assert weight.shape == [3] and float(tf.reduce_sum(weight)) == pytest.approx(1.0)


def test_a_start_that_overflows_moves_towards_the_origin() -> None:
    problem = as_problem(lambda x: -tf.exp(x**2))
    state, notes = finite_start(problem, tf.constant(16.0))
    assert float(state) == 8.0 and notes[0].grade == "note"
    assert "in float32, so the run began at 0.5 times initial_state" in notes[0]
    _, (note,) = finite_start(problem, tf.constant(16.0), "the medians of the prior")
    assert "at the medians of the prior in float32" in note
    assert finite_start(problem, tf.constant(2.0)) == (tf.constant(2.0), ())
    always, told = finite_start(as_problem(lambda x: x * np.nan), tf.constant(1.0))
    assert float(always) == 1.0 and told == ()


def test_a_start_without_density_is_replaced_by_a_random_one() -> None:
    """The end of a uniform distribution, by its logarithm: no row may lie beyond it.

    At zero and at the start the density is zero, and towards the origin it stays so.
    """

    def log_likelihood(end: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        log_prob = tf.where(batch <= end[..., None], -tf.math.log(end)[..., None], -np.inf)
        return log_prob + tf.zeros_like(batch)

    rows = np.linspace(0.1, 5.0, 9, dtype=np.float32)
    target = sgmcmc.MinibatchLogProb(lambda end: -end, log_likelihood, rows, bijector=tfb.Exp())
    state, notes = finite_start(target, tf.constant(-1.0))
    assert np.isfinite(target(state)) and float(state) > np.log(5)
    assert "so the run began at a state drawn from (-2, 2)" in notes[0]


def test_the_start_of_automatic_batches_is_the_median_of_the_prior() -> None:
    """TFP's vectorised draws of a CholeskyLKJ have zeros in place of their first ones.

    1,000 draws: the median of Gamma(2, 1) is 1.678 with a standard error of 0.05, and 5 are
    exceeded with probability 6e-7.
    """

    @tfd.JointDistributionCoroutineAutoBatched
    def joint() -> Any:
        factor = yield tfd.CholeskyLKJ(3, 2.0, name="factor")
        scale = yield tfd.Gamma(2.0, 1.0, name="scale")
        yield tfd.Normal(tf.reduce_sum(factor) * scale, 1.0, name="y")

    problem = as_problem(joint.experimental_pin(y=1.0))
    start = problem.constrain(problem.initial_state)
    np.testing.assert_allclose(np.linalg.norm(start.factor, axis=-1), 1.0, rtol=1e-5)
    assert abs(float(start.scale) - 1.678) < 0.25
    again = as_problem(joint.experimental_pin(y=2.0)).initial_state
    tf.nest.map_structure(np.testing.assert_array_equal, problem.initial_state, again)
