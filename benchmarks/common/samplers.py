"""The settings of every sampler on the logistic regressions of the accuracy table and the suite.

Names are read without TensorFlow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tfp_sgmcmc as sgmcmc
from benchmarks.common.registry import SAMPLERS, RegisteredSampler

Covariances = dict[str, Any]  # estimators by the names "full", "diag" and "low_rank"
Make = Callable[[Any, Covariances], Any]  # (target, covariances) -> kernel

STEP, FRICTION = 0.003, 1.0  # of samplers without settings below

# The steps are near the largest that each sampler bears at n = 500.
SETTINGS: dict[str, dict[str, Make]] = {
    "SGLD": {
        "SGLD, eps 1e-3": lambda target, c: sgmcmc.SGLD(target, 1e-3),
        "SGLD, eps 2e-5": lambda target, c: sgmcmc.SGLD(target, 2e-5),
    },
    "ModifiedSGLD": {"mSGLD": lambda target, c: sgmcmc.ModifiedSGLD(target, 1e-4, c["full"])},
    "SGFS": {
        "SGFS full, alpha 0": lambda target, c: sgmcmc.SGFS(
            target, alpha=0.0, num_estimation_steps=10_000 // target.batch_size
        ),
        "SGFS full": lambda target, c: sgmcmc.SGFS(target, alpha=100.0),
        "SGFS low_rank": lambda target, c: sgmcmc.SGFS(
            target, alpha=100.0, covariance=c["low_rank"]
        ),
        "SGFS diag": lambda target, c: sgmcmc.SGFS(target, alpha=100.0, covariance="diag"),
    },
    "SGHMC": {"SGHMC": lambda target, c: sgmcmc.SGHMC(target, 0.003, 50.0, c["full"])},
    "SGNHT": {"SGNHT": lambda target, c: sgmcmc.SGNHT(target, 0.003, friction=1.0)},
    "CCAdL": {
        "CCAdL full": lambda target, c: sgmcmc.CCAdL(target, 0.005, 1.0, c["full"]),
        "CCAdL low_rank": lambda target, c: sgmcmc.CCAdL(target, 0.003, 1.0, c["low_rank"]),
        "CCAdL diag": lambda target, c: sgmcmc.CCAdL(target, 0.005, 1.0, c["diag"]),
    },
    "UnderdampedLangevin": {
        "underdamped Langevin": lambda target, c: sgmcmc.UnderdampedLangevin(
            target, 0.003, friction=1.0
        )
    },
    "NOGIN": {
        "NOGIN full": lambda target, c: sgmcmc.NOGIN(
            target, 0.03, 1.0, c["full"], num_estimation_steps=10_000 // target.batch_size
        ),
        # A short history gives a noisy Sigma, which a small step and more friction tolerate.
        "NOGIN low_rank": lambda target, c: sgmcmc.NOGIN(target, 0.005, 3.0, c["low_rank"]),
        "NOGIN diag": lambda target, c: sgmcmc.NOGIN(target, 0.03, 1.0, c["diag"]),
    },
    "CorrectedLangevin": {
        "corrected Langevin": lambda target, c: sgmcmc.CorrectedLangevin(target, 1e-3)
    },
}


def settings(row: RegisteredSampler) -> dict[str, Make]:
    """Returns makers of kernels by name for a row of the registry.

    A row without an entry in `SETTINGS` has one maker, under its label. It is the maker of the row
    at the small step `STEP` and the friction `FRICTION`, without allowance for gradient noise.
    """

    def default(target: Any, covariances: Covariances) -> Any:
        return row.make(target, STEP, FRICTION, 0.0, covariances["full"])

    return SETTINGS.get(row.name, {row.label: default})


ORDER = {name: place for place, name in enumerate(SETTINGS)}
ROWS = sorted(SAMPLERS, key=lambda row: ORDER.get(row.name, len(ORDER)))
ON_MINIBATCHES = {k: v for row in ROWS if not row.all_data for k, v in settings(row).items()}
ON_ALL_DATA = {k: v for row in ROWS if row.all_data for k, v in settings(row).items()}


def samplers(target: Any, makers: dict[str, Make] = ON_MINIBATCHES) -> dict[str, Callable[[], Any]]:
    """Returns functions that make the kernels of `makers` on a target, by name."""
    found = covariances(target)
    return {name: functools.partial(make, target, found) for name, make in makers.items()}


def covariances(target: Any) -> Covariances:
    """Returns estimators of V that use equally many scores at every n.

    `full` and `diag` average over about 50,000 scores. `low_rank` keeps 4,000 scores, which are
    at least 4,000 scores old.
    """
    covariance, n = sgmcmc.covariance, target.num_scores
    average = covariance.RunningMean(decay=1 - n / 50_000)
    history = covariance.History(max(1, 4000 // n), lag=max(1, 4000 // n))
    return {
        "full": covariance.Full(average),
        "diag": covariance.Diag(average),
        "low_rank": covariance.LowRank(history),
    }
