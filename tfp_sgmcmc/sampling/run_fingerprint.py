"""The fingerprint of a run: what identifies its kernel and problem, which must stay the same."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.covariance import CovarianceEstimator
from tfp_sgmcmc.covariance.base import Average
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.nest import State, call_with_state, instances
from tfp_sgmcmc.internal.replicas import Replicas
from tfp_sgmcmc.kernels.base import StochasticGradientKernel, is_schedule
from tfp_sgmcmc.kernels.independent_metropolis import IndependentMetropolis
from tfp_sgmcmc.preconditioners import Preconditioner
from tfp_sgmcmc.sampling.loop import Loop, Position, log_prob_fn_of, state_tensors
from tfp_sgmcmc.schedules import Schedule
from tfp_sgmcmc.storage import tolerant_equality
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb, ShardedLogProb, Target
from tfp_sgmcmc.targets.base import GradientEstimate, innermost, value_and_gradient
from tfp_sgmcmc.targets.data import checksum
from tfp_sgmcmc.targets.streamed import StreamedLogProb, StreamState
from tfp_sgmcmc.targets.streaming.pooled import PooledLogProb
from tfp_sgmcmc.targets.validation.changed_functions import shifted

_DESCRIBED_ENTRIES = 100
_STEPS = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)  # at which schedules are compared
_SEED = (0, 0)  # draws the minibatch
_NUM_ROWS = 100


def describe_problem(
    log_prob: Any, gradient: Any, what: str = "log posterior", rtol: float = 1e-3
) -> dict[str, Any]:
    """Returns a few numbers that name a log posterior by its value and gradient at one place.

    They are JSON values by name, which `RunDirectory` compares with a tolerance for rounding. Use
    the same state and minibatch whenever the program starts, and a state whose gradient does not
    vanish.

    >>> found = describe_problem(-1.25, np.array([0.5, 2.0]))
    >>> list(found), found["log posterior"]["about"]
    (['log posterior', 'gradient of the log posterior'], [-1.25])

    Args:
      log_prob: the values, an array or number.
      gradient: nest of arrays.
      what: the name of the function, such as "log prior".
      rtol: the relative difference that rounding may make in the values.
    """
    return {
        what: tolerant_equality.record([log_prob], rtol, atol=1e-3),
        f"gradient of the {what}": tolerant_equality.record(tf.nest.flatten(gradient)),
    }


def describe_kernel(kernel: tfp.mcmc.TransitionKernel, prefix: str = "kernel") -> dict[str, Any]:
    """Returns the class, numbers and options of a kernel and its parts, as JSON values by name.

    Functions are described by their type only, schedules also by their values at a few steps, large
    arrays and the data of a target by a checksum.
    """
    described: dict[str, Any] = {prefix: type(kernel).__name__}
    for name, value in getattr(kernel, "parameters", {}).items():
        key = f"{prefix}.{name}"
        if isinstance(value, tfp.mcmc.TransitionKernel):
            described |= describe_kernel(value, key)
        elif isinstance(value, Target):
            described |= _describe_target(value, key)
        else:
            described[key] = _describe(value)
            if isinstance(kernel, StochasticGradientKernel):
                described |= _describe_schedules(value, name, key)
    return described


def schedule_values(name: str, value: Any) -> list[np.ndarray]:
    """Returns the values of the schedules in a kernel's parameter, at several steps."""
    if name.endswith("_fn"):
        return []
    others = Preconditioner | CovarianceEstimator | Average
    schedules = [x for x in tf.nest.flatten(value) if is_schedule(x) and not isinstance(x, others)]
    return [np.asarray(x(tf.constant(t, tf.int64))) for x in schedules for t in _STEPS]


def _describe_schedules(value: Any, name: str, key: str) -> dict[str, Any]:
    values = schedule_values(name, value)
    if not values:
        return {}
    steps = ", ".join(map(str, _STEPS))
    return {f"{key} at steps {steps}": tolerant_equality.record(values, rtol=1e-5, singly=True)}


def _describe_target(target: Target, key: str) -> dict[str, Any]:
    described = {key: type(target).__name__}
    for name, value in _public(target).items():
        if isinstance(value, Replicas):  # a run goes on with any number of them
            value = None
        if not isinstance(value, Target):
            described[f"{key}.{name}"] = _describe(value)
    base = getattr(target, "target", None)
    if isinstance(base, Target):
        described |= _describe_target(base, f"{key}.target")
    is_in_memory = isinstance(target, MinibatchLogProb) and not isinstance(target, ShardedLogProb)
    if is_in_memory and not _comes_in_any_order(target):
        described[f"{key}.data"] = checksum(target._data)
    return described


