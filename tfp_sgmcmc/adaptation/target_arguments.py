"""What an automatic run samples: a target with examples, or a log posterior as one example."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.checks import require
from tfp_sgmcmc.internal.nest import State, call_with_state, convert_state, state_from_call
from tfp_sgmcmc.targets import FullDataLogProb, MinibatchLogProb, Target
from tfp_sgmcmc.targets.laplace.mode import check_single_state
from tfp_sgmcmc.targets.sharded import refuse_shards


def refuse_settings(target: Any, num_burnin_steps: Any, stride: Any, trace_fn: Any) -> None:
    """Raises ValueError for what a target excludes, because the run chooses it itself."""
    if isinstance(target, Target) and not isinstance(target, MinibatchLogProb | FullDataLogProb):
        raise ValueError(
            "sample needs a MinibatchLogProb, a FullDataLogProb or a plain callable if there is no "
            f"kernel; it makes control variates itself. Received: a {type(target).__name__}."
        )
    refuse_shards("sample without a kernel", target)
    expected = "0 with a target in place of a kernel: the run chooses it"
    for name, value in (
        ("num_burnin_steps", num_burnin_steps),
        ("num_steps_between_results", stride),
    ):
        require(name, value, isinstance(value, int) and value == 0, expected)
    expected = "None with a target in place of a kernel"
    require("trace_fn", trace_fn, trace_fn is None, expected)


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
