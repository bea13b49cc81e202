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


def test_claim_is_decided_by_the_errors() -> None:
    reference = Reference(np.zeros(1), np.eye(1), 1.0, 1.0, 0.001, 0.1)
    start = mnist_7v9.Errors(1.0, 1.0, 1.0)
    for mean, covariance, held in ((0.04, 0.2, True), (0.06, 0.2, False), (0.04, 0.4, False)):
        errors = [start, mnist_7v9.Errors(10.0, mean, covariance)]
        assert mnist_7v9.claim("SGLD", errors, reference).held is held
        result = mnist_7v9_fit.Result(reference, [start, start], errors)
        assert mnist_7v9_fit.claims(result)[0].held is held


@pytest.mark.slow
def test_quick_forms() -> None:
    """A quarter of the passes: E1 is still small, E2 is better than that of one draw a chain."""
    _, errors = mnist_7v9.run(**mnist_7v9.EXPERIMENT.quick)
    _, _, fit = mnist_7v9_fit.run(**mnist_7v9_fit.EXPERIMENT.quick)
    for found in (errors, fit):
        assert found[-1].mean_error < 0.05
        assert found[-1].covariance_error < 0.5 < 0.6 < found[0].covariance_error


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
