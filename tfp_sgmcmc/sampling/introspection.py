"""What the driver reads from a kernel: its target and its chains."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.replicas import Replicas
from tfp_sgmcmc.kernels.base import StochasticGradientKernel
from tfp_sgmcmc.sampling.loop import Position, log_prob_of
from tfp_sgmcmc.targets import FullDataLogProb, ShardedLogProb, Target
from tfp_sgmcmc.targets.base import as_target


def target_of(kernel: tfp.mcmc.TransitionKernel) -> Target | None:
    """Returns the target that estimates gradients for a kernel or the kernel that it wraps."""
    found = _target_of(kernel)
    return None if isinstance(found, FullDataLogProb) else found


def replicas_of(target: Target | None) -> Replicas | None:
    """Returns the replicas that hold the data of a target, or of the one that it wraps."""
    while target is not None and not isinstance(target, ShardedLogProb):
        target = getattr(target, "target", None)
    return None if target is None else target.replicas


def log_prob_fn_of(kernel: tfp.mcmc.TransitionKernel) -> Any:
    """Returns the target or function that a kernel, or the one it wraps, samples; or None."""
    found = _target_of(kernel)
    while found is None and isinstance(kernel, tfp.mcmc.TransitionKernel):
        parameters = getattr(kernel, "parameters", {})
        found, kernel = parameters.get("target_log_prob_fn"), parameters.get("inner_kernel")
    return found


def chain_shape_of(kernel: tfp.mcmc.TransitionKernel, start: Position) -> tuple[int, ...]:
    """Returns the shape of the leading axes of the state that count chains."""
    target = _target_of(kernel)
    if target is not None:
        return tuple(tf.TensorShape(target.chain_shape(start.state)))
    log_prob = log_prob_of(start.results)
    return () if log_prob is None else tuple(log_prob.shape)


def _target_of(kernel: tfp.mcmc.TransitionKernel) -> Target | None:
    """Returns the target as `target_of`, also if it is a plain callable of our kernels."""
    for name, value in getattr(kernel, "parameters", {}).items():
        if isinstance(kernel, StochasticGradientKernel) and name == "target_log_prob_fn":
            return as_target(value, full_data_expected=True)
        if isinstance(value, Target):
            return value
        if isinstance(value, tfp.mcmc.TransitionKernel):
            return _target_of(value)
    return None
