"""Calls that wait for workers say if there are none."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

from tfp_sgmcmc.internal import extras


class Cluster:
    """A client of dask as far as it tells of its workers: one number of them at each look."""

    def __init__(self, numbers: tuple[int, ...]):
        self.left = [*numbers]

    def scheduler_info(self) -> dict[str, Any]:
        return {"workers": dict.fromkeys(range(self.left.pop(0)))}


class Future:
    """A future whose call ends after some looks."""

    def __init__(self, looks: int, error: Exception | None = None):
        self.left, self.error = looks, error

    def done(self) -> bool:
        return self.left < 0

    def result(self, timeout: float | None = None) -> str:
        self.left -= 1
        if timeout is not None and self.left >= 0:
            raise TimeoutError
        if self.error is not None:
            raise self.error
        return "found"


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is half a minute after the last one."""
    clock = itertools.count(0.0, 30.0)
    monkeypatch.setattr(extras.time, "monotonic", lambda: next(clock))


@pytest.mark.parametrize(
    ("numbers", "told"), [((2, 0, 0, 0, 0, 0), 1), ((2, 0, 0, 1, 0, 0), 0), ((1,) * 6, 0)]
)
def test_a_cluster_without_workers_for_a_minute_is_told_once(
    numbers: tuple[int, ...], told: int
) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert extras.Workers(Cluster(numbers)).result_of(Future(len(numbers))) == "found"
    assert len(found) == told
    assert all("a cluster that has had none for 90 seconds" in str(w.message) for w in found)


def test_errors_of_calls_reach_the_one_who_waits() -> None:
    for executor in (Cluster((1,)), None):
        future = Future(0, TimeoutError("of the call"))
        with pytest.raises(TimeoutError, match="of the call"):
            extras.Workers(executor).result_of(future)


def test_a_call_that_ends_at_the_end_of_a_look_has_its_result() -> None:
    class Slow(Future):
        def done(self) -> bool:
            return True

    assert extras.Workers(Cluster((1,))).result_of(Slow(1)) == "found"


def test_other_executors_tell_of_no_workers() -> None:
    watch = extras.Workers(None)
    watch.look()
    assert watch.result_of(Future(0)) == "found"
