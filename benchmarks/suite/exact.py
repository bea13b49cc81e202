"""`track_exact_error`: variances of linear problems against their closed form."""

from __future__ import annotations

from benchmarks.suite.profiles import PROFILE

FLOOR = 0.008  # four standard errors or more of every figure; smaller errors are noise


def tracked(error: float) -> float:
    """Returns the figure of a relative error: its size, at least `FLOOR`."""
    return max(abs(error), FLOOR)


class Exact:
    """Every kernel, estimator of a target and entry point, on a problem with a known law."""

    version = "1"
    params = PROFILE.exact
    param_names = ["setting"]
    timeout = 900

    def track_exact_error(self, setting: str) -> float:
        from benchmarks.suite import exact_entry_points, exact_laws

        module = exact_laws if setting in exact_laws.SETTINGS else exact_entry_points
        return tracked(module.measure(setting).error)
