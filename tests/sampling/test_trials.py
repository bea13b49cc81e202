"""The times of steps that the run without a kernel chooses by."""

import pytest

from tfp_sgmcmc.sampling.automatic import chains

CALL = 6.4e-3  # seconds of a call beside its steps, as on a machine of two cores


class Clock(chains.Chains):
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
    monkeypatch.setattr(chains, "time", clock)
    assert clock.seconds_per_step() == pytest.approx(step, rel=1e-6)


def test_slow_steps_are_timed_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.0, first=0.0)
    monkeypatch.setattr(chains, "time", clock)
    assert clock.seconds_per_step() == pytest.approx(1.0 + CALL)
    assert clock.now < 7
