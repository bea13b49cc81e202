"""Tells whether functions still return what compiled programs were made of.

A program keeps the numbers that its functions read while they were traced. A variable of a notebook
that a function reads may have another value since.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tfp_sgmcmc.internal.nest import State, call_with_state
from tfp_sgmcmc.storage import tolerant_equality
from tfp_sgmcmc.targets.base import FullDataLogProb, Target, innermost, kept_program
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.validation.gradient_check import log_probs_of_rows

_NUM_ROWS = 3
_RTOL = 1e-5


def have_changed(known: dict[str, Any], log_prob_fn: Any, state: State) -> bool:
    """Returns whether a log posterior has other values than those in `known`, which it replaces.

    They are evaluated eagerly near the first `state` that was given. At a start of zeros itself,
    many functions agree. Where they are not finite near it, they are evaluated at the state.
    """
    at = known.setdefault("state", state)
    now = _values(log_prob_fn, shifted(at))
    if not all(np.isfinite(x).all() for x in now):
        now = _values(log_prob_fn, at)
    before, known["values"] = known.get("values", now), now
    return len(before) != len(now) or not all(
        x.shape == y.shape and np.allclose(x, y, rtol=_RTOL, atol=0.0, equal_nan=True)
        for x, y in zip(before, now, strict=True)
    )


def forget_if_changed(target: Target, state: State) -> None:
    """Drops the programs of a target whose functions return other values than they did."""
    name = "values of its functions"
    known = kept_program(target, name, (), dict[str, Any])
    if have_changed(known, target, state):
        base: Any = target
        while isinstance(base, Target):
            base._programs.clear()
            base = getattr(base, "target", None)
        kept_program(target, name, (), lambda: known)


def shifted(nest: Any) -> Any:
    """Returns a nest of tensors with its floating ones moved, by `tolerant_equality.shifted`."""

    def shift(x: Any) -> Any:
        if x is None or not x.dtype.is_floating:
            return x
        wide = tolerant_equality.shifted(tf.cast(x, tf.float64).numpy())
        return tf.cast(tf.constant(wide), x.dtype)

    return tree.map_structure(shift, nest)


def _values(log_prob_fn: Any, state: State) -> list[np.ndarray]:
    """Returns log prior and log likelihoods of a few rows, or the log posterior, if known."""
    log_prob_fn = innermost(log_prob_fn)
    found: Any = ()
    try:
        if isinstance(log_prob_fn, MinibatchLogProb):
            part = log_prob_fn.parts[0]
            found = log_probs_of_rows(part, min(_NUM_ROWS, part.num_examples))(state)
        elif isinstance(log_prob_fn, FullDataLogProb) or not isinstance(log_prob_fn, Target):
            found = call_with_state(log_prob_fn, state)
    except Exception:  # a likelihood need not take the same rows for all chains
        return []
    return [tf.cast(x, tf.float64).numpy() for x in tf.nest.flatten(found)]
