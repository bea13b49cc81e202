"""The ellipses of Fisher scoring at alpha = 0."""

import numpy as np
import pytest

from benchmarks.reproductions import sgfs_ellipses


def test_errors_of_ellipses_and_extreme_pairs() -> None:
    exact = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, -0.5], [0.0, -0.5, 2.0]])
    errors = sgfs_ellipses.pair_errors(np.diag(np.diag(exact)), exact)
    assert list(errors) == [(0, 2), (1, 2), (0, 1)]  # the uncorrelated pair, ..., the most so
    np.testing.assert_allclose(errors[0, 2], 0, atol=1e-12)
    np.testing.assert_allclose(errors[0, 1], 0.5 * np.log(10))
    assert sgfs_ellipses.ellipse_error(exact, exact) < 1e-12
    np.testing.assert_allclose(sgfs_ellipses.ellipse_error(4 * exact, exact), np.log(2))
    # Without the correlation 0.9 the variance along (1, -1) is 1 in place of 0.1.
    found = sgfs_ellipses.ellipse_error(np.eye(2), exact[:2, :2])
    np.testing.assert_allclose(found, 0.5 * np.log(10))


def test_the_linear_law_is_exact_where_the_fisher_matrix_is_the_hessian() -> None:
    v = np.array([[1.0, 0.6], [0.6, 2.0]])
    law = sgfs_ellipses.linear_law(100 * v, v, v, total=100, batch_size=10)
    np.testing.assert_allclose(law, np.linalg.inv(100 * v), rtol=1e-10)
    diagonal = sgfs_ellipses.linear_law(100 * v, v, np.diag([1.0, 2.0]), total=10**5, batch_size=10)
    assert sgfs_ellipses.ellipse_error(diagonal, law) > 0.1


@pytest.mark.slow
def test_sgfs_f_is_nearer_to_hmc_than_sgfs_d() -> None:
    result = sgfs_ellipses.run(**sgfs_ellipses.EXPERIMENT.quick)
    full, diagonal = (
        sgfs_ellipses.pair_errors(result.moments[name][1], result.reference.covariance)
        for name in sgfs_ellipses.KINDS
    )
    assert result.reference.r_hat < 1.1
    assert max(full.values()) < np.log(1.4)
    assert max(diagonal.values()) > 2 * max(full.values())
    assert sgfs_ellipses.ratios(result.moments["SGFS-d"][1], result).max() < 1
