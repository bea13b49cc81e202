"""Proposals of importance sampling: their densities, draws and fits."""

import numpy as np
import pytest
from scipy import stats

from tfp_sgmcmc.diagnostics.weighted_sample import MixtureProposal, Proposal, fit_proposal, weigh
from tfp_sgmcmc.targets.laplace.quadratic import lower_factor

FIRST = Proposal(np.array([-4.0, 0.0]), np.array([[1.0, 0.0], [0.5, 1.0]]), 0.1)
SECOND = Proposal(np.array([3.0, 200.0]), np.array([[0.5, 0.0], [0.0, 30.0]]), 0.3)
MIXTURE = MixtureProposal((FIRST, SECOND), np.array([0.25, 0.75]))


def normals(x: np.ndarray) -> np.ndarray:
    """Returns the log density of two normal distributions of weights 0.6 and 0.4."""
    first, second = (stats.multivariate_normal(q.mean, q.factor @ q.factor.T) for q in MIXTURE[0])
    return np.logaddexp(np.log(0.6) + first.logpdf(x), np.log(0.4) + second.logpdf(x))


def test_a_mixture_has_the_density_of_its_draws() -> None:
    """Its integral by draws of a wider distribution, 4 standard errors; halves are antithetic."""
    rng = np.random.default_rng(0)
    wide = MixtureProposal(tuple(q._replace(factor=1.5 * q.factor) for q in MIXTURE[0]), WEIGHTS)
    ratio = np.exp(MIXTURE.log_prob(x := wide.sample(20_000, rng)) - wide.log_prob(x))
    assert abs(ratio.mean() - 1) < 4.9 * ratio.std() / 20_000**0.5
    draws = MIXTURE.sample(20_000, rng)
    is_first = draws[:, 0] < 0
    assert stats.binomtest(int(is_first[:10_000].sum()), 10_000, 0.25).pvalue > 1e-6
    np.testing.assert_array_equal(*np.split(is_first, 2))
    means = np.where(is_first[:10_000, np.newaxis], FIRST.mean, SECOND.mean)
    np.testing.assert_allclose(draws[:10_000] + draws[10_000:], 2 * means, atol=1e-9)


WEIGHTS = np.array([0.5, 0.5])


def test_one_distribution_has_the_moments_of_all() -> None:
    """Mean and covariance of the normals, from their definition."""
    one = MIXTURE.as_one()
    np.testing.assert_allclose(one.mean, 0.25 * FIRST.mean + 0.75 * SECOND.mean)
    covariance = sum(
        weight * (q.factor @ q.factor.T + np.outer(q.mean - one.mean, q.mean - one.mean))
        for weight, q in zip(MIXTURE.weights, MIXTURE.components, strict=True)
    )
    np.testing.assert_allclose(one.factor @ one.factor.T, covariance)
    assert FIRST.as_one() is FIRST


def test_a_factor_of_nearly_collinear_roots() -> None:
    """Columns that differ by 1e-9, in units of 1e6: their product has no Cholesky factor."""
    root = 1e6 * np.array([[1.0, 0.0, 1.0], [1.0, 1e-9, 1.0]])
    factor = lower_factor(root)
    assert factor[0, 1] == 0 and (np.diag(factor) > 0).all()
    np.testing.assert_allclose(factor[1, 1], 1e-3, rtol=1e-6)
    with pytest.raises(np.linalg.LinAlgError):  # the negative control
        np.linalg.cholesky(root @ root.T)


def test_a_fit_finds_masses_and_moments() -> None:
    """It begins with means 1 deviation off, deviations 1.5 times too large, and equal weights."""
    begin = tuple(
        Proposal(q.mean + q.factor @ [1.0, -1.0], 1.5 * q.factor, 0.2) for q in MIXTURE[0]
    )
    first = MixtureProposal(begin, WEIGHTS)
    rng = np.random.default_rng(1)
    before, _ = weigh(normals, first, 4000, rng)
    sample, num_rounds = fit_proposal(normals, first, 4000, rng)
    assert num_rounds > 1 and sample.is_reliable and before.efficiency < 0.5 < sample.efficiency
    fitted = sample.proposal
    assert isinstance(fitted, MixtureProposal)
    shares = fitted.shares(sample.draws, sample.weights)
    # Of 4000 draws with this efficiency; 4.9 standard errors of a share.
    assert abs(shares[0] - 0.6) < 4.9 * (0.24 / 4000 / sample.efficiency) ** 0.5
    for found, expected in zip(fitted.components, MIXTURE.components, strict=True):
        z = expected.whitened(found.mean[np.newaxis])
        np.testing.assert_allclose(z, 0.0, atol=0.15)
        np.testing.assert_allclose(np.diag(found.factor) / np.diag(expected.factor), 1.0, atol=0.1)


def test_a_component_without_draws_stays_and_none_has_a_small_weight() -> None:
    """A component far from all of the posterior keeps its place, with a twentieth of the weight."""
    far = Proposal(np.array([1e4, 1e4]), np.eye(2), 0.2)
    first = MixtureProposal((*MIXTURE.components, far), np.full(3, 1 / 3))
    sample, log_probs = weigh(normals, first, 3000, np.random.default_rng(2))
    following = first.refitted(sample.draws, log_probs, first.log_prob(sample.draws))
    assert following is not None
    np.testing.assert_array_equal(following[0].components[2].mean, far.mean)
    np.testing.assert_allclose(following[0].weights[2], 0.05 / 1.05, rtol=1e-6)
    np.testing.assert_allclose(following[1], following[0].log_prob(sample.draws))


def test_rounds_of_poor_weights_end_after_so_many_points() -> None:
    """The points of all rounds before are fitted anew in each."""

    def funnel(x: np.ndarray) -> np.ndarray:
        return -(x[:, 0] ** 2) / 50 - (x[:, 1:] ** 2 * np.exp(-x[:, :1]) + x[:, :1]).sum(1) / 2

    first, rounds = Proposal(np.zeros(20), np.eye(20), 0.1), []
    for most in (np.inf, 3000):
        rng = np.random.default_rng(0)
        sample, num_rounds = fit_proposal(funnel, first, 1000, rng, most)
        assert not sample.is_reliable
        rounds.append(num_rounds)
    assert rounds[0] > rounds[1] == 3  # of 1000 points, and then of 2000
