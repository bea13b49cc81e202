"""SGLD reaches the exact posterior of logistic regression on MNIST 7 v 9."""

import numpy as np
import pytest

from benchmarks.common.reference import Reference
from benchmarks.reproductions import mnist_7v9, mnist_7v9_fit


def check(reference: Reference, *runs: list) -> None:
    # The reference must be several times better than the bounds that are checked with it.
    assert reference.r_hat < 1.01
    assert reference.mean_floor < 0.005
    assert reference.covariance_floor < 0.1
    for errors in runs:
        assert errors[-1].mean_error < 0.05
        assert errors[-1].covariance_error < 0.3
        # Control: one draw of each of the 64 chains fails.
        assert errors[0].covariance_error > 0.6


@pytest.mark.slow
def test_sgld_reaches_the_exact_posterior() -> None:
    check(*mnist_7v9.run(seed=0))


@pytest.mark.slow
def test_sgld_in_fit_reaches_the_exact_posterior() -> None:
    reference, sample_chain, fit = mnist_7v9_fit.run(seed=0)
    check(reference, sample_chain, fit)
    # Equal numbers of steps; the passes differ by the short last batch of an epoch.
    assert fit[-1].passes == 1_800
    np.testing.assert_allclose(sample_chain[-1].passes, 1_800, rtol=0.03)