def _comes_in_any_order(target: Any) -> bool:
    """Returns whether the rows of a run may come in another order when it goes on.

    Those of a pool come from a file of the run.
    """
    is_recorded = getattr(target, "_data_are_recorded", False)
    return is_recorded and not isinstance(target, PooledLogProb)


def _public(value: Any) -> dict[str, Any]:
    return {name: x for name, x in vars(value).items() if not name.startswith("_")}


def _describe(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_describe(x) for x in value]
    if isinstance(value, dict):
        return {str(k): _describe(x) for k, x in value.items()}
    if isinstance(value, np.ndarray | np.generic) or tf.is_tensor(value):
        array = np.asarray(value)
        if array.size <= _DESCRIBED_ENTRIES:
            return array.tolist()
        return [type(value).__name__, list(array.shape), f"{zlib.crc32(array.tobytes()):08x}"]
    if isinstance(value, Preconditioner | CovarianceEstimator | Average | Schedule):
        return [type(value).__name__, _describe(_public(value))]
    if hasattr(value, "get_config"):  # a schedule of Keras
        try:
            return [type(value).__name__, json.loads(json.dumps(value.get_config()))]
        except (TypeError, ValueError, NotImplementedError):
            pass
    return type(value).__name__


def describe_run(
    kernel: tfp.mcmc.TransitionKernel, loop: Loop, start: Position
) -> dict[str, dict[str, Any]]:
    """Returns numbers that identify the start, a step, the trace, and prior and posterior near it.

    The posterior is estimated from one minibatch. For a stream only the prior is identified here,
    and the posterior by `describe_batches`.
    """
    found = {"initial_state": tolerant_equality.record(tf.nest.flatten(start.state))}
    found |= describe_target(kernel, start.state)
    at = shifted(start.state), shifted(start.results)
    trace = tf.nest.flatten(loop.trace_of(*at))
    if isinstance(kernel, StochasticGradientKernel) and not _takes_other_rows(kernel):
        moved = kernel.one_step(at[0], start.results, seed=tf.constant(_SEED))
        trace += tf.nest.flatten(loop.trace_of(*moved))  # of step 1
        old, new = (
            np.concatenate([np.ravel(x) for x in tf.nest.flatten(s)]) for s in (at[0], moved[0])
        )
        found["step"] = tolerant_equality.record(
            new - old, rtol=1e-2, atol=1e-5 * np.abs(old).max()
        )
    return found | ({"trace_fn": tolerant_equality.record(trace)} if trace else {})


def _takes_other_rows(kernel: StochasticGradientKernel) -> bool:
    """Returns whether a step of a run that goes on may take other rows for the same seed."""
    target = innermost(log_prob_fn_of(kernel))
    return isinstance(target, StreamedLogProb) or _comes_in_any_order(target)


def describe_call(
    kernel: tfp.mcmc.TransitionKernel, initial_state: Any, **arguments: Any
) -> dict[str, Any]:
    """Returns the arguments that all workers must share, as JSON values by name."""
    start = tolerant_equality.record(tf.nest.flatten(state_tensors(initial_state)))
    found = {**describe_kernel(kernel), "initial_state": start, **arguments}
    return json.loads(json.dumps(found))  # which turns tuples into lists


def describe_target(kernel: tfp.mcmc.TransitionKernel, state: State) -> dict[str, dict[str, Any]]:
    """Returns numbers that identify the prior and the posterior of a kernel near a state."""
    log_prob_fn = log_prob_fn_of(kernel)
    if isinstance(kernel, IndependentMetropolis):
        log_prob_fn = FullDataLogProb(log_prob_fn)
    return {} if log_prob_fn is None else describe_log_prob(log_prob_fn, state)


def describe_log_prob(log_prob_fn: Any, state: State) -> dict[str, dict[str, Any]]:
    """Returns numbers that identify a prior and posterior near a state."""
    return _near(state, lambda state: _values_at(log_prob_fn, state))


