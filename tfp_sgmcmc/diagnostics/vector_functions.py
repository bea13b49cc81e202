"""Log posteriors and their gradients at many flat states, and faults of a density near them.

One compiled program serves all states of a target. The faults are values that rounding decides,
and sudden falls to zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.nest import (
    State,
    call_with_state,
    flatten_events,
    num_entries,
    unflatten_events,
)
from tfp_sgmcmc.internal.xla import by_blocks, nest_by_blocks, traced
from tfp_sgmcmc.targets.base import Target, kept_program
from tfp_sgmcmc.targets.data import evenly_spread
from tfp_sgmcmc.targets.laplace.laplace import parameters_bijector

LogProbs = Callable[[np.ndarray], np.ndarray]  # flat states, `[S, D]` -> `[S]`
ValuesAndGradients = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # -> `[S]`, `[S, D]`

_MOST_TERMS = 5_000_000  # N times the states that are evaluated at once
_FEW = 64  # states of a small block; more blocks take less time than another trace
_FEWER, _MOST_PADDED = 20, 500_000  # states of a block where 64 of them are more terms
_WORTH_COMPILING = 500_000  # N D; XLA takes longer to compile a smaller program than to run it
_ROWS = 1000  # states whose parameters are computed at once
_AS_MANY = 10  # entries of a state that functions of a row take as long as

_NUM_ROUNDED, _NUM_LINES = 500, 50  # draws that are looked at
_MOVE = 1e-4  # of all entries at once, in standard deviations, and at least to the next number
_MOST_CHANGE = 0.5  # of a log density over such a move; a smooth one changes by about 1e-4
_ENTRIES = 10  # that are moved in one call
_LEAST_SHARE = 0.02  # of draws from which a move of one deviation ends where the density is zero
_HALVINGS = 60
_MOST_FALL = 100.0  # of the log density on the way; a larger one is an overflow


def log_prob_of_vectors(target: Target, like: State, jit_compile: bool = True) -> LogProbs:
    """Returns the function of flat unconstrained states, `[S, D]`, that gives log posteriors.

    It evaluates blocks of one size, so it is traced once. XLA compiles it for a large target, if
    it may.
    """
    jit_compile = jit_compile and _is_large(target, like)

    def of_states(theta: tf.Tensor) -> tf.Tensor:
        return target.log_prob_of_many(unflatten_events(theta, like, 0))

    name = f"log posterior of many, jit_compile={jit_compile}"
    evaluate = kept_program(target, name, like, lambda: traced(of_states, jit_compile))
    size, dtype = block_size(target), tf.nest.flatten(like)[0].dtype
    return lambda x: by_blocks(lambda block: [evaluate(block)], x, size, dtype)[0]


def value_and_gradient_of_vectors(
    target: Target, like: State, jit_compile: bool = True, in_blocks: bool = True
) -> ValuesAndGradients:
    """Returns the function of flat unconstrained states, `[S, D]`, that gives `[S]` and `[S, D]`.

    These are log posteriors and their gradients. `in_blocks` evaluates blocks of one size;
    otherwise those of a small target are smaller, and a large target has a trace for each S. XLA
    compiles it for a large target, if it may.
    """
    is_large = _is_large(target, like)
    jit_compile = jit_compile and is_large

    def of_states(theta: tf.Tensor) -> Any:
        return tfp.math.value_and_gradient(
            lambda theta: call_with_state(target, unflatten_events(theta, like, 0)), theta
        )

    name = f"value and gradient of many, jit_compile={jit_compile}"
    evaluate = kept_program(target, name, like, lambda: traced(of_states, jit_compile))
    dtype = tf.nest.flatten(like)[0].dtype
    size = block_size(target) if in_blocks else num_padded(target, like)

    def value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if in_blocks or not is_large:
            value, gradient = by_blocks(evaluate, x, size, dtype)
        else:
            value, gradient = (y.numpy() for y in evaluate(tf.constant(x, dtype)))
        return value.astype(np.float64), gradient.astype(np.float64)

    return value_and_gradient


def value_and_gradient_of_z(
    target: Target, center: State, factor: np.ndarray, jit_compile: bool
) -> ValuesAndGradients:
    """Returns the function of z, `[K, D]`, that gives log posteriors and gradients.

    The state is center + L z with the `factor` L, `[D, D]`, or its diagonal. The compiled function
    is that of the state, so it serves every center.
    """
    flat, is_dense = flatten_events(center, 0).numpy().astype(np.float64), factor.ndim == 2
    evaluate = value_and_gradient_of_vectors(target, center, jit_compile, in_blocks=False)

    def of_z(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = evaluate(flat + (z @ factor.T if is_dense else z * factor))
        with np.errstate(all="ignore"):  # climbs turn back where derivatives are not finite
            return value, gradient @ factor if is_dense else gradient * factor

    return of_z


def parameters_of_states(target: Any, like: State) -> Callable[[State], Any]:
    """Returns the map from unconstrained states, with any leading axes, to the model's parameters.

    Its program is kept with the target: a bijector outside a graph takes 5 to 10 ms a call.
    """
    bijector = parameters_bijector(target.bijector, like)

    def of_rows(rows: tf.Tensor) -> Any:
        return bijector.forward(unflatten_events(rows, like, 0))

    program = kept_program(target, "parameters", like, lambda: traced(of_rows))
    first = tf.nest.flatten(like)[0]
    kept = program(tf.zeros([_ROWS, num_entries(like)], first.dtype))

    def parameters(states: State) -> Any:
        flat = flatten_events(states, tf.nest.flatten(states)[0].shape.rank - first.shape.rank)
        found = nest_by_blocks(program, flat.numpy(), _ROWS, kept)
        return tf.nest.map_structure(tf.constant, found)

    return parameters


def _is_large(target: Target, like: State) -> bool:
    return target.num_examples * max(num_entries(like), _AS_MANY) > _WORTH_COMPILING


def num_padded(target: Target, like: State) -> int:
    """Returns the number of states that few states of a small target are padded to.

    It is 1 for a large target, whose states are evaluated as they are.
    """
    if _is_large(target, like):
        return 1
    return _FEW if _FEW * target.num_examples <= _MOST_PADDED else _FEWER


def block_size(target: Target) -> int:
    """Returns how many states are evaluated at once: 1,000 of small targets, else 100."""
    return 1000 if 1000 * target.num_examples <= _MOST_TERMS else 100


def rounded_share(log_prob_fn: LogProbs, draws: np.ndarray, rng: np.random.Generator) -> float:
    """Returns the share of draws at which hardly any move changes a log density by much.

    A value that is not finite, such as NaN where a factorisation fails, counts as such a change.
    Draws that are not finite themselves, as they lie at a bound of a parameter, are left out.

    Args:
      log_prob_fn: log densities of flat states, `[K, D]`.
      draws: flat states, `[draws, D]`.
      rng: random numbers.
    """
    draws = draws[np.isfinite(draws).all(axis=1)]
    if not len(draws):
        return 1.0
    rows = draws[evenly_spread(len(draws), _NUM_ROUNDED)]
    normals = rng.standard_normal(rows.shape)
    with np.errstate(all="ignore"):
        moved = (rows + _MOVE * draws.std(axis=0) * normals).astype(rows.dtype)
        next_number = np.nextafter(rows, np.copysign(np.inf, normals).astype(rows.dtype))
        change = log_prob_fn(np.where(moved == rows, next_number, moved)) - log_prob_fn(rows)
        change = np.abs(change)
    return float(np.mean(~(change <= _MOST_CHANGE)))


def zero_density_beyond(
    log_prob_fn: LogProbs, draws: np.ndarray
) -> tuple[int, np.ndarray, float] | None:
    """Returns the entry along which a density falls to zero at once, where, and to which side.

    Args:
      log_prob_fn: log densities of flat states, `[K, D]`.
      draws: flat states, `[draws, D]`.

    Returns:
      The entry, the last state of positive density on a line along it, and 1.0 or -1.0; or None.
    """
    rows = draws[evenly_spread(len(draws), _NUM_LINES)]
    inside = log_prob_fn(rows)
    rows, inside = rows[np.isfinite(inside)], inside[np.isfinite(inside)]
    deviation, dim = draws.std(axis=0), draws.shape[-1]
    for first in range(0, dim, _ENTRIES):  # together, because a call evaluates many states
        entries = np.arange(first, min(first + _ENTRIES, dim))
        steps = np.zeros([len(entries), 2, 1, dim])
        for side in (0, 1):
            steps[entries - first, side, 0, entries] = (2 * side - 1) * deviation[entries]
        values = log_prob_fn((rows + steps).reshape(-1, dim))
        is_zero = np.isneginf(values).reshape(len(entries), 2, len(rows))
        for i, side in np.argwhere(is_zero.sum(axis=-1) > _LEAST_SHARE * len(rows)):
            end = _last_inside(
                log_prob_fn, rows[is_zero[i, side]], inside[is_zero[i, side]], steps[i, side]
            )
            if end is not None:
                return int(entries[i]), end, 2.0 * side - 1
    return None


def _last_inside(
    log_prob_fn: LogProbs,
    start: np.ndarray,
    value: np.ndarray,
    step: np.ndarray,
) -> np.ndarray | None:
    """Returns the last state of positive density on the way from the first start to start + step.

    The log densities at the starts, `[K, D]`, are `value`. The result is None if densities fall
    gradually on the way.
    """
    low, high = np.zeros([len(start), 1]), np.ones([len(start), 1])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_in = np.isfinite(log_prob_fn(start + middle * step))[:, np.newaxis]
        low, high = np.where(is_in, middle, low), np.where(is_in, high, middle)
    ends = start + low * step
    return ends[0] if np.median(value - log_prob_fn(ends)) < _MOST_FALL else None
