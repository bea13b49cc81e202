"""SGLD on a9a with a Laplace prior learns within sweeps, and finds the exact posterior."""

import numpy as np
import pytest

from benchmarks.reproductions import a9a


@pytest.mark.slow
def test_the_quick_form_learns_within_sweeps() -> None:
    result = a9a.run(**a9a.EXPERIMENT.quick)
    learned = result.learning
    assert learned.accuracy.shape == (4, len(learned.sweeps))
    assert np.all(learned.accuracy_at < 1.0)
    assert np.all(learned.log_joint_at < 10.0)
    # A constant prediction has an accuracy of 0.759.
    assert np.all(learned.accuracy[:, -1] > 0.83)
    assert [claim.held for claim in a9a.claims(result)] == [True, True]


@pytest.mark.slow
def test_preconditioned_sgld_finds_the_posterior_mean() -> None:
    result = a9a.posterior(seed=0)
    assert result.reference.r_hat < 1.05
    assert result.reference.mean_floor < 0.025
    assert result.mean_error < 0.1