def describe_all_data(target: MinibatchLogProb, state: State) -> dict[str, Any]:
    """Returns JSON values that identify a target by all its data, in one pass, and its start.

    A part of the data is compared as well, because a few changed examples hardly change the sum.
    """
    target = target.with_minibatches(min(_NUM_ROWS, target.num_examples))

    def values(at: State) -> dict[str, Any]:
        found = value_and_gradient(lambda s: call_with_state(target, s), at, connected=False)
        return _of_problem(*found[:2], what="log posterior of all data")

    found = {
        "num_examples": target.num_examples,
        **({} if target._data_are_recorded else {"data": checksum(target._data)}),
        "initial_state": tolerant_equality.record(tf.nest.flatten(state)),
        **describe_log_prob(target, state),
        **_near(state, values),
    }
    return json.loads(json.dumps(found))


def describe_batches(target: Any, state: State) -> Callable[[Any], dict[str, Any]] | None:
    """Returns a function of kernel results that identifies the posterior of a stream, or None.

    The posterior is estimated from the first batch in the results. A checkpoint holds the same
    batch, so the order of the dataset does not matter.
    """
    if not isinstance(target, StreamedLogProb):
        return None

    def describe(results: Any) -> dict[str, Any]:
        batches = instances(results, StreamState)[0].batches
        stream = StreamState(batches, tf.zeros([], tf.int64))

        def values(at: State) -> dict[str, Any]:
            estimate = target.estimate(at, tf.constant(_SEED), stream, with_scores=False)
            return _of_problem(estimate.log_prob, estimate.gradient, "log posterior of a read")

        return _near(state, values)

    return describe


def _near(state: State, values_at: Callable[[State], dict[str, Any]]) -> dict[str, Any]:
    """Returns values next to a state, because many priors and likelihoods agree at zero.

    Where they are NaN or infinite, or a distribution refuses the state, the state itself is used.
    """
    found: dict[str, Any] = {}
    for at in (shifted(state), state):
        try:
            found = values_at(at)
        except tf.errors.InvalidArgumentError:
            continue
        if all(x["about"] is not None for x in found.values()):
            break
    return found


def _values_at(log_prob_fn: Any, state: State) -> dict[str, Any]:
    takes_all = isinstance(log_prob_fn, FullDataLogProb)
    log_prob_fn = innermost(log_prob_fn)
    if isinstance(log_prob_fn, StreamedLogProb):  # the feed supplies its batches
        base = log_prob_fn.of_one_batch
        prior = value_and_gradient(base.log_prior, state, connected=False)
        return _of_problem(*prior[:2], what="log prior")
    if _comes_in_any_order(log_prob_fn):  # a minibatch has other rows then
        prior = value_and_gradient(log_prob_fn.log_prior, state, connected=False)
        return _of_problem(*prior[:2], what="log prior")
    if not isinstance(log_prob_fn, Target):
        if not all(x.dtype.is_floating for x in tf.nest.flatten(state)):
            return _of_problem(call_with_state(log_prob_fn, state), ())
        of_state = value_and_gradient(
            lambda s: call_with_state(log_prob_fn, s), state, connected=False
        )
        return _of_problem(*of_state[:2])
    try:
        estimate = _estimate(log_prob_fn, state)
    except ValueError:
        # If no step takes a minibatch for each chain, the likelihood need not take them either.
        if not takes_all:
            raise
        while log_prob_fn.log_prior(state).shape.rank:
            state = tf.nest.map_structure(lambda x: x[0], state)
        estimate = _estimate(log_prob_fn, state)
    found = _of_problem(estimate.log_prob, estimate.gradient)
    if isinstance(log_prob_fn, MinibatchLogProb):
        prior = value_and_gradient(log_prob_fn.log_prior, state, connected=False)
        found |= _of_problem(*prior[:2], what="log prior")
    return found


def _estimate(target: Target, state: State) -> GradientEstimate:
    """Returns an estimate from one minibatch for each chain."""
    return target.estimate(state, tf.constant(_SEED), target.bootstrap(state), with_scores=False)


def _of_problem(log_prob: Any, gradient: Any, what: str = "log posterior") -> dict[str, Any]:
    """Returns `describe_problem` with a tolerance for processors that differ.

    GPUs round the factors of products of matrices.
    """
    is_rough = xla.on_accelerator() or np.asarray(log_prob).dtype.itemsize < 4
    return describe_problem(log_prob, gradient, what, rtol=1e-3 if is_rough else 1e-4)
