"""The fingerprint of a kernel and a problem, which must stay the same to resume a run."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.covariance import CovarianceEstimator
from tfp_sgmcmc.covariance.base import Average
from tfp_sgmcmc.internal.replicas import Replicas
from tfp_sgmcmc.kernels.base import StochasticGradientKernel, is_schedule
from tfp_sgmcmc.preconditioners import Preconditioner
from tfp_sgmcmc.schedules import Schedule
from tfp_sgmcmc.storage import tolerant_equality
from tfp_sgmcmc.targets import MinibatchLogProb, ShardedLogProb, Target
from tfp_sgmcmc.targets.data import checksum

_DESCRIBED_ENTRIES = 100
_STEPS = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)  # at which schedules are compared


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
            if isinstance(kernel, StochasticGradientKernel) and not name.endswith("_fn"):
                described |= _describe_schedules(value, key)
    return described


def _describe_schedules(value: Any, key: str) -> dict[str, Any]:
    schedules = [
        x
        for x in tf.nest.flatten(value)
        if is_schedule(x) and not isinstance(x, Preconditioner | CovarianceEstimator | Average)
    ]
    if not schedules:
        return {}
    values = [np.asarray(x(tf.constant(t, tf.int64))) for x in schedules for t in _STEPS]
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
    if isinstance(target, MinibatchLogProb) and not isinstance(target, ShardedLogProb):
        described[f"{key}.data"] = checksum(target._data)
    return described


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
