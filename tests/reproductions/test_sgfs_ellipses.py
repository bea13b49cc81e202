"""The ellipses of Fisher scoring at alpha = 0."""

import numpy as np
import pytest

from benchmarks.reproductions import sgfs_ellipses


def test_errors_of_ellipses_and_extreme_pairs() -> None:
    exact = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, -0.5], [0.0, -0.5, 2.0]])
    pairs, correlations = sgfs_ellipses.extreme_pairs(exact)
    assert pairs == [(0, 1), (1, 2), (1, 2), (0, 2)]
    np.testing.assert_allclose(correlations, [0.9, -(0.125**0.5), -(0.125**0.5), 0.0])
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
        sgfs_ellipses.errors(result, result.moments[name][1]) for name in sgfs_ellipses.KINDS
    )
    assert result.reference.r_hat < 1.1
    assert max(full) < np.log(1.4)
    assert min(diagonal[:2]) > max(full)
