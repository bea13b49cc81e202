r"""The steps below which linear schemes contract, from their characteristic polynomials.

Along a direction of curvature a, a step without noise is linear. Its matrix has the trace t and the
determinant d, and its eigenvalues are roots of \( z^2 - t z + d \). All lie inside the unit circle
if and only if \( |d| < 1 \) and \( |t| < 1 + d \) (Jury). As steps grow, the real root that passes
-1 ends stability: \( 1 + t + d = 0 \).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfp_sgmcmc.internal.checks import array, require


def overdamped_limit(largest_curvature: Any) -> Any:
    r"""Returns \( 4 / \lambda \), below which \( |1 - \epsilon \lambda / 2| < 1 \)."""
    with np.errstate(divide="ignore"):
        return 4 / at_least_zero(largest_curvature)


def splitting_limit(largest_curvature: Any) -> Any:
    r"""Returns \( 2 / \sqrt\lambda \), below which \( h^2 \lambda < 4 \)."""
    with np.errstate(divide="ignore"):
        return 2 / np.sqrt(at_least_zero(largest_curvature))


def euler_limit(largest_curvature: Any, friction: Any) -> Any:
    r"""Returns the root of \( h^2 \lambda + 2 h f = 4 \), where f is the friction.

    It is \( 4 / (f + \sqrt{f^2 + 4 \lambda}) \).
    """
    friction, curvature = np.maximum(friction, 0.0), at_least_zero(largest_curvature)
    with np.errstate(divide="ignore"):
        return 4 / (friction + np.sqrt(friction**2 + 4 * curvature))


def at_least_zero(largest_curvature: Any) -> np.ndarray:
    """Returns curvatures, or zero for negative ones, at which every step is stable."""
    values = array("largest_curvature", largest_curvature, least_ndim=0, finite=False)
    require("largest_curvature", "NaN", not np.isnan(values).any(), "a number")
    return np.maximum(np.asarray(values, np.float64), 0.0)
