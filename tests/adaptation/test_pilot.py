"""What the run without a kernel tries before it draws: times of steps, and HMC's pilots."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.adaptation import hmc, pilot
from tfp_sgmcmc.adaptation.coordinates import whiten_at_mode
from tfp_sgmcmc.adaptation.excess_variance import BatchAndStep, excess_of
from tfp_sgmcmc.adaptation.langevin import LangevinSelector

CALL = 6.4e-3  # seconds of a call beside its steps, as on a machine of two cores
D, NUM_RESULTS = 80, 4000


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
def test_the_covariance_is_of_many_draws(
    draws_per_entry: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact covariance has nearly equal eigenvalues there; with the first pilot's, not so.

    For large D, n independent draws leave a ratio of the largest to the smallest near
    ((1 + r) / (1 - r))^2, with r^2 = D / n: 1.8 for half of 8,000 draws, 3.7 for half of 1,600. By
    chance it varies by a few percent.
    """
    monkeypatch.setattr(hmc, "_DRAWS_PER_ENTRY", draws_per_entry)
    problem = log_of_exponentials()
    found = whiten_at_mode(problem, tf.zeros([D]))
    runs = pilot.PilotRuns(4, D, tf.float32, sgmcmc.random.as_seed(0), jit_compile=True)
    prepared = hmc.TimedHMC(problem, found, runs)(NUM_RESULTS)
    assert prepared.choices.coordinates == "covariance"
    center = prepared.choices.center
    np.testing.assert_allclose(center, -np.euler_gamma, atol=0.25)
    eigenvalues = np.linalg.eigvalsh(-prepared.choices.hessian) * np.pi**2 / 6
    ratio = eigenvalues[-1] / eigenvalues[0]
    assert (ratio < 2.7) == (draws_per_entry == 100)


@pytest.mark.parametrize(("scale", "expected"), [(10.0, 300), (25.0, 700), (60.0, 1000)])
def test_less_noise_at_the_pilots_draws_takes_fewer_examples(scale: float, expected: int) -> None:
    """A mean excess of 0.7213 scale / n is at most 0.03 from n = 240, 601 and 1,443 on.

    The worst direction, with half as much again, is at most 0.05 from fewer on. More examples than
    the pilot's 1,000 are never taken here.
    """
    langevin = LangevinSelector.__new__(LangevinSelector)
    langevin._problem = types.SimpleNamespace(num_examples=100_000)
    covariance = scale * np.diag([0.5, 1.5])
    of_pilot = BatchAndStep(1000, 1.0, *excess_of(covariance, 1.0, 1000))
    found = langevin._fewest(covariance, of_pilot)
    mean = 0.7213 * scale / expected
    assert found == pytest.approx((expected, 1.0, mean, 1.5 * mean), rel=1e-3)
