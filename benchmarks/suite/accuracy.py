"""`track_*`: errors of each method's samples after equal passes and equal seconds."""

from __future__ import annotations

from benchmarks.suite.profiles import PROFILE

Table = dict[tuple[str, str], dict[str, float]]


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

    def track_mean_error(self, table: Table, problem: str, method: str) -> float:
        return table[problem, method]["mean_error"]

    def track_covariance_error(self, table: Table, problem: str, method: str) -> float:
        return table[problem, method]["covariance_error"]

    def track_variance_bias(self, table: Table, problem: str, method: str) -> float:
        return table[problem, method]["variance_bias"]

    def track_matched_bias(self, table: Table, problem: str, method: str) -> float:
        return table[problem, method]["matched_bias"]

    def track_seconds_per_effective_sample(self, table: Table, problem: str, method: str) -> float:
        return table[problem, method]["seconds_per_effective_sample"]

    def track_stein_discrepancy(self, table: Table, problem: str, method: str) -> float:
        return table[problem, method]["stein_discrepancy"]

    def track_temperature_error(self, table: Table, problem: str, method: str) -> float:
        return table[problem, method]["temperature_error"]
