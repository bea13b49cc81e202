"""The target and start of an automatic run.

A plain log posterior becomes one example, and a stream a pool of rows, which its directory keeps.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.adaptation import settings_file
from tfp_sgmcmc.adaptation.settings import SampleCall
from tfp_sgmcmc.internal import xla
from tfp_sgmcmc.internal.checks import a_type
from tfp_sgmcmc.internal.nest import State, call_with_state
from tfp_sgmcmc.sampling.progress import progress
from tfp_sgmcmc.sampling.result import Flag
from tfp_sgmcmc.targets import (
    FullDataLogProb,
    MinibatchLogProb,
    PoolReport,
    StreamedLogProb,
    Target,
    draw_pool,
)
from tfp_sgmcmc.targets.base import kept_program, value_and_gradient
from tfp_sgmcmc.targets.bijectors import start_of
from tfp_sgmcmc.targets.laplace.laplace import check_single_state
from tfp_sgmcmc.targets.one_example import KeptTargets, Pinned, one_example
from tfp_sgmcmc.targets.sharded import refuse_shards
from tfp_sgmcmc.targets.streaming import data_record, pooled
from tfp_sgmcmc.targets.validation.gradient_check import check_two_chains, log_probs_of_rows

_RADII, _NUM_STARTS = (2.0, 20.0), 50  # of uniform starts


def check_target(target: Any, bijector: Any = None) -> None:
    """Raises TypeError or ValueError for what `sample` cannot choose settings for."""
    if not callable(target) and not isinstance(target, Pinned):
        raise TypeError(
            "target must be a MinibatchLogProb, a StreamedLogProb, a FullDataLogProb, a callable "
            "that returns the log posterior, or a joint distribution with pinned data, as "
            f"joint.experimental_pin(y=y). Received: {a_type(target)}."
        )
    known = MinibatchLogProb | StreamedLogProb | FullDataLogProb
    if isinstance(target, Target) and not isinstance(target, known):
        raise ValueError(
            "target must be a MinibatchLogProb, a StreamedLogProb, a FullDataLogProb or a plain "
            "callable, because sample makes control variates itself. Received: "
            f"{a_type(target)}. sample_chain takes a kernel with any target."
        )
    has_one = isinstance(target, MinibatchLogProb | StreamedLogProb | Pinned)
    if bijector is not None and has_one:
        raise ValueError(
            f"bijector must be None, because {a_type(target)} has one. Received: "
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
    kept = KeptTargets.of(target).find(target, bijector)
    return one_example(target, bijector) if kept is None else kept


def pool_of(
    call: SampleCall, initial_state: Any, folder: Path | None
) -> tuple[MinibatchLogProb, PoolReport]:
    """Returns a target in memory and how it was made: the one in the run's `folder`, or a new one.

    The folder keeps the pool, so that a run resumes bit for bit.

    Raises:
      ValueError: the run in the folder was begun with other data.
    """
    target, jit_compile = call.target, call.jit_compile is not False
    with contextlib.ExitStack() as stack:
        bars: dict[str, Any] = {}

        def show(what: str, num_rows: int) -> None:
            if what not in bars:
                stack.close()
                bars[what] = stack.enter_context(
                    progress(call.progress_bar, target.num_examples, unit="row")
                )
            bars[what](num_rows, None)

        is_known = folder is not None and _is_known(folder, target, show)
        if is_known and (folder / pooled.FILE).exists():
            return pooled.load(folder / pooled.FILE, target, initial_state)
        pool, report = draw_pool(target, initial_state, jit_compile=jit_compile, show=show)
    pool._data_are_recorded = True
    if folder is not None:
        if not is_known:
            data_record.save(folder / data_record.FILE, target)
        pooled.save(folder / pooled.FILE, pool, report)
    return pool, report


def _is_known(folder: Path, target: StreamedLogProb, show: Any) -> bool:
    """Returns whether a folder has a run of a stream; raises if it is one of other data."""
    if not (folder / data_record.FILE).exists():
        has_pool = (folder / pooled.FILE).exists()
        if has_pool:
            warnings.warn(
                f"The run in {folder} has no {data_record.FILE}, which records its data: it was "
                "deleted, or an older version of the library wrote none. Whether the data are the "
                "same now cannot be checked.",
                stacklevel=7,
            )
        return has_pool
    if target._is_compared:
        return True
    found = data_record.difference(folder / data_record.FILE, target, show)
    if found and (folder / settings_file.FILE).exists():
        raise ValueError(
            f"The run in {folder} must go on with the data with which it was begun. {found} "
            "Restore them, or use a new directory."
        )
    return not found  # before there are choices, a pool is drawn again


def single_state(target: MinibatchLogProb, initial_state: Any) -> State:
    """Returns the start as tensors; without one, that of the target's prior.

    Raises ValueError if it has chain dimensions, and if the model does not give each of two chains
    its log posterior.
    """
    state = start_of(target, initial_state)
    if (dtype := tf.nest.flatten(state)[0].dtype) not in (tf.float32, tf.float64):
        raise TypeError(
            f"initial_state must have the dtype float32 or float64. Received: {dtype.name}. "
            "sample_chain runs a kernel in any floating dtype."
        )
    check_single_state("initial_state", target, state)
    kept_program(target, "two chains", state, lambda: check_two_chains(target, state))  # once
    return state


def choose_jit_compile(
    target: MinibatchLogProb, state: State, given: bool | None
) -> tuple[bool, tuple[str, ...]]:
    """Returns whether XLA compiles the steps, with an explanation if it could and does not.

    Args:
      target: the target in memory.
      state: a state.
      given: what the user asks for, or what the run that goes on began with; or None.
    """
    if given is not None:
        return given, ()
    name = f"factorisation that XLA makes slower on a {xla.device_kind()}"
    slow = kept_program(
        target,
        name,
        state,
        lambda: xla.slow_factorization(log_probs_of_rows(target, 1), state),
    )
    if slow is None:
        return True, ()
    line = (
        f"XLA does not compile the steps, because its {slow[0]} of {slow[1]} rows takes longer "
        "than LAPACK's on a CPU."
    )
    return False, (line,)


def finite_start(
    target: MinibatchLogProb, state: State, called: str = "initial_state"
) -> tuple[State, tuple[Flag, ...]]:
    """Returns a start where the log posterior and its gradient are finite, with a note if it moved.

    The start is moved towards the origin, and then, as Stan does, drawn uniformly from (-2, 2), and
    at last from (-20, 20). If nothing helps, it is returned as it is. The note calls it `called`.
    """
    rng = np.random.default_rng(0)

    def uniform(radius: float) -> State:
        def draw(x: tf.Tensor) -> tf.Tensor:
            return tf.constant(rng.uniform(-radius, radius, x.shape), x.dtype)

        return tf.nest.map_structure(draw, state)

    def moved() -> Iterator[tuple[State, str]]:
        for share in (0.5, 0.25, 0.0):
            scaled = tf.nest.map_structure(lambda x, share=share: share * x, state)
            yield scaled, f"{share:g} times {called}"
        for radius in _RADII:
            for _ in range(_NUM_STARTS):
                yield uniform(radius), f"a state drawn from ({-radius:g}, {radius:g})"

    if _is_finite(target, state, raises=True):
        return state, ()
    good = ((start, name) for start, name in moved() if _is_finite(target, start, raises=False))
    start, name = next(good, (state, None))
    if name is None:
        return state, ()
    dtype = tf.nest.flatten(state)[0].dtype.name
    cause = (
        f"The log posterior is NaN or infinite at {called} in {dtype}, so the run began at {name}."
    )
    remedy = "Give initial_state where the density is finite, or check the model for overflow."
    return start, (Flag("note", cause, remedy),)


def _is_finite(target: MinibatchLogProb, state: State, raises: bool) -> bool:
    """Returns whether log posterior and gradient are finite; without `raises`, False on an error"""
    try:
        value, gradient, _ = value_and_gradient(lambda s: call_with_state(target, s), state)
    except tf.errors.OpError:
        if raises:
            raise
        return False
    return all(np.isfinite(x).all() for x in (value, *tf.nest.flatten(gradient)))
