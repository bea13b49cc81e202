"""Stochastic-gradient MCMC for TensorFlow Probability and Keras."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tfp_sgmcmc import (
        covariance,
        diagnostics,
        keras,
        kernels,
        preconditioners,
        random,
        schedules,
        targets,
    )
    from tfp_sgmcmc.diagnostics import (
        NonFiniteChainError,
        check_finite,
        relative_covariance_error,
        relative_mean_error,
    )
    from tfp_sgmcmc.kernels import (
        NOGIN,
        SGFS,
        SGHMC,
        SGLD,
        SGNHT,
        CCAdL,
        CorrectedLangevin,
        ModifiedSGLD,
        ReplicaExchangeSGLD,
        UnderdampedLangevin,
    )
    from tfp_sgmcmc.targets import (
        SVRG,
        ControlVariate,
        FullDataLogProb,
        GradientEstimate,
        GrowingBatch,
        MinibatchLogProb,
        find_center,
        preflight,
    )

# Loaded on first use: `import tfp_sgmcmc` and `python -m tfp_sgmcmc --help` wait for no TensorFlow.
_HOMES = {
    "NonFiniteChainError": "diagnostics",
    "check_finite": "diagnostics",
    "relative_covariance_error": "diagnostics",
    "relative_mean_error": "diagnostics",
    "NOGIN": "kernels",
    "ModifiedSGLD": "kernels",
    "SGFS": "kernels",
    "SGHMC": "kernels",
    "SGLD": "kernels",
    "SGNHT": "kernels",
    "CCAdL": "kernels",
    "CorrectedLangevin": "kernels",
    "ReplicaExchangeSGLD": "kernels",
    "UnderdampedLangevin": "kernels",
    "ControlVariate": "targets",
    "FullDataLogProb": "targets",
    "GradientEstimate": "targets",
    "GrowingBatch": "targets",
    "MinibatchLogProb": "targets",
    "SVRG": "targets",
    "find_center": "targets",
    "preflight": "targets",
}
_MODULES = (
    "covariance",
    "diagnostics",
    "kernels",
    "keras",
    "preconditioners",
    "random",
    "schedules",
    "targets",
)

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tfp_sgmcmc.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"tfp_sgmcmc.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tfp_sgmcmc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
