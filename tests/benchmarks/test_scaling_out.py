"""The model of a run's efficiency agrees with the simulated run, and a wrong one does not."""

import numpy as np
import pytest

from benchmarks.scaling_out import plan

COSTS = plan.Costs(steps=1000.0, start=10.0, compile=20.0, checkpoint=50.0)


def simulated(mtbf: float) -> tuple[float, float]:
    """Returns the efficiency of 20,000 shards, and its standard error."""
    busy, _ = plan.busy_seconds(COSTS, mtbf, 20_000, np.random.default_rng(0))
    mean = busy.mean()
    return COSTS.steps / mean, COSTS.steps / mean**2 * busy.std() / len(busy) ** 0.5


@pytest.mark.parametrize("mtbf", [2_000.0, 20_000.0])
def test_the_model_is_right_to_first_order(mtbf: float) -> None:
    """Neglected are terms of second order in a failure's cost over the mean time between failures.

    False alarms: 1e-6 for five standard errors. Power: without the lost steps the model would be
    off by more than ten of them.
    """
    found, error = simulated(mtbf)
    second_order = 4 * (55.0 / mtbf) ** 2
    assert abs(found - plan.efficiency(COSTS, mtbf)) < 5 * error + second_order
    if mtbf == 2_000.0:  # control
        wrong = plan.efficiency(COSTS._replace(checkpoint=0.0), mtbf)
        assert abs(found - wrong) > 10 * error


def test_without_failures_the_times_are_exact() -> None:
    busy, failures = plan.busy_seconds(COSTS, 1e15, 5, np.random.default_rng(0))
    assert failures == 0
    np.testing.assert_allclose(busy, 1030.0)
    assert plan.efficiency(COSTS, 1e15) == pytest.approx(1000 / 1030)
    assert plan.wall_seconds(busy, 2) == pytest.approx(3 * 1030)
    assert plan.wall_seconds(busy, 9) == pytest.approx(1030)


def test_a_table_that_misses_the_model_fails() -> None:
    row = plan.Row(10, 1.0, 5, simulated=0.98, model=0.98, hours=1.0, ideal_hours=1.0)
    plan.show(iter([row]))
    with pytest.raises(SystemExit, match="off by more than 0.005 in 1 rows"):
        plan.show(iter([row, row._replace(simulated=0.97)]))
