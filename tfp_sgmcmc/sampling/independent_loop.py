"""Steps of `IndependentMetropolis` outside a graph: only log posteriors need a compiled program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.diagnostics.vector_functions import log_prob_of_vectors
from tfp_sgmcmc.diagnostics.weighted_sample import MixtureProposal
from tfp_sgmcmc.internal.nest import flatten_events, unflatten_events
from tfp_sgmcmc.kernels.independent_metropolis import (
    IndependentMetropolis,
    IndependentMetropolisResults,
    defensive_normal_log_prob_at,
    draw_defensive_normal,
)
from tfp_sgmcmc.sampling.loop import NEVER, FiniteCheck, Position, rows_of


class IndependentLoop:
    """The steps of `IndependentMetropolis`, with the interface of `Loop`.

    Proposals do not depend on the state, so NumPy draws and tests them, and the target's compiled
    log posterior of many states evaluates a block of them. Nothing else is traced or compiled. The
    random numbers of a block come from the seed and the number of its first step.

    Args:
      kernel: the kernel.
      trace_fn: state, results -> nest of tensors; or None.
      start: a position with the structure, shapes and dtypes of all positions.
      jit_compile: whether XLA may compile the log posterior.
      view: a function of states with any leading axes, whose value is kept; None keeps the state.
    """

    def __init__(
        self,
        kernel: IndependentMetropolis,
        trace_fn: Callable[[Any, Any], Any] | None,
        start: Position,
        jit_compile: bool,
        view: Callable[[Any], Any] | None = None,
    ):
        self._trace_fn, self._start = trace_fn, start
        self._chain_ndims = start.results.target_log_prob.shape.rank
        self._view = view or (lambda state: state)
        kept = self._view(start.state), self.trace_of(start.state, start.results), ()
        self.kept = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), kept)
        self.slots = rows_of(self.kept)
        self._log_prob_fn = log_prob_of_vectors(kernel.target, kernel.first_center, jit_compile)

    def trace_of(self, state: Any, results: Any) -> Any:
        """Returns what `trace_fn` returns; `()` without one."""
        if self._trace_fn is None:
            return ()
        return tf.nest.map_structure(tf.convert_to_tensor, self._trace_fn(state, results))

    def __call__(
        self, position: Position, rows: int, first: int, stride: Any, seed: Any, values: Any = ()
    ) -> tuple[Position, Any, FiniteCheck]:
        """Takes steps as `Loop` does, and returns the same."""
        del values
        step, state, results = position
        wanted = int(step) + first + int(stride) * np.arange(rows)
        seeds = np.asarray(seed).view(np.uint32)
        flat = flatten_events(state, self._chain_ndims).numpy()
        kept, traces, lost_at = [flat[np.newaxis][:0]], list[Any](), NEVER
        while rows and int(step) < wanted[-1]:
            results, thresholds = self._block(results, seeds)
            begin = int(results.step) % len(thresholds)
            thresholds = thresholds[begin : begin + wanted[-1] - int(step)]
            states, after = _walk(flat, results, thresholds)
            numbers = int(step) + 1 + np.arange(len(thresholds))
            is_lost = ~np.isfinite(after.target_log_prob).reshape(len(numbers), -1).all(axis=-1)
            if is_lost.any() and lost_at == NEVER:
                lost_at = int(numbers[np.argmax(is_lost)])
            picked = np.flatnonzero(np.isin(numbers, wanted))
            kept.append(states[picked])
            if self._trace_fn is not None:
                traces += [self.trace_of(self._state(states[i]), _at(after, i)) for i in picked]
            flat, results, step = states[-1], _at(after, -1), step + len(numbers)
        draws = np.concatenate(kept)
        trace = tf.nest.map_structure(lambda *x: tf.stack(x), *traces) if traces else ()
        finite = bool(np.isfinite(draws).all() and np.isfinite(flat).all())
        moved = Position(tf.constant(step, tf.int64), self._state(flat), results)
        if len(draws):
            view = self._view(self._state(draws))
        else:
            view = tf.nest.map_structure(lambda x: tf.zeros([0, *x.shape], x.dtype), self.kept[0])
        return moved, (view, trace, ()), FiniteCheck(finite, lost_at)

    def _state(self, flat: np.ndarray) -> Any:
        return unflatten_events(tf.constant(flat), self._start.state, self._chain_ndims)

    def _block(
        self, results: IndependentMetropolisResults, seeds: np.ndarray
    ) -> tuple[IndependentMetropolisResults, np.ndarray]:
        """Returns results with the present block, and log thresholds of its acceptances.

        A block is drawn where the last one ends.
        """
        size, step = results.log_probs.shape[0], int(results.step)
        rng = np.random.default_rng([*seeds, step // size])
        thresholds = -rng.standard_exponential(results.log_probs.shape)
        if step % size:
            return results, thresholds
        dtype, shape = results.proposals.dtype, tuple(results.proposals.shape)
        draws, log_q = _draw(results, shape, rng)
        proposals = tf.constant(draws, dtype)
        values = self._log_prob_fn(proposals.numpy().reshape(-1, shape[-1])).reshape(shape[:-1])
        log_probs = tf.constant(np.where(np.isnan(values), -np.inf, values), dtype)
        block = results._replace(
            proposals=proposals, log_probs=log_probs, log_weights=log_probs - tf.cast(log_q, dtype)
        )
        return block, thresholds


def _draw(
    results: IndependentMetropolisResults, shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[np.ndarray, Any]:
    """Returns proposals and their log densities, of one component up to a constant."""
    center, factor, share = (
        x.numpy() for x in (results.center, results.factor, results.tail_share)
    )
    if isinstance(results.weights, tuple):
        z = draw_defensive_normal(shape, float(share), rng)
        square, share = np.einsum("...d,...d->...", z, z), tf.constant(share, tf.float64)
        log_q = defensive_normal_log_prob_at(tf.constant(square), shape[-1], share)
        return center + z @ factor.T, log_q
    mixture = MixtureProposal.of(center, factor, share, results.weights.numpy())
    # The first half of antithetic draws is independent.
    draws = mixture.sample(2 * math.prod(shape[:-1]), rng)[: math.prod(shape[:-1])]
    return draws.reshape(shape), mixture.log_prob(draws).reshape(shape[:-1])


def _walk(
    flat: np.ndarray, results: IndependentMetropolisResults, thresholds: np.ndarray
) -> tuple[np.ndarray, IndependentMetropolisResults]:
    """Tests as many proposals as there are thresholds.

    Returns:
      The states, `[steps, chains..., D]`, and results whose fields of the state have the same
      leading axis.
    """
    begin = int(results.step) % results.log_probs.shape[0]
    offered = slice(begin, begin + len(thresholds))
    log_weights, weight = results.log_weights.numpy()[offered], results.log_weight.numpy()
    last = np.full(thresholds.shape, -1)  # the proposal that is the state; -1 for the first state
    accepted, weights = np.empty(thresholds.shape, bool), np.empty_like(log_weights)
    chosen = last[0]
    with np.errstate(invalid="ignore"):
        for i, threshold in enumerate(thresholds):
            accepted[i] = log_weights[i] - weight > threshold
            weight = weights[i] = np.where(accepted[i], log_weights[i], weight)
            chosen = last[i] = np.where(accepted[i], i, chosen)

    def of_state(before: np.ndarray, proposed: np.ndarray) -> np.ndarray:
        index = last.reshape(*last.shape, *[1] * (proposed.ndim - last.ndim))
        taken = np.take_along_axis(proposed, np.maximum(index, 0), axis=0)
        return np.where(index < 0, before, taken)

    log_probs = of_state(results.target_log_prob.numpy(), results.log_probs.numpy()[offered])
    after = results._replace(
        target_log_prob=log_probs,
        log_weight=weights,
        is_accepted=accepted,
        step=results.step + 1 + np.arange(len(thresholds)),
    )
    return of_state(flat, results.proposals.numpy()[offered]), after


def _at(after: IndependentMetropolisResults, i: int) -> IndependentMetropolisResults:
    """Returns the results after step i of `_walk`."""
    return after._replace(
        target_log_prob=tf.constant(after.target_log_prob[i]),
        log_weight=tf.constant(after.log_weight[i]),
        is_accepted=tf.constant(after.is_accepted[i]),
        step=after.step[i],
    )
