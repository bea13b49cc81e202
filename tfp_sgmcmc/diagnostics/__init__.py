"""Diagnostics of chains, from their draws or while they run.

A function computes a diagnostic from arrays. Its reducer (for `sample_fold` and `WithReductions` of
`tfp.experimental.mcmc`) computes it during a run that keeps no draws.
"""

from tfp_sgmcmc.diagnostics.certificate import Certificate, certify
from tfp_sgmcmc.diagnostics.chain_checks import NonFiniteChainError, check_finite
from tfp_sgmcmc.diagnostics.convergence import (
    autocorrelation_time_unit_cost,
    integrated_autocorrelation_time,
)
from tfp_sgmcmc.diagnostics.draw_summary import DrawSummary
from tfp_sgmcmc.diagnostics.errors import (
    relative_covariance_error,
    relative_mean_error,
    squared_variance_error,
)
from tfp_sgmcmc.diagnostics.gradient_noise import (
    ConfigurationalTemperatureReducer,
    SamplingThresholdReducer,
    SamplingThresholdState,
    TemperatureState,
    configurational_temperature,
    gradient_noise_share,
    kinetic_temperature,
    sampling_threshold,
)
from tfp_sgmcmc.diagnostics.leave_one_out import Comparison, LeaveOneOut, compare
from tfp_sgmcmc.diagnostics.rejection import RejectionReducer, RejectionState, rejection_probability
from tfp_sgmcmc.diagnostics.run_report import Report, report
from tfp_sgmcmc.diagnostics.stein import (
    KernelSteinDiscrepancyReducer,
    SteinState,
    gradients_at,
    squared_kernel_stein_discrepancy,
)
from tfp_sgmcmc.diagnostics.weighted import (
    MixingDistanceReducer,
    MixingDistanceState,
    WeightedExpectationReducer,
    WeightedMean,
    effective_number_of_steps,
    indices_by_distance,
    weighted_expectation,
)
from tfp_sgmcmc.diagnostics.weighted_sample import pareto_shape

__all__ = [
    "Certificate",
    "Comparison",
    "DrawSummary",
    "LeaveOneOut",
    "compare",
    "ConfigurationalTemperatureReducer",
    "KernelSteinDiscrepancyReducer",
    "MixingDistanceReducer",
    "MixingDistanceState",
    "NonFiniteChainError",
    "RejectionReducer",
    "RejectionState",
    "Report",
    "SamplingThresholdReducer",
    "SamplingThresholdState",
    "SteinState",
    "TemperatureState",
    "WeightedExpectationReducer",
    "WeightedMean",
    "autocorrelation_time_unit_cost",
    "certify",
    "check_finite",
    "configurational_temperature",
    "effective_number_of_steps",
    "gradient_noise_share",
    "gradients_at",
    "indices_by_distance",
    "integrated_autocorrelation_time",
    "kinetic_temperature",
    "pareto_shape",
    "rejection_probability",
    "relative_covariance_error",
    "relative_mean_error",
    "report",
    "sampling_threshold",
    "squared_kernel_stein_discrepancy",
    "squared_variance_error",
    "weighted_expectation",
]
