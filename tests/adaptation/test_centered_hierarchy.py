"""NUTS that starts anew: places near the typical set, and hierarchies that are recognised."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings
from tests.harness.programs import count_loops
from tfp_sgmcmc.adaptation import fallback, nuts_pilot
from tfp_sgmcmc.adaptation.coordinates import whiten_at_mode
from tfp_sgmcmc.adaptation.hierarchies.centered_hierarchy import (
    find_centered_hierarchy,
    hierarchy_around,
)
from tfp_sgmcmc.adaptation.hierarchies.noncentering import noncentered
from tfp_sgmcmc.adaptation.hierarchies.prior_scale import NotNearGaussian
from tfp_sgmcmc.adaptation.nuts_pilot import run_nuts_pilot
from tfp_sgmcmc.adaptation.target_arguments import as_problem
from tfp_sgmcmc.adaptation.typical_set import TypicalStarts, typical_starts
from tfp_sgmcmc.diagnostics.convergence import batch_means_standard_error
from tfp_sgmcmc.sampling.run import run_kernel
from tfp_sgmcmc.sampling.steps import StepPlan

tfb, tfd = tfp.bijectors, tfp.distributions
Y = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float64)
WIDTH = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float64)
START = {name: tf.zeros(n, tf.float64) for name, n in (("effect", [8]), ("mean", []), ("tau", []))}


def schools(is_centered: bool) -> sgmcmc.MinibatchLogProb:
    """Returns the eight schools, with the effects themselves or as standard normals."""

    def log_prior(effect: tf.Tensor, mean: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
        if is_centered:
            effect = (effect - mean[..., None]) / tau[..., None]
        of_effects = tf.reduce_sum(-(effect**2) / 2, axis=-1)
        if is_centered:
            of_effects -= 8 * tf.math.log(tau)
        return of_effects - (mean / 5) ** 2 / 2 - tf.math.log1p((tau / 5) ** 2)

    def log_likelihood(effect: tf.Tensor, mean: tf.Tensor, tau: tf.Tensor, batch: Any) -> tf.Tensor:
        if not is_centered:
            effect = mean[..., None] + tau[..., None] * effect
        row = batch["row"]
        effect = tf.gather(effect, row, axis=-1, batch_dims=row.shape.rank - 1)
        return -(((batch["y"] - effect) / batch["width"]) ** 2) / 2

    data = {"y": Y, "width": WIDTH, "row": np.arange(8)}
    return sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, bijector={"tau": tfb.Exp()})


def rows(is_centered: bool) -> np.ndarray:
    """Returns flat states with a log scale between -1 and 3."""
    rng = np.random.default_rng(0)
    log_tau, mean = rng.uniform(-1, 3, [100, 1]), rng.normal(4, 3, [100, 1])
    effects = rng.standard_normal([100, 8])
    if is_centered:
        effects = mean + np.exp(log_tau) * effects
    return np.concatenate([effects, mean, log_tau], axis=1)


def test_a_centered_hierarchy_is_recognised_by_its_prior() -> None:
    found = find_centered_hierarchy(schools(True), START, rows(True))
    assert found is not None and found[:4] == ("effect", "tau", "mean", (*range(8),))
    assert "effect = mean[..., None] + tau[..., None] * effect_raw" in found.remedy
    assert "tfd.Normal(0., 1.).log_prob(effect_raw)" in found.remedy
    assert len(found.remedy.splitlines()) == 4
    plain = found._replace(has_prior=False)
    assert "prior of effect depends" not in plain.remedy and "log_prior_fn" not in plain.remedy
    # A flat state, as in other coordinates, does not know the names.
    flat = schools(True), START, rows(True), [*["school"] * 8, "location", "width"]
    named = find_centered_hierarchy(*flat)
    assert named is not None and named[:3] == ("school", "width", "location")


def test_a_hierarchy_is_found_before_any_search() -> None:
    """From zeros: the search for a mode ends in the neck, and is not repeated."""
    problem = schools(True)
    found = hierarchy_around(problem, START)
    assert found is not None and found.entries == (*range(8),)
    assert hierarchy_around(schools(False), START) is None
    with pytest.raises(NotNearGaussian, match="the width of effect depends on tau"):
        whiten_at_mode(problem, START)


@pytest.mark.thorough
def test_effects_become_standard_normals() -> None:
    """The centred model in the new coordinates is the non-centred one, Jacobian included."""
    start = {**START, "tau": tf.constant(0.7, tf.float64), "mean": tf.constant(2.0, tf.float64)}
    target, state = noncentered(schools(True), start, (*range(8),))
    expected = np.array([*[-2 / np.exp(0.7)] * 8, 2.0, 0.7])
    np.testing.assert_allclose(state, expected)
    z = np.random.default_rng(1).standard_normal([3, 10])
    other = dict(effect=tf.constant(z[:, :8]), mean=tf.constant(z[:, 8]), tau=tf.constant(z[:, 9]))
    np.testing.assert_allclose(target(tf.constant(z)), schools(False)(**other))
    parameters = target.constrain(tf.constant(z))
    effects = z[:, 8:9] + np.exp(z[:, 9:]) * z[:, :8]
    np.testing.assert_allclose(parameters["effect"], effects)
    np.testing.assert_allclose(target.bijector.inverse(parameters), z)


def test_hierarchies_in_other_forms_are_recognised() -> None:
    """A plain log posterior, and a joint distribution with pinned data.

    The plain one has no prior: its effects are normal given data and scale, which is as good.
    """
    model = schools(True).with_bijector(None)
    problem = as_problem(lambda **parameters: model(**parameters), {"tau": tfb.Exp()})
    found = find_centered_hierarchy(problem, START, rows(True))
    assert found is not None and found[:2] == ("effect", "tau") and found.entries == (*range(8),)
    target, state = noncentered(problem, START, found.entries)
    z = tf.constant(np.random.default_rng(2).standard_normal([50, 10]))
    log_tau = np.array([*state[:9], -3.0])  # where all effects are about the mean
    at = target.constrain(tf.constant(log_tau))
    np.testing.assert_allclose(at["effect"], np.full(8, at["mean"]), atol=0.1)
    # Given mean and tau, the effects z are standard normals, whatever the likelihood.
    fixed = tf.concat([z[:, :8], tf.ones_like(z[:, 8:])], axis=1)
    alone = target(fixed) + tf.reduce_sum(z[:, :8] ** 2, axis=1) / 2
    np.testing.assert_allclose(alone, alone[0])

    one = tf.ones([], tf.float64)
    joint = tfd.JointDistributionNamed(
        {
            "mean": tfd.Normal(0 * one, 5 * one),
            "tau": tfd.HalfCauchy(0 * one, 5 * one),
            "effect": lambda mean, tau: tfd.Sample(tfd.Normal(mean, tau), 8),
            "y": lambda effect: tfd.Independent(tfd.Normal(effect, WIDTH), 1),
        }
    )
    pinned = as_problem(joint.experimental_pin(y=tf.constant(Y)))
    found = find_centered_hierarchy(pinned, START, rows(True))
    assert found is not None and found[:4] == ("effect", "tau", "mean", (*range(8),))
    state = pinned.constrain(START)
    expected = joint.log_prob(y=tf.constant(Y), **state)
    np.testing.assert_allclose(pinned.with_bijector(None)(**state), expected)


def test_effects_whose_prior_is_not_normal_stay() -> None:
    """Laplace's distribution in place of the normal: the slope is not linear."""

    def log_prior(effect: tf.Tensor, mean: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
        z = (effect - mean[..., None]) / tau[..., None]
        of_effects = -tf.reduce_sum(tf.sqrt(1 + z**2), axis=-1) - 8 * tf.math.log(tau)
        return of_effects - (mean / 5) ** 2 / 2 - tf.math.log1p((tau / 5) ** 2)

    def nothing(effect: tf.Tensor, mean: tf.Tensor, tau: tf.Tensor, batch: Any) -> tf.Tensor:
        return 0 * (mean + tau)[..., None] * batch * effect[..., :1]

    other = sgmcmc.MinibatchLogProb(log_prior, nothing, np.ones(1), bijector={"tau": tfb.Exp()})
    found = find_centered_hierarchy(other, START, rows(True))
    assert found is None or not found.entries


def test_correlated_effects_stay_and_so_does_their_mean() -> None:
    """Given the effects, the mean is normal with a width that depends on tau, but it is no effect.

    Negative control: independent effects.
    """
    for correlation, entries in ((0.5, ()), (0.0, (*range(8),))):
        matrix = correlation ** np.abs(np.subtract.outer(range(8), range(8)))
        whitened = tf.constant(np.linalg.inv(np.linalg.cholesky(matrix)))

        def log_prior(
            effect: tf.Tensor, mean: tf.Tensor, tau: tf.Tensor, whitened: tf.Tensor = whitened
        ) -> tf.Tensor:
            z = tf.linalg.matvec(whitened, (effect - mean[..., None]) / tau[..., None])
            of_effects = -tf.reduce_sum(z**2, axis=-1) / 2 - 8 * tf.math.log(tau)
            return of_effects - (mean / 5) ** 2 / 2 - tf.math.log1p((tau / 5) ** 2)

        target = sgmcmc.MinibatchLogProb(
            log_prior,
            lambda effect, mean, tau, batch: 0 * effect[..., :1] * batch,
            np.ones(1),
            bijector={"tau": tfb.Exp()},
        )
        found = find_centered_hierarchy(target, START, rows(True))
        assert found is not None and found.effects == "effect" and found.entries == entries
        flag = fallback._untrusted(found)
        assert flag.grade == "wrong" and "depends on tau" in flag and flag.remedy == found.remedy


def test_a_non_centered_one_is_not() -> None:
    assert find_centered_hierarchy(schools(False), START, rows(False)) is None


def test_a_prior_that_varies_with_its_own_entry_is_not_one() -> None:
    """The prior of exp(b) is normal, so it is steeper for larger b, and c follows b here."""
    start = {"b": tf.zeros([], tf.float64), "c": tf.zeros([], tf.float64)}
    target = sgmcmc.MinibatchLogProb(
        lambda b, c: -tf.exp(2 * b) / 2 - c**2 / 2,
        lambda b, c, batch: 0 * (b + c)[..., None] * batch,
        np.ones(1),
    )
    b = np.random.default_rng(0).standard_normal(100)
    draws = np.stack([b, b + 1e-3 * np.sin(b)], axis=1)
    assert find_centered_hierarchy(target, start, draws) is None


def test_starts_lie_where_the_mass_is_not_at_the_peak_in_the_neck() -> None:
    """The density is unbounded where tau is 0. In the posterior log tau is 0.8 +- 1.1.

    The median of the reference draws of log tau is 1.0, and 98 % lie between -3.2 and 2.6.
    """
    found = typical_starts(schools(True), START, 4, np.array([0, 1]), jit_compile=False)
    assert found.states.shape == (4, 10)
    log_tau = found.states[:, -1]
    assert (log_tau > -3.5).all() and (log_tau < 4).all()
    assert (np.abs(found.states[:, :8] - 5) < 40).all()


@pytest.mark.parametrize("unit", fast_settings([1e-3, 1.0, 1e3], 1e-3))
def test_starts_of_a_normal_posterior_are_draws_of_it(unit: float) -> None:
    """A Newton step along each axis reaches the mode of independent entries at once."""
    deviation = unit * np.array([1.0, 10.0])

    def log_prob(x: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_sum(((x - 3 * unit) / deviation) ** 2, axis=-1) / 2

    target = sgmcmc.MinibatchLogProb(log_prob, lambda x, batch: 0 * x[..., :1] * batch, np.ones(1))
    start = tf.zeros([2], tf.float64)
    found = typical_starts(target, start, 50, np.array([0, 1]), jit_compile=False)
    z = (found.states - 3 * unit) / deviation
    np.testing.assert_allclose(found.variance**0.5, np.minimum(deviation, 100), rtol=1e-3)
    assert np.abs(z).max() < 6


def test_starts_of_many_entries_take_few_evaluations() -> None:
    """A state for each of 1500 entries would take memory in proportion to their square."""
    deviation, sizes = np.geomspace(1.0, 10.0, 1500), []

    def log_prob(x: tf.Tensor) -> tf.Tensor:
        sizes.append(x.shape[0])
        return -tf.reduce_sum((x / deviation) ** 2, axis=-1) / 2

    target = sgmcmc.MinibatchLogProb(log_prob, lambda x, batch: 0 * x[..., :1] * batch, np.ones(1))
    start = tf.zeros([1500], tf.float64)
    found = typical_starts(target, start, 2, np.array([0, 1]), jit_compile=False)
    np.testing.assert_allclose(found.variance, deviation**2, rtol=1e-6)
    assert max(sizes) <= 1024


def test_chains_start_where_the_density_is_finite() -> None:
    """The density is NaN in half of the space, as where a factorisation fails. It rises to there.

    Negative control: half of the fresh draws around the places are NaN.
    """

    def log_prob(x: tf.Tensor) -> tf.Tensor:
        nowhere = tf.constant(np.nan, x.dtype)
        return tf.where(x[..., 0] > 0, nowhere, -tf.reduce_sum(x**2, axis=-1) / 2)

    target = sgmcmc.MinibatchLogProb(log_prob, lambda x, batch: 0 * x[..., :1] * batch, np.ones(1))
    start = tf.constant([-1.0, 0.0], tf.float64)
    found = typical_starts(target, start, 8, np.array([0, 1]), jit_compile=False)
    assert np.isfinite(target(tf.constant(found.states))).all()
    assert len(np.unique(found.states[:, 0])) == 8


def test_nuts_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pilot in six metrics, the run, and one with a smaller step share one program.

    The density of one step's start is that of the run's target, Jacobian included, and gradients
    are those of z.
    """
    traces = count_loops(monkeypatch, nuts_pilot)
    monkeypatch.setattr(nuts_pilot, "_WINDOWS", (2, 5, 2, 10, 10))
    monkeypatch.setattr(nuts_pilot, "_ADAPTATION_STEPS", 5)
    monkeypatch.setattr(nuts_pilot, "_FINAL_STEPS", 10)
    deviation = np.array([1.0, 10.0])

    def log_prob(x: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_sum((x / deviation) ** 2, axis=-1) / 2 + x[..., 0] * x[..., 1] / 20

    target = sgmcmc.MinibatchLogProb(log_prob, lambda x, batch: 0 * x[..., :1] * batch, np.ones(1))
    start, seeds = tf.zeros([2], tf.float64), (tf.constant([0, 1]), tf.constant([0, 2]))
    starts = typical_starts(target, start, 4, seeds[0].numpy(), jit_compile=False)
    reason = NotNearGaussian("of a test")
    pilot = run_nuts_pilot(target, start, starts, seeds[0], False, reason)
    attempt = fallback._Run(target, start, reason, None, 1000, 4, seeds, False, ["x", "x"])
    prepared = fallback._nuts(pilot, attempt, 0.0)
    options = {"num_chains": None, "trace_fn": prepared.choices.trace_fn, "jit_compile": False}
    options |= {"progress_bar": False, "run": None, "checkpoint_seconds": 60.0}
    options |= {"preflight_check": False, "view": prepared.bijector.forward}
    for kernel, stride in ((prepared, 1), (prepared.with_step_size(0.4), 2)):
        loop, plan = kernel.loop, StepPlan(50, 0, stride)
        first = kernel.choices.first_state
        run = run_kernel(kernel.kernel, first, plan, seed=seeds[1], loop=loop, **options)
        assert run.num_results == 50 and len(traces) == 1
        z = prepared.bijector.inverse(tf.constant(run.states[-1]))
        results = run.final_kernel_results
        expected = kernel.kernel.target_log_prob_fn(z)
        np.testing.assert_allclose(results.target_log_prob, expected, rtol=1e-6)
        found = prepared.gradients(z.numpy()[np.newaxis], seeds[0])[0]
        np.testing.assert_allclose(results.grads_target_log_prob[0], found, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("first", fast_settings([0.01, 5.0], 5.0))
def test_the_step_is_adapted_to_the_acceptance(first: float) -> None:
    """Other steps are not: the run keeps the step that it is given, and the pilot's first is lost.

    For standard normals in ten dimensions, a step of about 0.65 gives the acceptance 0.9.
    """
    target = sgmcmc.MinibatchLogProb(
        lambda x: -tf.reduce_sum(x**2, axis=-1) / 2, lambda x, b: 0 * x[..., :1] * b, np.ones(1)
    )
    seed, states = tf.constant([0, 1]), np.zeros([4, 10])
    chains = nuts_pilot._Chains(target, tf.zeros([10], tf.float64), True, 4, False)
    chains.restart(np.zeros(10), np.ones(10), states, first, 0.9)
    chains.adapt(300, seed)
    assert 0.55 < chains.step_size < 0.8
    run, position = chains.steps_of_run(chains._affine), chains._position
    inner = position.results.inner_results._replace(step_size=tf.constant(first, tf.float64))
    position, _, _ = run(position._replace(results=inner), 10, 1, 1, seed)
    assert float(position.results.step_size) == first


def test_steps_become_smaller_where_trajectories_diverge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window in which none diverges keeps the acceptance, and early windows do not count."""
    targets = []

    class Chains:
        def __init__(self, *given: Any):
            self._diverged = iter([True, True, True, False, True])
            self.step_size, self.z = 0.1, np.zeros([2, 3])

        def restart(self, *given: Any) -> None:
            targets.append(given[-1])

        def adapt(self, num_steps: int, seed: tf.Tensor) -> None: ...

        def draw(self, num_draws: int, seed: tf.Tensor) -> tuple[np.ndarray, bool]:
            draws = np.random.default_rng(0).standard_normal([num_draws, 2, 3])
            return draws, next(self._diverged)

    monkeypatch.setattr(nuts_pilot, "_Chains", Chains)
    target = sgmcmc.MinibatchLogProb(
        lambda x: -tf.reduce_sum(x**2, axis=-1) / 2, lambda x, b: 0 * x[..., :1] * b, np.ones(1)
    )
    start = tf.zeros([3], tf.float64)
    starts = TypicalStarts(np.zeros([2, 3]), np.ones(3))
    run_nuts_pilot(target, start, starts, tf.constant([0, 1]), False, NotNearGaussian("a test"))
    np.testing.assert_allclose(targets, [0.9] * 5 + [0.98])


@pytest.mark.thorough
def test_chains_come_to_the_ends_of_a_banana(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that suit its middle diverge at its ends, where it is narrower.

    A tenth of a trajectory diverges in 8,000, so more than four have a false-alarm rate of 1e-7; so
    has the share of draws beyond two standard deviations, 0.0455, with a bound of 5.3 standard
    errors. Negative control: with steps that stay as large, above thirty diverge.
    """

    def log_prob(x: tf.Tensor) -> tf.Tensor:
        a, b = tf.unstack(x, axis=-1)
        return -(a**2) / 2 - (b - 3 * a**2) ** 2 / 2

    target = sgmcmc.MinibatchLogProb(log_prob, lambda x, batch: 0 * x[..., :1] * batch, np.ones(1))
    start, counts = tf.zeros([2], tf.float64), []
    for fewer in (nuts_pilot._FEWER_REJECTED, 1.0):
        monkeypatch.setattr(nuts_pilot, "_FEWER_REJECTED", fewer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = sgmcmc.sample(target, start, 1000, num_chains=8, seed=0, progress_bar=False)
        counts.append(found.trace["diverging"].sum())
        if len(counts) == 1:
            is_far = (np.abs(found.states[..., :1]) > 2).astype(float)
            error = batch_means_standard_error(is_far)
            assert abs(is_far.mean() - 2 * stats.norm.sf(2)) < 5.3 * error
    assert counts[0] <= 4 < counts[1]


def test_a_run_of_nuts_goes_on_and_is_repeated_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more examples than a minibatch has by default, and with one, however slow it is.

    NUTS has no use for minibatches, and the settings in the directory know of none.
    """
    pytest.importorskip("zarr")
    monkeypatch.setattr(nuts_pilot, "_WINDOWS", (2, 5, 2, 10, 10))
    monkeypatch.setattr(nuts_pilot, "_ADAPTATION_STEPS", 5)
    monkeypatch.setattr(nuts_pilot, "_FINAL_STEPS", 10)
    monkeypatch.setattr(fallback, "_LEAPFROG_STEPS", 0)
    x = np.random.default_rng(0).normal(size=[150])
    x += 0.5 * (1 + 4 / 150) - x.mean()

    def log_prior(v: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_sum(v**2, axis=-1) / 2

    def log_likelihood(v: tf.Tensor, batch: Any) -> tf.Tensor:  # its curvature at the mode is 0
        return -((v[..., :1] + v[..., 1:] ** 2 - batch) ** 2) / 8

    rows = sgmcmc.MinibatchLogProb(log_prior, log_likelihood, x, batch_size=20)

    def one_row(v: tf.Tensor) -> tf.Tensor:
        return log_prior(v) + tf.reduce_sum(log_likelihood(v, x), axis=-1)

    start = tf.zeros([2], tf.float64)
    options: dict[str, Any] = dict(seed=1, jit_compile=False, progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few draws
        result, more = (
            sgmcmc.sample(rows, start, n, directory=tmp_path, **options) for n in (10, 12)
        )
        assert result.choices.sampler == "NoUTurnSampler"
        np.testing.assert_array_equal(np.asarray(more.states)[:10], result.states)
        program = "\n".join(result.choices.program()).replace("seed=", "jit_compile=False, seed=")
        named = dict(target=rows, result=result, num_results=10, sgmcmc=sgmcmc, tf=tf, tfp=tfp)
        exec(program, named)
        np.testing.assert_allclose(named["draws"], result.states, rtol=1e-6)
        monkeypatch.setattr(fallback, "_LEAPFROG_STEPS", 10**12)
        result = sgmcmc.sample(one_row, start, 10, **options)
        assert result.choices.sampler == "NoUTurnSampler"
        program = "\n".join(result.choices.program()).replace("seed=", "jit_compile=False, seed=")
        named |= dict(target=one_row, result=result)
        exec(program, named)
        np.testing.assert_allclose(named["draws"], result.states, rtol=1e-6)
