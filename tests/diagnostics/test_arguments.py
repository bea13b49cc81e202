"""Wrong arguments of the diagnostics are refused in words that name the argument."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import diagnostics as d

JUNK = ["x", None, 1j, object(), np.array(["a", "b"]), np.ones([3, 2], complex), len]
NOT_NUMBERS = ["x", None, 1j, True, np.nan, np.inf, [1.0, 2.0], -1.0]
X = np.random.default_rng(0).standard_normal([6, 2, 3])
TARGET = sgmcmc.FullDataLogProb(lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1))
NOISY = sgmcmc.MinibatchLogProb(
    lambda x: tf.zeros(x.shape[:-1], x.dtype),
    lambda x, batch: -0.5 * tf.reduce_sum((x[..., tf.newaxis, :] - batch) ** 2, axis=-1),
    X[:, 0],
    batch_size=2,
)
ESTIMATE = NOISY.estimate(tf.zeros([3], tf.float64), tf.constant([0, 1]))
SQUARE = np.eye(3) + 1

ARRAYS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (d.integrated_autocorrelation_time, dict(samples=X), "samples"),
    (d.autocorrelation_time_unit_cost, dict(samples=X, seconds_per_result=1.0), "samples"),
    (d.relative_mean_error, dict(estimate=X[0, 0], reference=X[1, 0]), "estimate reference"),
    (d.relative_covariance_error, dict(estimate=SQUARE, reference=SQUARE), "estimate reference"),
    (d.squared_variance_error, dict(samples=X, variances=np.ones(3)), "samples variances"),
    (d.weighted_expectation, dict(values=X, step_sizes=np.ones(6)), "values step_sizes"),
    (d.effective_number_of_steps, dict(step_sizes=np.ones(6)), "step_sizes"),
    (d.indices_by_distance, dict(step_sizes=np.ones(6), distance=2.0), "step_sizes"),
    (d.configurational_temperature, dict(samples=X, gradients=-X), "samples gradients"),
    (d.kinetic_temperature, dict(momentum=X), "momentum"),
    (d.gradients_at, dict(target_log_prob_fn=TARGET, samples=X), "samples"),
    (d.squared_kernel_stein_discrepancy, dict(samples=X, gradients=-X), "samples gradients"),
    (
        d.rejection_probability,
        dict(target_log_prob_fn=TARGET, state=X[0], new_state=X[1], step_size=0.1),
        "state new_state",
    ),
    (d.check_finite, dict(samples=X), "samples"),
    (d.sampling_threshold, dict(estimate=ESTIMATE, step_size=0.1, seed=0), "estimate"),
    (d.gradient_noise_share, dict(estimate=ESTIMATE, step_size=0.1), "estimate"),
]

NUMBERS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (d.integrated_autocorrelation_time, dict(samples=X), "window chain_ndims"),
    (d.autocorrelation_time_unit_cost, dict(samples=X), "seconds_per_result"),
    (d.indices_by_distance, dict(step_sizes=np.ones(6)), "distance"),
    (d.configurational_temperature, dict(samples=X, gradients=-X), "chain_ndims"),
    (d.kinetic_temperature, dict(momentum=X), "chain_ndims"),
    (
        d.squared_kernel_stein_discrepancy,
        dict(samples=X, gradients=-X),
        "scale chain_ndims",
    ),
    (
        d.sampling_threshold,
        dict(estimate=ESTIMATE, step_size=0.1, seed=0),
        "temperature num_iterations",
    ),
    (d.gradient_noise_share, dict(estimate=ESTIMATE, step_size=0.1), "temperature"),
    (d.MixingDistanceReducer, dict(distance=1.0, size=2), "distance size"),
    (d.ConfigurationalTemperatureReducer, dict(target_log_prob_fn=TARGET, seed=0), "every"),
    (d.KernelSteinDiscrepancyReducer, dict(target_log_prob_fn=TARGET, size=4), "size every scale"),
    (
        d.SamplingThresholdReducer,
        dict(target=NOISY, threshold=1.0, seed=0),
        "threshold every temperature num_iterations",
    ),
]


def name(case: Any) -> str:
    return getattr(case, "__name__", "")


def refused(function: Callable[..., Any], given: dict[str, Any], argument: str, bad: Any) -> bool:
    with pytest.raises((TypeError, ValueError), match=rf"\b{argument} must") as caught:
        function(**{**given, argument: bad})
    return "Received" in str(caught.value)


@pytest.mark.parametrize(("function", "given", "arguments"), ARRAYS, ids=name)
def test_what_is_not_an_array_of_numbers(
    function: Any, given: dict[str, Any], arguments: str
) -> None:
    function(**given)
    for argument in arguments.split():
        assert all([refused(function, given, argument, bad) for bad in JUNK])


@pytest.mark.parametrize(("function", "given", "arguments"), NUMBERS, ids=name)
def test_what_is_not_a_number_in_range(
    function: Any, given: dict[str, Any], arguments: str
) -> None:
    for argument in arguments.split():
        assert all([refused(function, given, argument, bad) for bad in NOT_NUMBERS])


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (d.integrated_autocorrelation_time, dict(samples=X, window=5)),
        (d.squared_kernel_stein_discrepancy, dict(samples=X, gradients=-X, scale=2)),
        (d.squared_kernel_stein_discrepancy, dict(samples=X, gradients=-X, chunk_size=1)),
        (d.gradient_noise_share, dict(estimate=ESTIMATE, step_size=0.1, temperature=2)),
        (d.sampling_threshold, dict(estimate=ESTIMATE, step_size=0.1, seed=0, temperature=2)),
    ],
    ids=name,
)
def test_integers_of_other_types_are_numbers(function: Any, given: dict[str, Any]) -> None:
    last, value = list(given.items())[-1]
    other = np.int64(value) if last == "chunk_size" else tf.constant(value)
    np.testing.assert_array_equal(function(**given | {last: other}), function(**given))


@pytest.mark.parametrize(
    ("function", "given", "arguments"),
    [
        (d.MixingDistanceReducer, dict(distance=1.0, size=2), "step_size_fn"),
        (d.RejectionReducer, dict(target_log_prob_fn=TARGET), "step_size_fn"),
        (d.SamplingThresholdReducer, dict(target=NOISY, threshold=1.0, seed=0), "step_size_fn"),
        (d.WeightedExpectationReducer, {}, "step_size_fn fn"),
        (
            d.KernelSteinDiscrepancyReducer,
            dict(target_log_prob_fn=TARGET, size=4),
            "gradient_fn target_log_prob_fn",
        ),
    ],
    ids=name,
)
def test_what_is_not_a_function(function: Any, given: dict[str, Any], arguments: str) -> None:
    function(**given)
    for argument in arguments.split():
        assert all([refused(function, given, argument, bad) for bad in ("x", 1, [len])])


def test_shapes_that_do_not_fit() -> None:
    for function, given, message in (
        (d.rejection_probability, dict(state=X[0], new_state=X[0, 0]), "new_state must have"),
        (d.gradients_at, dict(samples=np.float64(1.0)), "samples must have parts"),
        (d.gradients_at, dict(samples=np.zeros([0, 3])), "samples must have parts"),
        (d.kinetic_temperature, dict(momentum=X, chain_ndims=4), "chain_ndims must be at most"),
        (d.configurational_temperature, dict(samples=[X], gradients=[X, X]), "the same parts"),
        (d.relative_mean_error, dict(estimate=[1.0], reference=[np.nan]), "reference must be fin"),
        (d.squared_kernel_stein_discrepancy, dict(samples=X[0, 0], chain_ndims=1), "samples must"),
        (d.check_finite, dict(samples=1.0), "samples must have parts"),
    ):
        extra: dict[str, Any] = {}
        if function is d.rejection_probability:
            extra = dict(target_log_prob_fn=TARGET, step_size=0.1)
        elif function is d.gradients_at:
            extra = dict(target_log_prob_fn=TARGET)
        elif function is d.squared_kernel_stein_discrepancy:
            extra = dict(gradients=X[0, 0])
        with pytest.raises(ValueError, match=message):
            function(**given, **extra)  # ty: ignore[invalid-argument-type]
