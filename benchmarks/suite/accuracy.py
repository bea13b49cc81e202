"""`track_*`: errors of each method's samples after equal passes and equal seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.suite.profiles import PROFILE

Table = dict[tuple[str, str], dict[str, float]]


def tracked(score: str) -> Callable[..., float]:
    """Returns a benchmark that asv gives the table and the parameters."""

    def track(self: Any, table: Table, problem: str, method: str) -> float:
        return table[problem, method][score]

    return track


class Accuracy:
    """The scores of `benchmarks.suite.scores`, which are all measured once in the beginning."""

    version = "1"
    params = [PROFILE.problems, PROFILE.scored]
    param_names = ["problem", "method"]

    def setup_cache(self) -> Table:
        from benchmarks.common import problems
        from benchmarks.suite import chains, scores

        table = {}
        for problem in PROFILE.problems:
            try:
                target, methods = chains.methods(problem, problems.BATCH_SIZE)
            except NotImplementedError:
                continue
            for name in PROFILE.scored:
                found = scores.measure(problem, target, methods[name])
                table[problem, name] = {k: float(v.mean()) for k, v in found._asdict().items()}
        return table

    setup_cache.timeout = 14_400  # type: ignore  # for "regular" on a busy core

    def setup(self, table: Table, problem: str, method: str) -> None:
        if (problem, method) not in table:
            raise NotImplementedError(f"the data of {problem} are not available")

    track_mean_error = tracked("mean_error")
    track_covariance_error = tracked("covariance_error")
    track_variance_bias = tracked("variance_bias")
    track_matched_bias = tracked("matched_bias")
    track_seconds_per_effective_sample = tracked("seconds_per_effective_sample")
    track_stein_discrepancy = tracked("stein_discrepancy")
    track_temperature_error = tracked("temperature_error")
