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
        sampling,
        schedules,
        targets,
    )
    from tfp_sgmcmc.diagnostics import (
        ConfigurationalTemperatureReducer,
        KernelSteinDiscrepancyReducer,
        MixingDistanceReducer,
        NonFiniteChainError,
        RejectionReducer,
        SamplingThresholdReducer,
        WeightedExpectationReducer,
        amari_distance,
        autocorrelation_time_unit_cost,
        check_finite,
        configurational_temperature,
        effective_number_of_steps,
        gradient_noise_share,
        gradients_at,
        indices_by_distance,
        instability_index,
        integrated_autocorrelation_time,
        kinetic_temperature,
        rejection_probability,
        relative_covariance_error,
        relative_mean_error,
        report,
        sampling_threshold,
        squared_kernel_stein_discrepancy,
        squared_variance_error,
        weighted_expectation,
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
    from tfp_sgmcmc.sampling import SampleResult, StreamedLogProb, sample, tune
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
    "ConfigurationalTemperatureReducer": "diagnostics",
    "KernelSteinDiscrepancyReducer": "diagnostics",
    "MixingDistanceReducer": "diagnostics",
    "NonFiniteChainError": "diagnostics",
    "RejectionReducer": "diagnostics",
    "SamplingThresholdReducer": "diagnostics",
    "WeightedExpectationReducer": "diagnostics",
    "amari_distance": "diagnostics",
    "autocorrelation_time_unit_cost": "diagnostics",
    "check_finite": "diagnostics",
    "configurational_temperature": "diagnostics",
    "effective_number_of_steps": "diagnostics",
    "gradient_noise_share": "diagnostics",
    "gradients_at": "diagnostics",
    "indices_by_distance": "diagnostics",
    "instability_index": "diagnostics",
    "integrated_autocorrelation_time": "diagnostics",
    "kinetic_temperature": "diagnostics",
    "rejection_probability": "diagnostics",
    "relative_covariance_error": "diagnostics",
    "relative_mean_error": "diagnostics",
    "report": "diagnostics",
    "sampling_threshold": "diagnostics",
    "squared_kernel_stein_discrepancy": "diagnostics",
    "squared_variance_error": "diagnostics",
    "weighted_expectation": "diagnostics",
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
    "SampleResult": "sampling",
    "StreamedLogProb": "sampling",
    "sample": "sampling",
    "tune": "sampling",
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
    "sampling",
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
