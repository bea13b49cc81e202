"""Pilots of the run without a kernel: times of steps, HMC's pilots, and what is dropped and why."""

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.programs import count_loops
from tfp_sgmcmc.adaptation import langevin, pilot, settings_file, timed_hmc
from tfp_sgmcmc.adaptation.coordinates import whiten_at_mode, whiten_by_covariance
from tfp_sgmcmc.adaptation.langevin import BatchAndStep, LangevinSelector, excess_of
from tfp_sgmcmc.sampling.run import run_kernel
from tfp_sgmcmc.sampling.steps import StepPlan
from tfp_sgmcmc.targets.base import ExpansionError

tfd = tfp.distributions

CALL = 6.4e-3  # seconds of a call beside its steps, as on a machine of two cores
D, NUM_RESULTS = 40, 2000


class Clock(pilot.PilotChains):
    """Chains whose calls take known seconds."""

    def __init__(self, step: float, first: float):
        self.now, self.step, self.first = 0.0, step, first
        self.position = ()

    def perf_counter(self) -> float:
        return self.now

    def _advance(self, position: object, rows: int, stride: int) -> None:
        del position, rows
        self.now += CALL + stride * self.step + self.first
        self.first = 0.0


@pytest.mark.parametrize("step", [1e-6, 5e-5, 1e-3, 0.05])
def test_the_time_of_a_call_is_not_that_of_a_step(
    step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow first call changes nothing either."""
    clock = Clock(step, first=3.0)
    monkeypatch.setattr(pilot, "time", clock)
    assert clock.seconds_per_step() == pytest.approx(step, rel=1e-6)


def test_slow_steps_are_timed_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.0, first=0.0)
    monkeypatch.setattr(pilot, "time", clock)
    assert clock.seconds_per_step() == pytest.approx(1.0 + CALL)
    assert clock.now < 4  # one to compile, two to time


def log_of_exponentials() -> sgmcmc.MinibatchLogProb:
    """Returns the law of logs of D independent exponentials: mode 0, curvature 1, variance pi^2/6.

    A normal at the mode has 0.61 of that variance, and its mean is 0.58 off.
    """
    return sgmcmc.MinibatchLogProb(
        lambda x: tf.zeros(x.shape[:-1], x.dtype),
        lambda x, share: share * tf.reduce_sum(x - tf.exp(x), axis=-1, keepdims=True),
        np.array([0.5, 0.5], np.float32),
        1,
    )


@pytest.mark.parametrize("draws_per_entry", [100, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_the_covariance_is_of_many_draws(
    draws_per_entry: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact covariance has nearly equal eigenvalues there; with the first pilot's, not so.

    For large D, n independent draws leave a ratio of the largest to the smallest near
    ((1 + r) / (1 - r))^2, with r^2 = D / n: 1.8 for half of 4,000 draws, 3.7 for half of 800. By
    chance it varies by a few percent. The run also resumes: its target is the same when rebuilt.
    """
    monkeypatch.setattr(timed_hmc, "_PILOT_DRAWS", 200)
    monkeypatch.setattr(timed_hmc, "_DRAWS_PER_ENTRY", draws_per_entry)
    problem = log_of_exponentials()
    found = whiten_at_mode(problem, tf.zeros([D]))
    runs = pilot.PilotRuns(4, D, tf.float32, sgmcmc.random.as_seed(0), jit_compile=True)
    prepared = timed_hmc.TimedHMC(problem, found, runs)(NUM_RESULTS)
    assert prepared.choices.coordinates == "covariance"
    center = prepared.choices.center
    # Means of n draws with a standard deviation of 1.28. False alarms: 2e-6 for 40 entries.
    atol = 5.5 * 1.28 / (2000 if draws_per_entry else 400) ** 0.5
    np.testing.assert_allclose(center, -np.euler_gamma, atol=atol)
    eigenvalues = np.linalg.eigvalsh(-prepared.choices.hessian) * np.pi**2 / 6
    ratio = eigenvalues[-1] / eigenvalues[0]
    assert (ratio < 2.7) == (draws_per_entry == 100)
    again = settings_file.rebuild(problem, tf.zeros([D]), prepared.choices, jit_compile=True)
    first, second = (x.kernel.parameters["target_log_prob_fn"] for x in (prepared, again))
    assert first.curvature is None and second.curvature is None
    z = tf.constant(prepared.choices.start)
    np.testing.assert_array_equal(first(z), second(z))


def normal_target() -> sgmcmc.MinibatchLogProb:
    """Returns a normal law with means 3 and 40, deviations 1 and 10, and correlation 0.5."""
    precision = np.array([[1.0, -0.05], [-0.05, 0.01]]) / 0.75

    def log_likelihood(x: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        off = x - np.array([3.0, 40.0])
        quadratic = tf.reduce_sum(off * tf.linalg.matvec(precision, off), axis=-1, keepdims=True)
        return -share * quadratic / 2

    shift = tfp.bijectors.Shift(np.array([1.0, -1.0]))
    return sgmcmc.MinibatchLogProb(
        lambda x: 0 * x[..., 0], log_likelihood, np.array([0.5, 0.5]), 1, bijector=shift
    )


def test_steps_in_numpy_are_those_of_hmc() -> None:
    """Every accepted step has the exact law: draws by an exact start stay exact.

    Energy errors with a step of 1.5 are large, so that a chain without the test, or one that
    counts half of the kinetic energy, is told. z of variances by 40,000 chains: a false alarm has
    the probability 1e-6.
    """
    chains, dim = 40_000, 3
    start = tf.random.stateless_normal([chains, dim], [0, 1], dtype=tf.float64)
    at = lambda z: (-(z**2).sum(axis=-1) / 2, -z)  # noqa: E731
    hmc = pilot.HMCChains(at)
    hmc.restart((1.5, 2), start, tf.constant([0, 2]))
    draws = hmc.draw(3, 1)
    moved = np.any(draws[1] != draws[0], axis=-1).mean()
    assert 0.3 < moved < 0.95
    for z in draws:
        assert np.abs((z**2).mean(axis=0) - 1).max() < 5.2 * np.sqrt(2 / chains)
    hmc.restart((1.5, 2), start, tf.constant([0, 2]))
    hmc._at = lambda z: (0 * z[:, 0], -z)  # the test then sees no energy of z
    wrong = hmc.draw(3, 1)[-1]
    assert np.abs((wrong**2).mean(axis=0) - 1).max() > 5.2 * np.sqrt(2 / chains)


def test_states_without_a_density_are_left_or_told() -> None:
    """A chain that begins outside of the support comes in by its first finite proposal."""

    def at(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inside = z[:, 0] > 0
        return np.where(inside, -(z**2).sum(axis=-1) / 2, -np.inf), -z

    hmc = pilot.HMCChains(at)
    hmc.restart((0.5, 3), tf.constant([[-1.0], [1.0]]), tf.constant([0, 1]))
    assert hmc.burn_in(50)
    assert (hmc.draw(50, 1) > 0).all() and hmc.draw(1, 1).dtype == np.float32
    hmc = pilot.HMCChains(lambda z: (np.full(len(z), np.nan), z))
    hmc.restart((0.5, 3), tf.constant([[-1.0], [1.0]]), tf.constant([0, 1]))
    assert not hmc.burn_in(5)


def test_hmc_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pilots in two coordinates, and the runs after them, share one program.

    Draws are the model's parameters. The density of a run's steps is that of its kernel's target,
    Jacobian included.
    """
    traces = count_loops(monkeypatch, pilot)
    target, like, results = normal_target(), tf.zeros([2], tf.float64), []
    found = whiten_at_mode(target, like)
    z = np.random.default_rng(0).normal(size=[100, 4, 2]) * [1.0, 1.1]
    for number, at in enumerate((found, whiten_by_covariance(target, found, z))):
        runs = pilot.PilotRuns(4, 2, tf.float64, tf.constant([0, number]), jit_compile=False)
        prepared = timed_hmc.TimedHMC(target, at, runs)(500)
        options = {"num_chains": None, "trace_fn": None, "jit_compile": False, "run": None}
        options |= {"progress_bar": False, "checkpoint_seconds": 60.0, "preflight_check": False}
        run = run_kernel(
            prepared.kernel,
            prepared.choices.first_state,
            StepPlan(500, 0, 1 + number),
            seed=tf.constant([1, number]),
            view=prepared.bijector.forward,
            loop=prepared.loop,
            **options,
        )
        assert len(traces) == 1 and run.states.shape == (500, 4, 2)
        z = prepared.bijector.inverse(tf.constant(run.states[-1]))
        found_log_prob = run.final_kernel_results.accepted_results.target_log_prob
        expected = prepared.kernel.target_log_prob_fn(z)
        np.testing.assert_allclose(found_log_prob, expected, rtol=1e-6)
        results.append(run.states)
    steps, start = prepared.loop, prepared.choices.first_state
    position = steps.start(prepared.kernel, start)
    assert steps(position, 3, 1, 1, tf.constant([0, 1]))[2].is_good
    steps._parameters = lambda z, _: tf.exp(1e4 + z)
    assert not steps(position, 3, 1, 1, tf.constant([0, 1]))[2].is_good
    draws = np.concatenate(results).reshape(-1, 2)
    # About 3,000 independent draws; false alarms: 1e-6.
    assert np.abs((draws.mean(axis=0) - [3.0, 40.0]) / [1.0, 10.0]).max() < 0.1


@pytest.mark.parametrize(("scale", "expected"), [(10.0, 300), (25.0, 700), (60.0, 1000)])
def test_less_noise_at_the_pilots_draws_takes_fewer_examples(scale: float, expected: int) -> None:
    """A mean excess of 0.7213 scale / n is at most 0.03 from n = 240, 601 and 1,443 on.

    The worst direction, with half as much again, is at most 0.05 from fewer on. More examples than
    the pilot's 1,000 are never taken here.
    """
    selector = LangevinSelector.__new__(LangevinSelector)
    selector._problem = types.SimpleNamespace(num_examples=100_000)
    covariance = scale * np.diag([0.5, 1.5])
    of_pilot = BatchAndStep(1000, 1.0, *excess_of(covariance, 1.0, 1000))
    found = selector._fewest(covariance, of_pilot)
    mean = 0.7213 * scale / expected
    assert found == pytest.approx((expected, 1.0, mean, 1.5 * mean), rel=1e-3)


def test_what_was_dropped_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a failed expansion drops the sampler; other errors of the same base class surface."""

    def control_variate(*_: Any, **__: Any) -> None:
        raise ExpansionError("remainders are NaN")

    monkeypatch.setattr(langevin, "ControlVariate", control_variate)
    monkeypatch.setattr(langevin, "check_chains", lambda *_: None)
    runs = types.SimpleNamespace(dim=2, dtype=tf.float32, num_chains=4, dropped=[])
    target = types.SimpleNamespace(_programs={})
    found = types.SimpleNamespace(target=target, center=tf.zeros([2]))
    problem = types.SimpleNamespace(num_examples=10, parts=[None])
    selector = LangevinSelector(problem, found, runs, sgmcmc.random.as_seed(0))
    assert selector() is None
    assert "UnderdampedLangevin" in runs.dropped[0] and "remainders are NaN" in runs.dropped[0]
    assert issubclass(ExpansionError, ValueError)


@pytest.mark.parametrize("of_gradient", [1.0, 1e-9])
def test_hmc_is_not_timed_where_its_gradients_alone_take_longer(
    of_gradient: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw of four chains in 25 dimensions takes two times three leapfrog steps of each."""
    assert timed_hmc.least_seconds(25, 4, 0.1) == pytest.approx(0.5 * 2 * 3 * 4 * 0.1)
    made = []

    def made_hmc(*args: Any) -> Any:
        made.append(args)
        return types.SimpleNamespace(seconds=0.125)

    monkeypatch.setattr(langevin, "TimedHMC", made_hmc)
    runs = types.SimpleNamespace(dim=25, num_chains=4, dropped=[])
    options = runs, sgmcmc.random.as_seed(0), of_gradient
    selector = LangevinSelector(None, None, *options)
    selector._hmc = None
    monkeypatch.setattr(selector, "_seconds", lambda n: 1e-5 * n)
    chosen = BatchAndStep(100, 1.0, 0.0, 0.0)
    found = [selector._hmc_seconds(chosen) for _ in range(2)]
    if of_gradient == 1.0:
        assert found == [np.inf] * 2 and not made
        assert len(runs.dropped) == 1 and "alone take 1.2e+04 ms or more" in runs.dropped[0]
    else:
        assert found == [0.125] * 2 and len(made) == 1 and not runs.dropped


def test_a_likelihood_that_takes_no_examples_of_each_chain_is_sampled_with_all() -> None:
    """`tf.gather` without `batch_dims` takes all chains' groups for each chain.

    `sample` ended with this error, after it had tried the normal distribution.
    """
    group = np.arange(30, dtype=np.int32) % 3
    y = np.random.default_rng(0).normal(size=30).astype(np.float32)
    problem = sgmcmc.MinibatchLogProb(
        lambda a: tf.reduce_sum(tfd.Normal(0.0, 1.0).log_prob(a), axis=-1),
        lambda a, batch: tfd.Normal(tf.gather(a, batch["group"], axis=-1), 1.0).log_prob(
            batch["y"]
        ),
        {"group": group, "y": y},
        10,
    )
    runs = pilot.PilotRuns(2, 3, tf.float32, sgmcmc.random.as_seed(0), jit_compile=True)
    found = whiten_at_mode(problem, tf.zeros([3]))
    selector = LangevinSelector(problem, found, runs, sgmcmc.random.as_seed(0))
    assert selector() is None
    assert "[chains..., n, ...], as tf.linalg.matvec(x, theta) does. It raised" in runs.dropped[0]
    assert "log_likelihood_fn must return shape" in runs.dropped[0]
