"""What the driver reads off a kernel: its target, its chains, and what makes it this kernel."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.sampling.loop import Position
from tfp_sgmcmc.targets import FullDataLogProb, Target

_DESCRIBED_ENTRIES = 100


def target_of(kernel: tfp.mcmc.TransitionKernel) -> Target | None:
    """The target that estimates gradients for a kernel, or for the one it wraps."""
    for value in getattr(kernel, "parameters", {}).values():
        if isinstance(value, Target):
            return None if isinstance(value, FullDataLogProb) else value
        if isinstance(value, tfp.mcmc.TransitionKernel):
            return target_of(value)
    return None


def chain_shape_of(kernel: tfp.mcmc.TransitionKernel, start: Position) -> tuple[int, ...]:
    """Shape of the leading axes of the state that count chains."""
    target = target_of(kernel)
    if target is not None:
        return tuple(tf.TensorShape(target.chain_shape(start.state)))
    log_prob = log_prob_of(start.results)
    return () if log_prob is None else tuple(log_prob.shape)


def log_prob_of(results: Any) -> Any:
    """The log posterior in a kernel's results, or in those of the kernel it wraps, or None."""
    if hasattr(results, "target_log_prob"):
        return results.target_log_prob
    for name in ("accepted_results", "inner_results"):
        if hasattr(results, name):
            return log_prob_of(getattr(results, name))
    return None


def describe_kernel(kernel: tfp.mcmc.TransitionKernel, prefix: str = "kernel") -> dict[str, Any]:
    """Class, numbers and options of a kernel and what it holds, as JSON values by name.

    Functions and large arrays are described by their type alone.
    """
    described: dict[str, Any] = {prefix: type(kernel).__name__}
    for name, value in getattr(kernel, "parameters", {}).items():
        key = f"{prefix}.{name}"
        if isinstance(value, tfp.mcmc.TransitionKernel):
            described |= describe_kernel(value, key)
        elif isinstance(value, Target):
            described[key] = type(value).__name__
            base = getattr(value, "target", value)
            for number in ("num_examples", "batch_size", "replacement", "reshuffle"):
                described[f"{key}.{number}"] = getattr(base, number, None)
        else:
            described[key] = _describe(value)
    return described


def _describe(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_describe(x) for x in value]
    if isinstance(value, dict):
        return {str(k): _describe(x) for k, x in value.items()}
    if isinstance(value, np.ndarray | np.generic) or tf.is_tensor(value):
        array = np.asarray(value)
        return array.tolist() if array.size <= _DESCRIBED_ENTRIES else type(value).__name__
    if hasattr(value, "get_config"):  # a schedule of Keras or ours
        try:
            return [type(value).__name__, json.loads(json.dumps(value.get_config()))]
        except (TypeError, ValueError, NotImplementedError):
            pass
    return type(value).__name__
