"""The target and start of an automatic run; a plain log posterior becomes one example."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State, call_with_state, convert_state, state_from_call
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb, Target
from tfp_sgmcmc.targets.laplace.mode import check_single_state
from tfp_sgmcmc.targets.sharded import refuse_shards


def check_target(target: Any) -> None:
    """Raises TypeError or ValueError for what `sample` cannot choose settings for."""
    if not callable(target):
        raise TypeError(
            "target must be a MinibatchLogProb, a FullDataLogProb or a callable that returns the "
            f"log posterior. Received: a {type(target).__name__}."
        )
    if isinstance(target, Target) and not isinstance(target, MinibatchLogProb | FullDataLogProb):
        raise ValueError(
            "target must be a MinibatchLogProb, a FullDataLogProb or a plain callable, because "
            f"sample makes control variates itself. Received: a {type(target).__name__}. "
            "sample_chain takes a kernel with any target."
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
    """Returns the start as tensors; raises ValueError if it has chain dimensions."""
    state = convert_state(initial_state, initial=True, called="initial_state")
    check_single_state("initial_state", target, state)
    return state
