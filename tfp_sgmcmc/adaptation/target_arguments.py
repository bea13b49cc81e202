"""The target and start of an automatic run; a plain log posterior becomes one example."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, call_with_state, convert_state, state_from_call
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb, StreamedLogProb, Target
from tfp_sgmcmc.targets.laplace.mode import check_single_state
from tfp_sgmcmc.targets.sharded import refuse_shards
from tfp_sgmcmc.targets.validation.chains_check import check_two_chains


def check_target(target: Any) -> None:
    """Raises TypeError or ValueError for what `sample` cannot choose settings for."""
    if not callable(target):
        raise TypeError(
            "target must be a MinibatchLogProb, a StreamedLogProb, a FullDataLogProb or a callable "
            f"that returns the log posterior. Received: a {type(target).__name__}."
        )
    known = MinibatchLogProb | StreamedLogProb | FullDataLogProb
    if isinstance(target, Target) and not isinstance(target, known):
        raise ValueError(
            "target must be a MinibatchLogProb, a StreamedLogProb, a FullDataLogProb or a plain "
            "callable, because sample makes control variates itself. Received: a "
            f"{type(target).__name__}. sample_chain takes a kernel with any target."
        )
    refuse_shards("sample", target)


def as_problem(target: Any) -> MinibatchLogProb:
    """Returns a target with examples; a plain log posterior becomes the only example of one."""
    if isinstance(target, MinibatchLogProb):
        return target.with_minibatches(min(100, target.num_examples))

    def prior(*args: Any, **kwargs: Any) -> tf.Tensor:
        return tf.zeros_like(call_with_state(target, state_from_call(args, kwargs)))

    def likelihood(*args: Any, **kwargs: Any) -> tf.Tensor:
        batch = kwargs.pop("batch", None)
        args = args[:-1] if batch is None else args
        return call_with_state(target, state_from_call(args, kwargs))[..., tf.newaxis]

    with contextlib.suppress(TypeError, ValueError):  # some callables have no signature
        prior.__signature__ = inspect.signature(target)  # ty: ignore[missing-attribute]
    return MinibatchLogProb(prior, likelihood, np.zeros([1], np.float32), 1)


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
            "from a prior that knows where to start. Received: None."
        )
    state = convert_state(initial_state, initial=True, called="initial_state")
    check_single_state("initial_state", target, state)
    check_two_chains(target, state)
    return state
