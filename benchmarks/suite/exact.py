"""`track_exact_error`: variances of linear problems against their closed form."""

from __future__ import annotations

from benchmarks.suite.profiles import PROFILE

FLOOR = 0.008  # four standard errors or more of every figure; smaller errors are noise


def tracked(error: float) -> float:
    """Returns the figure of a relative error: its size, at least `FLOOR`."""
    return max(abs(error), FLOOR)


class Exact:
    """Every kernel, and every estimator of a target, on a problem with a known stationary law."""

    version = "1"
    params = PROFILE.exact
    param_names = ["setting"]
    timeout = 900

    def track_exact_error(self, setting: str) -> float:
        from benchmarks.suite import exact_laws

        return tracked(exact_laws.measure(setting).error)
