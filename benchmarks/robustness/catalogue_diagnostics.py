"""Calls of the diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.catalogue_samplers import (
    ALSO,
    SEED,
    STATE,
    TARGET,
    log_prior,
    matrices,
)
from benchmarks.robustness.values import (
    INF,
    NAN,
    array,
    choice,
    function,
    instance,
    integer,
    number,
    seed,
    setting,
    state,
    target,
)

diag = sgmcmc.diagnostics
RNG = np.random.default_rng(1)
DRAWS = RNG.normal(size=[12, 2]).astype(np.float32)
KERNEL = sgmcmc.SGLD(TARGET, 0.01)


def label_of(value: Any) -> str:
    return repr(value)


def finite(values: list[Any]) -> list[Any]:
    """Leaves out NaN and infinity: they come out as NaN, and `check_finite` is there for them."""
    return [v for v in values if "nan" not in label_of(v) and "inf" not in label_of(v)]


def draws(*others: Any) -> list[Any]:
    """Wrong values of draws `[results, event...]`."""
    return finite(array({}, np.zeros([0, 2]), [[1.0, 2.0], [3.0]], *others))


def folded(reducer: Any) -> Any:
    """Returns what a reducer finds in three steps."""
    at, results = tf.constant(STATE), KERNEL.bootstrap_results(STATE)
    own = reducer.initialize(at, results)
    for step in range(3):
        at, results = KERNEL.one_step(at, results, seed=[0, step])
        own = reducer.one_step(at, own, results)
    return reducer.finalize(own) if isinstance(reducer, diag.KernelSteinDiscrepancyReducer) else at


def plain(
    name: str, valid: Mapping[str, Any], wrong: Mapping[str, Any], also: Mapping[str, str] = ALSO
) -> Entry:
    return Entry("diagnostics", name, getattr(diag, name), valid, wrong, also)


def reducer(name: str, valid: Mapping[str, Any], wrong: Mapping[str, Any]) -> Entry:
    kind: Callable[..., Any] = getattr(diag, name)
    return Entry(
        "diagnostics", name, lambda **arguments: folded(kind(**arguments)), valid, wrong, ALSO
    )


def diagnostics() -> list[Entry]:
    estimate = TARGET.estimate(tf.zeros([2]), SEED)
    wrong_estimates = instance(estimate._replace(scores=()), sgmcmc.GradientEstimate)
    dims, positive = [*integer(0), 7], number(0.0, -1.0)
    results = [None, "x", NAN, [], {}, object(), -1.0, 1j, *[np.ones([3])]]
    sizes = function(1, *results)
    square = np.eye(2)
    means = finite(array(np.ones([3]), np.zeros([0]), 1j))
    covariances = finite(array(np.ones([2]), np.ones([3, 3])))
    weights = array(np.ones([3]), -np.ones([12]), np.full([12], NAN), optional=True)
    step_sizes = array(-np.ones([12]), np.full([12], NAN), np.full([12], INF), [])
    stein = dict(
        preconditioner=[v for v in matrices() if label_of(v) != label_of(np.eye(2))],
        scale=positive,
        exponent=number(0.0, -1.0, 0.5, -2.0),
        statistic=choice("V"),
    )
    kwargs = dict(preconditioner=None, scale=1.0, exponent=-0.5, statistic="U")
    stein_valid = dict(
        samples=DRAWS, gradients=-DRAWS, chain_ndims=0, weights=None, chunk_size=None
    )
    every = integer(1)
    pages = [{"w": "x"}, {"w": [1.0, "a"]}, {"w": np.ones([3])}, {"w": np.ones([0, 2, 3])}, DRAWS]
    return [
        plain("check_finite", dict(samples=DRAWS), dict(samples=array({}, [[1.0], [1.0, 2.0]]))),
        plain(
            "report",
            dict(result={"w": DRAWS[:, None]}, target_log_prob_fn=TARGET, temperature=1.0, seed=0),
            dict(
                result=instance(*pages),
                target_log_prob_fn=[v for v in target() if v is not None],
                temperature=positive,
                seed=seed(optional=True),
            ),
            {**ALSO, "result": "result|draws"},
        ),
        plain(
            "integrated_autocorrelation_time",
            dict(samples=RNG.normal(size=[400, 2]), chain_ndims=1, window=5.0),
            dict(samples=draws(), chain_ndims=dims, window=positive),
        ),
        plain(
            "autocorrelation_time_unit_cost",
            dict(
                samples=RNG.normal(size=[400, 2]), seconds_per_result=1.0, chain_ndims=1, window=5.0
            ),
            dict(samples=draws(), seconds_per_result=positive, chain_ndims=dims, window=positive),
        ),
        plain(
            "relative_mean_error",
            dict(estimate=[1.0, 2.0], reference=[1.0, 1.0]),
            dict(estimate=means, reference=[*means, [0.0, 0.0]]),
        ),
        plain(
            "relative_covariance_error",
            dict(estimate=square, reference=square),
            dict(estimate=covariances, reference=[*covariances, 0 * square]),
        ),
        plain(
            "squared_variance_error",
            dict(samples=DRAWS, variances=[1.0, 1.0]),
            dict(samples=draws(np.ones([12, 3])), variances=array([1.0, 0.0], [-1.0, 1.0], [1.0])),
        ),
        plain(
            "sampling_threshold",
            dict(
                estimate=estimate,
                step_size=0.1,
                preconditioner=None,
                seed=0,
                temperature=1.0,
                num_iterations=5,
            ),
            dict(
                estimate=wrong_estimates,
                step_size=[*setting(0.0, -1.0)],
                preconditioner=matrices(),
                seed=seed(),
                temperature=positive,
                num_iterations=every,
            ),
        ),
        plain(
            "gradient_noise_share",
            dict(estimate=estimate, step_size=0.1, preconditioner=None, temperature=1.0),
            dict(
                estimate=wrong_estimates,
                step_size=[*setting(0.0, -1.0)],
                preconditioner=matrices(),
                temperature=positive,
            ),
        ),
        plain(
            "indices_by_distance",
            dict(step_sizes=np.full([12], 0.1), distance=0.3),
            dict(step_sizes=step_sizes, distance=number(0.0, -1.0, 0.01)),
        ),
        plain(
            "weighted_expectation",
            dict(values=DRAWS, step_sizes=np.ones([12])),
            dict(values=draws(np.ones([3])), step_sizes=[*step_sizes, np.ones([5])]),
        ),
        plain(
            "effective_number_of_steps", dict(step_sizes=np.ones([12])), dict(step_sizes=step_sizes)
        ),
        plain(
            "configurational_temperature",
            dict(samples=DRAWS, gradients=-DRAWS, chain_ndims=0),
            dict(samples=draws(DRAWS[:1]), gradients=draws(DRAWS[:3]), chain_ndims=dims),
        ),
        plain(
            "kinetic_temperature",
            dict(momentum=STATE, mass=1.0, chain_ndims=0),
            dict(momentum=finite(state()), mass=setting(0.0, -1.0), chain_ndims=dims),
        ),
        plain(
            "gradients_at",
            dict(target_log_prob_fn=TARGET, samples=DRAWS, seed=0),
            dict(target_log_prob_fn=target(), samples=draws(), seed=seed(optional=True)),
        ),
        plain(
            "rejection_probability",
            dict(
                target_log_prob_fn=TARGET,
                state=tf.constant(STATE),
                new_state=tf.constant(STATE),
                step_size=0.1,
                preconditioner=None,
            ),
            dict(
                target_log_prob_fn=target(),
                state=state(),
                new_state=state(),
                step_size=setting(0.0, -1.0),
                preconditioner=matrices(),
            ),
        ),
        plain(
            "squared_kernel_stein_discrepancy",
            {**stein_valid, **kwargs},
            dict(
                samples=draws(np.ones([5, 2])),
                gradients=draws(np.ones([5, 2])),
                chain_ndims=dims,
                weights=weights,
                chunk_size=integer(1, optional=True),
                **stein,
            ),
        ),
        reducer(
            "ConfigurationalTemperatureReducer",
            dict(target_log_prob_fn=TARGET, seed=0, every=1),
            dict(target_log_prob_fn=target(), seed=seed(), every=every),
        ),
        reducer(
            "KernelSteinDiscrepancyReducer",
            dict(target_log_prob_fn=TARGET, size=3, seed=0, every=1, gradient_fn=None, **kwargs),
            dict(
                target_log_prob_fn=target(),
                size=integer(2),
                seed=seed(optional=True),
                every=every,
                gradient_fn=function(1, None, "x", 1.0, [], {}, np.ones([3]), optional=True),
                **stein,
            ),
        ),
        reducer(
            "MixingDistanceReducer",
            dict(distance=0.1, size=3, step_size_fn=lambda results: results.step_size),
            dict(distance=number(0.0, -1.0), size=integer(1), step_size_fn=sizes),
        ),
        reducer(
            "RejectionReducer",
            dict(
                target_log_prob_fn=TARGET,
                preconditioner=None,
                every=1,
                step_size_fn=lambda r: r.step_size,
            ),
            dict(
                target_log_prob_fn=target(),
                preconditioner=matrices(),
                every=every,
                step_size_fn=sizes,
            ),
        ),
        reducer(
            "SamplingThresholdReducer",
            dict(
                target=TARGET,
                threshold=0.1,
                preconditioner=None,
                seed=0,
                every=1,
                temperature=1.0,
                num_iterations=5,
                step_size_fn=lambda results: results.step_size,
            ),
            dict(
                target=[*instance(sgmcmc.MinibatchLogProb), log_prior],
                threshold=positive,
                preconditioner=matrices(),
                seed=seed(),
                every=every,
                temperature=positive,
                num_iterations=every,
                step_size_fn=sizes,
            ),
        ),
        reducer(
            "WeightedExpectationReducer",
            dict(fn=None, step_size_fn=lambda results: results.step_size),
            dict(
                fn=[*function(1, None, "x", object(), [1.0, "a"], optional=True)],
                step_size_fn=sizes,
            ),
        ),
    ]


def entries() -> list[Entry]:
    return diagnostics()
