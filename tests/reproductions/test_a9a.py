"""SGLD on a9a with a Laplace prior learns within sweeps, and finds the exact posterior."""

import pytest

from benchmarks.reproductions import a9a


@pytest.mark.slow
def test_learns_within_a_sweep() -> None:
    result = a9a.learning(seed=0)
    assert result.accuracy_at < 1.0
    assert result.log_joint_at < 10.0
    # A constant prediction has an accuracy of 0.759.
    assert result.accuracy[-1] > 0.83


@pytest.mark.slow
def test_preconditioned_sgld_finds_the_posterior_mean() -> None:
    result = a9a.posterior(seed=0)
    assert result.reference.r_hat < 1.05
    assert result.reference.mean_floor < 0.025
    assert result.mean_error < 0.1
