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


@pytest.mark.slow
def test_sgfs_f_is_nearer_to_hmc_than_sgfs_d() -> None:
    result = sgfs_ellipses.run(**sgfs_ellipses.EXPERIMENT.quick)
    full, diagonal = (sgfs_ellipses.errors(result, name) for name in sgfs_ellipses.KINDS)
    assert result.reference.r_hat < 1.1
    assert max(full) < np.log(1.4)
    assert min(diagonal[:2]) > max(full)
