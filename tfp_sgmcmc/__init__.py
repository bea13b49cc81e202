"""Stochastic-gradient MCMC for TensorFlow Probability and Keras."""

from __future__ import annotations

import ast
import importlib
import warnings
from pathlib import Path
from typing import Any

__version__ = "0.2.0"


def _homes() -> dict[str, str]:
    """Returns the module that each public name comes from, as the stub `__init__.pyi` says."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


# Names are loaded on first use, so that `import tfp_sgmcmc` does not wait for TensorFlow.
_HOMES = _homes()
# Public here until version 0.1; now in `tfp_sgmcmc.diagnostics` alone.
_MOVED_TO_DIAGNOSTICS = {
    "ConfigurationalTemperatureReducer",
    "KernelSteinDiscrepancyReducer",
    "MixingDistanceReducer",
    "RejectionReducer",
    "SamplingThresholdReducer",
    "WeightedExpectationReducer",
    "amari_distance",
    "autocorrelation_time_unit_cost",
    "configurational_temperature",
    "effective_number_of_steps",
    "gradient_noise_share",
    "gradients_at",
    "indices_by_distance",
    "instability_index",
    "integrated_autocorrelation_time",
    "kinetic_temperature",
    "rejection_probability",
    "relative_covariance_error",
    "relative_mean_error",
    "sampling_threshold",
    "squared_kernel_stein_discrepancy",
    "squared_variance_error",
    "weighted_expectation",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if _HOMES.get(name) == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MOVED_TO_DIAGNOSTICS:
        warnings.warn(
            f"tfp_sgmcmc.{name} is now tfp_sgmcmc.diagnostics.{name}; the old name goes in the "
            "next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(f"{__name__}.diagnostics"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
