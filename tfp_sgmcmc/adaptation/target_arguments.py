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

_NUM_ROWS = 3  # examples of a check; another number than that of chains


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
    """Returns the start as tensors; raises ValueError if it has chain dimensions.

    Raises as well if the model does not give each of two chains its log posterior.
    """
    state = convert_state(initial_state, initial=True, called="initial_state")
    check_single_state("initial_state", target, state)
    _check_two_chains(target, state)
    return state


def _check_two_chains(target: MinibatchLogProb, state: State) -> None:
    """Raises if the model fails for two chains, or gives them other values than one chain."""
    size = min(_NUM_ROWS, target.num_examples)
    rows = target.rows(tf.range(size))

    def values(state: State) -> tuple[tf.Tensor, tf.Tensor]:
        log_prior = target.log_prior(state)
        return log_prior, target.log_likelihood(state, rows, size, log_prior.shape)

    one, two = values(state), tf.nest.map_structure(lambda x: tf.stack([x, x]), state)
    try:
        found = values(two)
    except Exception as error:
        error.add_note(
            "sample runs several chains, so log_prior_fn and log_likelihood_fn were called with "
            f"states of two chains, and with {size} examples. Parameters then have a leading axis "
            "of two chains. Give them a last axis for the examples, as in sigma[..., tf.newaxis]."
        )
        raise
    for name, expected, received in zip(
        ("log_prior_fn", "log_likelihood_fn"), one, found, strict=True
    ):
        if not np.allclose(received, [expected, expected], rtol=1e-3, atol=1e-3, equal_nan=True):
            raise ValueError(
                f"{name} must return for each of two equal chains what it returns for one, "
                f"{expected.numpy()}. Received: {received.numpy()}. Give parameters a last axis "
                "for the examples, as in sigma[..., tf.newaxis]."
            )
