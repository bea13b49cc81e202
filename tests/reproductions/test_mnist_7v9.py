"""SGLD reaches the exact posterior of logistic regression on MNIST 7 v 9."""

import pytest

from benchmarks.reproductions import mnist_7v9


@pytest.mark.slow
def test_sgld_reaches_the_exact_posterior() -> None:
    reference, errors = mnist_7v9.run(seed=0)
    # The reference must be several times better than the bounds that are checked with it.
    assert reference.r_hat < 1.01
    assert reference.mean_floor < 0.005
    assert reference.covariance_floor < 0.1
    assert errors[-1].mean_error < 0.05
    assert errors[-1].covariance_error < 0.3
    # Control: one draw of each of the 64 chains fails.
    assert errors[0].covariance_error > 0.6
