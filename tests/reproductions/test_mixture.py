"""The mixture of Matthews & Weare: exact moments, and NOGIN against samplers that noise spoils."""

import numpy as np
import pytest

from benchmarks.reproductions import mixture


def test_draws_have_the_moments_of_the_grid() -> None:
    """Draws have the moments of the grid."""
    posterior = mixture.exact_posterior(np.float32([0.3, -0.8] * 30), num_draws=20_000, seed=0)
    np.testing.assert_allclose(posterior.draws.mean(axis=0), posterior.mean, atol=0.04)
    np.testing.assert_allclose(np.cov(posterior.draws.T), posterior.covariance, rtol=0.08)
    with pytest.raises(ValueError, match="equal must be 'epochs' or 'steps'. Received: 'passes'"):
        mixture.run(equal="passes")


@pytest.mark.slow
def test_nogin_has_the_smallest_error_at_equal_epochs() -> None:
    """Samplers that do not know the noise are wrong by more than twice their error at n = 10.

    Larger minibatches make fewer steps, and then the Monte Carlo error is large for all of them.
    """
    result = mixture.run(**mixture.EXPERIMENT.quick)
    error = {key: float(result.best(*key)[1].mean()) for key in result.squared_errors}
    assert error["NOGIN", 2] < min(error["SGLD", 2], error["SGNHT", 2]) / 2
    assert error["SGLD", 2] > 4 * error["SGLD", 10]
    found = mixture.claims(result)
    assert all(claim.held in (True, False) for claim in found[:-1]) and found[-1].held is None
