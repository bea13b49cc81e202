"""`fit` of a Keras network: the callback beside plain training, and scores of predictions."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.suite.profiles import PROFILE

NUM_SEEDS = PROFILE.lengths.network_seeds
SEEDS = tuple(
    NUM_SEEDS * int(os.environ.get("TFP_SGMCMC_SEEDS", "0")) + i for i in range(NUM_SEEDS)
)
NUM_STEPS = 500
Table = dict[str, dict[str, float]]


class Fit:
    """Seconds and memory of 500 steps, which are compiled before."""

    version = "1"
    params = [PROFILE.fitted, PROFILE.steps_per_execution]
    param_names = ["method", "steps per execution"]
    number = 1
    network: Any = None

    def setup(self, method: str, steps_per_execution: int) -> None:
        if self.network is None:
            from benchmarks.suite.digits import Network

            self.network = Network(method, steps_per_execution)
            self.network.fit(steps_per_execution)

    def time_500_steps(self, method: str, steps_per_execution: int) -> None:
        self.network.fit(NUM_STEPS)

    def peakmem_500_steps(self, method: str, steps_per_execution: int) -> None:
        self.network.fit(NUM_STEPS)


class Predictions:
    """Scores of the posterior mean prediction on the test part, averaged over seeds."""

    version = "1"
    params = PROFILE.fitted
    param_names = ["method"]

    def setup_cache(self) -> Table:
        import numpy as np

        from benchmarks.suite import digits

        table = {}
        for method in PROFILE.fitted:
            found = []
            for seed in SEEDS:
                network = digits.Network(method, 10, seed, keep=True)
                network.fit(digits.NUM_STEPS)
                found.append(network.scores())
            means = np.mean(found, axis=0)
            table[method] = dict(zip(found[0]._fields, map(float, means), strict=True))
        return table

    setup_cache.timeout = 1800  # type: ignore

    def track_log_loss(self, table: Table, method: str) -> float:
        return table[method]["log_loss"]

    def track_calibration_error(self, table: Table, method: str) -> float:
        return table[method]["calibration_error"]
