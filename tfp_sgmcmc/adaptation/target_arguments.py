"""The target and start of an automatic run; a plain log posterior becomes one example."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.nest import State, call_with_state, convert_state, state_from_call
from tfp_sgmcmc.sampling.result import Flag
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb, StreamedLogProb, Target
from tfp_sgmcmc.targets.base import value_and_gradient
from tfp_sgmcmc.targets.joint_prior import default_bijector, median_start
from tfp_sgmcmc.targets.laplace.mode import check_single_state
from tfp_sgmcmc.targets.sharded import refuse_shards
from tfp_sgmcmc.targets.validation.chains_check import check_two_chains

Pinned = tfp.experimental.distributions.JointDistributionPinned


def check_target(target: Any, bijector: Any = None) -> None:
    """Raises TypeError or ValueError for what `sample` cannot choose settings for."""
    if not callable(target) and not isinstance(target, Pinned):
        raise TypeError(
            "target must be a MinibatchLogProb, a StreamedLogProb, a FullDataLogProb, a callable "
            "that returns the log posterior, or a joint distribution with pinned data, as "
            f"joint.experimental_pin(y=y). Received: a {type(target).__name__}."
        )
    known = MinibatchLogProb | StreamedLogProb | FullDataLogProb
    if isinstance(target, Target) and not isinstance(target, known):
        raise ValueError(
            "target must be a MinibatchLogProb, a StreamedLogProb, a FullDataLogProb or a plain "
            "callable, because sample makes control variates itself. Received: a "
            f"{type(target).__name__}. sample_chain takes a kernel with any target."
        )
    has_one = isinstance(target, MinibatchLogProb | StreamedLogProb | Pinned)
    if bijector is not None and has_one:
        raise ValueError(
            f"bijector must be None, because a {type(target).__name__} has one. Received: "
            f"{bijector}. A MinibatchLogProb or StreamedLogProb takes it as an argument."
        )
    refuse_shards("sample", target)


def as_problem(target: Any, bijector: Any = None) -> MinibatchLogProb:
    """Returns a target with examples; a plain log posterior becomes the only example of one.

    The `bijector` belongs to a plain log posterior. A pinned joint distribution has one, and a
    start: the medians of its prior.
    """
    if isinstance(target, MinibatchLogProb):
        return target.with_minibatches(min(100, target.num_examples))
    if isinstance(target, Pinned):
        problem = as_problem(target.unnormalized_log_prob, default_bijector(target))
        problem.initial_state = median_start(target.sample_unpinned, problem.unconstrain)
        return problem

    def prior(*args: Any, **kwargs: Any) -> tf.Tensor:
        return tf.zeros_like(call_with_state(target, state_from_call(args, kwargs)))

    def likelihood(*args: Any, **kwargs: Any) -> tf.Tensor:
        batch = kwargs.pop("batch", None)
        args = args[:-1] if batch is None else args
        return call_with_state(target, state_from_call(args, kwargs))[..., tf.newaxis]

    with contextlib.suppress(TypeError, ValueError):  # some callables have no signature
        prior.__signature__ = inspect.signature(target)  # ty: ignore[missing-attribute]
    return MinibatchLogProb(prior, likelihood, np.zeros([1], np.float32), 1, bijector=bijector)


def single_state(target: MinibatchLogProb, initial_state: Any) -> State:
    """Returns the start as tensors; without one, that of the target's prior.

    Raises ValueError if it has chain dimensions, and if the model does not give each of two chains
    its log posterior.
    """
    if initial_state is None:
        initial_state = target.initial_state
    if initial_state is None:
        raise ValueError(
            "initial_state must be given, unless the target is made by MinibatchLogProb.from_joint "
            "from a prior that knows where to start, or is a pinned joint distribution. Received: "
            "None."
        )
    state = convert_state(initial_state, initial=True, called="initial_state")
    check_single_state("initial_state", target, state)
    check_two_chains(target, state)
    return state


def finite_start(target: MinibatchLogProb, state: State) -> tuple[State, tuple[Flag, ...]]:
    """Returns a start where the log posterior and its gradient are finite, with a note if it moved.

    The start is moved towards the origin. If that does not help, it is returned as it is.
    """
    for share in (1.0, 0.5, 0.25, 0.0):
        moved = tf.nest.map_structure(lambda x, share=share: share * x, state)
        value, gradient, _ = value_and_gradient(lambda s: call_with_state(target, s), moved)
        if all(np.isfinite(x).all() for x in (value, *tf.nest.flatten(gradient))):
            break
    else:
        return state, ()
    if share == 1.0:
        return state, ()
    cause = (
        f"The log posterior is NaN or infinite at initial_state in {value.dtype.name}, so the run "
        f"began at {share:g} times initial_state."
    )
    return moved, (Flag("note", cause, "Start from zeros, or check the model for overflow."),)
