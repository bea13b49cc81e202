"""The plateau of NOGIN's errors, and the exact correlation times that explain it."""

import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from benchmarks.reproductions import nogin_logistic, nogin_others
from benchmarks.reproductions.experiment import UNDECIDED
from tests.harness.gaussian_mean import GaussianMean
from tests.harness.known_scores import KnownScores
from tests.harness.phase_space import linear_scheme

MODEL = GaussianMean(num_examples=12)


def test_correlation_times_are_those_of_the_linear_step() -> None:
    """The code's own matrices give sum_k F^k S, and hence the times, to rounding."""
    h, friction = 0.1, 3.0
    for size in (2, 5, 11):
        noise = MODEL.noise(size, replacement=True)
        scheme = linear_scheme(
            lambda target, noise=noise, **momentum: sgmcmc.NOGIN(
                KnownScores(target, noise), h, friction, **momentum
            ),
            MODEL.hessian,
        )
        law = scheme.covariance(noise)
        summed = np.linalg.solve(np.eye(6) - scheme.step, law)
        expected = (2 * np.diag(summed) / np.diag(law) - 1)[:3]
        found = nogin_logistic.correlation_times(MODEL.hessian, noise, h, friction)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        without = nogin_logistic.correlation_times(MODEL.hessian, 0 * noise, h, friction)
        assert np.all(without < 0.95 * expected)


def test_claims_on_the_six_samplers() -> None:
    """A sampler is judged at its best step and n; close ones are not decided."""

    def row(ratio: float, *errors: float) -> nogin_others.Row:
        return nogin_others.Row(ratio, np.outer(errors, [0.9, 1.1]))

    for error, verdict in ((0.5, True), (0.1, UNDECIDED), (0.01, False)):
        found = {(name, 100): row(np.inf, np.inf, 9.0, 5.0) for name in nogin_others.SAMPLERS}
        found["NOGIN", 100] = row(1.1, 0.1, 0.3, 0.5)
        found["SGNHT", 100] = row(2.5, 7.0, error, 9.0)
        stable, superior, _ = nogin_others.claims(found)
        assert stable.held is True and superior.held == verdict
        assert found["SGNHT", 100].best == (np.sqrt(error), 0.5)


@pytest.mark.slow
def test_small_minibatches_bring_nothing_and_control_variates_do() -> None:
    result = nogin_logistic.run(**nogin_logistic.EXPERIMENT.quick)
    error = {(c.sampler, c.batch_size): c.error()[0] for c in result.curves}
    # At equal epochs n = 100 is at most 1.5 times better or worse than n = 300.
    ratio = error[nogin_logistic.PLAIN, 100] / error[nogin_logistic.PLAIN, 300]
    assert 1 / 1.5 < ratio < 1.5
    assert error[nogin_logistic.CONTROLLED, 100] < 0.9 * error[nogin_logistic.PLAIN, 100]
    epochs = {c.batch_size: c.linear_epochs for c in result.curves[:3]}
    assert epochs[100] < 1.5 * epochs[300] < epochs[3000] * 1.5
