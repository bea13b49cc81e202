"""Calls of the drivers, of `tune` and of the diagnostics."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from benchmarks.robustness.calls import Entry
from benchmarks.robustness.derive import entry
from benchmarks.robustness.kinds import (
    KERNEL,
    SEED,
    STATE,
    TARGET,
    draws,
    finite,
    log_prior,
    matrices,
    step_size_functions,
)
from benchmarks.robustness.values import (
    INF,
    NAN,
    Named,
    array,
    choice,
    function,
    instance,
    integer,
    number,
    path,
    setting,
    state,
    target,
)

diag = sgmcmc.diagnostics
RNG = np.random.default_rng(1)
DRAWS = RNG.normal(size=[12, 2]).astype(np.float32)
QUIET = dict(seed=0, progress_bar=False)


def drivers() -> list[Entry]:
    room, start = "sampling", np.zeros([4, 2], np.float32)
    plain: dict[str, Any] = dict(**QUIET, jit_compile=False, preflight_check=False)
    chain = dict(kernel=KERNEL, initial_state=STATE, num_results=2, **plain)
    folder = Path(tempfile.mkdtemp())
    run = folder / "run"
    shards: dict[str, Any] = dict(
        make_kernel=lambda: KERNEL, initial_state=start, num_results=2, chains_per_shard=2
    )
    sgmcmc.sample_shards(**shards, **plain, directory=run)

    def states(result: Any) -> Any:
        return result.states

    def stored(directory: Any, **arguments: Any) -> Any:
        """Runs a chain in a new directory."""
        del directory
        with tempfile.TemporaryDirectory() as new:
            result = sgmcmc.sample_chain(directory=Path(new) / "run", **arguments)
            return np.asarray(result.states)

    def tune(made: Any) -> Any:
        return made.state

    made = [None, "x", 1, [], {}, object(), TARGET, sgmcmc.SGLD, (KERNEL,)]
    tuned = dict(
        make_kernel_fn=lambda step_size: sgmcmc.SGLD(TARGET, step_size),
        candidates={"step_size": [0.01, 0.02]}, target_log_prob_fn=TARGET, seed=0,
        initial_state=np.zeros([2, 2], np.float32), num_steps=12, num_results=3, jit_compile=False,
    )  # fmt: skip
    wrong_kernels = [v for v in function(0, *made) if not isinstance(v, type)]
    return [
        entry(room, sgmcmc.sample_chain, chain, use=states),
        entry(room, sgmcmc.sample_chain, {**chain, "directory": True}, call=stored,
              only={"trace_fn", "initial_state"}, name="sample_chain in a directory"),
        entry(room, sgmcmc.sample_chain, {**chain, "preflight_check": True}, use=states,
              only={"kernel", "initial_state"}, name="sample_chain with preflight"),
        entry(room, sgmcmc.sample, dict(target=TARGET, initial_state=STATE, num_results=2, **QUIET),
              use=states, without={"jit_compile", "preflight_check"}),
        entry(room, sgmcmc.sample_shards, {**shards, **plain}, use=states,
              without={"kernel", "make_kernel"}),
        entry(room, sgmcmc.Directory, {"path": "run"}, {"path": path()},
              also={"path": "directory"}),
        entry(room, sgmcmc.tune, tuned,
              dict(make_kernel_fn=[*wrong_kernels, Named("of another name", lambda friction: None),
                                   sgmcmc.SGLD],
                   target_log_prob_fn=target(), num_steps=[*integer(1), 2],
                   num_results=[*integer(2), 1], reduction=number(1.0, 0.5, -1.0, 0.0)),
              use=tune, also={"candidates": "candidate"}),
        entry(room, sgmcmc.open_shards, {"directory": run},
              dict(directory=[*path(), str(folder), f"{folder}/other"],
                   shards=instance([7], [-1], ["a"], optional=True)),
              use=lambda found: np.asarray(next(iter(found.values())))),
        entry(room, sgmcmc.export_program,
              dict(kernel=KERNEL, initial_state=STATE, num_results=2, path=folder / "chain.npz",
                   seed=0),
              dict(path=[*path(), str(folder), f"{folder}/none/chain.npz"]), use=str),
    ]  # fmt: skip


def diagnostic(name: str, give: Mapping[str, Any], wrong: Mapping[str, Any] | None = None,
               **options: Any) -> Entry:  # fmt: skip
    return entry("diagnostics", getattr(diag, name), give, wrong, name=name, **options)


def folded(reducer: Any) -> Any:
    """Returns what a reducer finds in three steps."""
    at, results = tf.constant(STATE), KERNEL.bootstrap_results(STATE)
    own = reducer.initialize(at, results)
    for step in range(3):
        at, results = KERNEL.one_step(at, results, seed=[0, step])
        own = reducer.one_step(at, own, results)
    return reducer.finalize(own) if isinstance(reducer, diag.KernelSteinDiscrepancyReducer) else at


def functions() -> list[Entry]:
    """Calls of the functions of draws, gradients and estimates."""
    estimate = TARGET.estimate(tf.zeros([2]), SEED)
    wrong_estimate = instance(estimate._replace(scores=()), sgmcmc.GradientEstimate)
    positive, square, series = number(0.0, -1.0), np.eye(2), RNG.normal(size=[400, 2])
    means = finite(array(np.ones([3]), np.zeros([0]), 1j))
    covariances = finite(array(np.ones([2]), np.ones([3, 3])))
    step_sizes = array(-np.ones([12]), np.full([12], NAN), np.full([12], INF), [])
    noise = dict(estimate=wrong_estimate, temperature=positive)
    pages = [{"w": "x"}, {"w": [1.0, "a"]}, {"w": np.ones([3])}, {"w": np.ones([0, 2, 3])}, DRAWS]
    at = tf.constant(STATE)
    move = dict(target_log_prob_fn=TARGET, state=at, new_state=at, step_size=0.1)
    return [
        diagnostic("check_finite", {"samples": DRAWS}, {"samples": array({}, [[1.0], [1.0, 2.0]])}),
        diagnostic("report", dict(result={"w": DRAWS[:, None]}, target_log_prob_fn=TARGET, seed=0),
                   dict(result=instance(*pages), temperature=positive,
                        target_log_prob_fn=[v for v in target() if v is not None]),
                   without={"kernel", "num_gradients"}, also={"result": "draws"}),
        diagnostic("integrated_autocorrelation_time", dict(samples=series, chain_ndims=1)),
        diagnostic("autocorrelation_time_unit_cost",
                   dict(samples=series, seconds_per_result=1.0, chain_ndims=1)),
        diagnostic("relative_mean_error", dict(estimate=[1.0, 2.0], reference=[1.0, 1.0]),
                   dict(estimate=means, reference=[*means, [0.0, 0.0]])),
        diagnostic("relative_covariance_error", dict(estimate=square, reference=square),
                   dict(estimate=covariances, reference=[*covariances, 0 * square])),
        diagnostic("squared_variance_error", dict(samples=DRAWS, variances=[1.0, 1.0]),
                   dict(samples=draws(np.ones([12, 3])),
                        variances=array([1.0, 0.0], [-1.0, 1.0], [1.0]))),
        diagnostic("sampling_threshold",
                   dict(estimate=estimate, step_size=0.1, seed=0, num_iterations=5), noise),
        diagnostic("gradient_noise_share", dict(estimate=estimate, step_size=0.1), noise),
        diagnostic("indices_by_distance", dict(step_sizes=np.full([12], 0.1), distance=0.3),
                   dict(step_sizes=step_sizes)),
        diagnostic("weighted_expectation", dict(values=DRAWS, step_sizes=np.ones([12])),
                   dict(values=draws(np.ones([3])), step_sizes=[*step_sizes, np.ones([5])])),
        diagnostic("effective_number_of_steps", {"step_sizes": np.ones([12])},
                   {"step_sizes": step_sizes}),
        diagnostic("configurational_temperature", dict(samples=DRAWS, gradients=-DRAWS),
                   dict(samples=draws(DRAWS[:1]), gradients=draws(DRAWS[:3]))),
        diagnostic("kinetic_temperature", {"momentum": STATE},
                   dict(momentum=finite(state()), mass=setting(0.0, -1.0))),
        diagnostic("gradients_at", dict(target_log_prob_fn=TARGET, samples=DRAWS, seed=0)),
        diagnostic("rejection_probability", move),
        diagnostic("squared_kernel_stein_discrepancy", dict(samples=DRAWS, gradients=-DRAWS),
                   dict(samples=draws(np.ones([5, 2])), gradients=draws(np.ones([5, 2])), **stein(),
                        weights=array(np.ones([3]), -np.ones([12]), np.full([12], NAN),
                                      optional=True))),
    ]  # fmt: skip


def stein() -> dict[str, Any]:
    wrong = [v for v in matrices() if repr(v) != repr(np.eye(2))]
    return dict(preconditioner=wrong, statistic=choice("V"))


def reducers() -> list[Entry]:
    def reducer(
        name: str, give: Mapping[str, Any], wrong: Mapping[str, Any] | None = None
    ) -> Entry:
        kind: Callable[..., Any] = getattr(diag, name)
        return entry("diagnostics", kind, give, wrong, use=folded)

    log_prob, positive = dict(target_log_prob_fn=TARGET), number(0.0, -1.0)
    gradient = function(1, None, "x", 1.0, [], {}, np.ones([3]), optional=True)
    threshold = dict(
        target=[*instance(sgmcmc.MinibatchLogProb), log_prior], temperature=positive,
        step_size_fn=step_size_functions(),
    )  # fmt: skip
    return [
        reducer("ConfigurationalTemperatureReducer", {**log_prob, "seed": 0}),
        reducer("KernelSteinDiscrepancyReducer", {**log_prob, "size": 3, "seed": 0},
                dict(size=integer(2), gradient_fn=gradient, **stein())),
        reducer("MixingDistanceReducer", dict(distance=0.1, size=3), dict(distance=positive)),
        reducer("RejectionReducer", log_prob),
        reducer("SamplingThresholdReducer", dict(target=TARGET, threshold=0.1, seed=0), threshold),
        reducer("WeightedExpectationReducer", {},
                dict(fn=function(1, None, "x", object(), [1.0, "a"], optional=True))),
    ]  # fmt: skip


def entries() -> list[Entry]:
    return [*drivers(), *functions(), *reducers()]
